//! The node's name. It is part of every static pod's name and UID, so it is determined at the first start and stored on
//! disk: a host name that changes later (DHCP) would otherwise recreate every pod.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file below the root directory.
pub const FILE: &str = "node-name";
/// The longest DNS name.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// Why the node has no name. Retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum NameError {
    /// The name is not a DNS name.
    #[error(
        "{origin} {name:?} cannot be a node's name: {reason}; give another with --hostname-override, of lower case \
         letters, digits, '-' and '.'"
    )]
    Invalid {
        /// `host name` or `--hostname-override`.
        origin: &'static str,
        name: String,
        reason: &'static str,
    },
    /// The override differs from the stored name.
    #[error(
        "this node is {settled} since its first start, and --hostname-override says {given}; to rename it on purpose, \
         which recreates its pods, stop limpet and delete {file}"
    )]
    Differs {
        settled: String,
        given: String,
        /// The file of the stored name.
        file: PathBuf,
    },
    /// The file could not be read or written.
    #[error("cannot {verb} the node's name in {path}: {source}")]
    Io {
        /// `read` or `store`.
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

/// A remark about the name for the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NameNotice {
    /// The name was stored at the first start.
    Settled,
    /// The host name has changed; the node keeps its stored name.
    HostRenamed { host_name: String },
    /// The stored name was invalid, so it was determined again.
    Damaged,
    /// The name is determined again at each start until the root directory is writable.
    NotStored,
}

/// The node's name: the one stored in `root_dir`, or at the first start `given` (`--hostname-override`), or
/// `host_name`. `root_dir` must exist.
///
/// # Errors
/// No valid name, another name than the stored one, or an I/O error.
pub fn settle_name(
    root_dir: &Path,
    given: Option<&str>,
    host_name: &str,
) -> Result<(String, Option<NameNotice>), NameError> {
    let path = root_dir.join(FILE);
    let given = given.map(|name| valid("--hostname-override", name)).transpose()?;
    let stored = match fs::read(&path) {
        Ok(bytes) => Some(String::from_utf8(bytes).ok().and_then(|name| valid("stored name", &name).ok())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(source) => return Err(NameError::Io { verb: "read", path, source }),
    };
    if let Some(Some(settled)) = stored {
        if let Some(given) = given.as_ref().filter(|given| **given != settled) {
            return Err(NameError::Differs { settled, given: given.clone(), file: path });
        }
        let host_name = host_name.trim().to_ascii_lowercase();
        let renamed = given.is_none() && host_name != settled;
        return Ok((settled, renamed.then_some(NameNotice::HostRenamed { host_name })));
    }
    let name = match given {
        Some(name) => name,
        None => valid("host name", host_name)?,
    };
    match store(root_dir, &path, &name) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
            return Ok((name, Some(NameNotice::NotStored)));
        }
        stored => stored.map_err(|source| NameError::Io { verb: "store", path, source })?,
    }
    Ok((name, Some(if stored.is_some() { NameNotice::Damaged } else { NameNotice::Settled })))
}

/// Writes a new file, syncs it, renames it and syncs the directory: after a power cut the old or the new file exists.
fn store(root_dir: &Path, path: &Path, name: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    file.write_all(name.as_bytes())?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    File::open(root_dir)?.sync_all()
}

/// The name, trimmed and in lower case, if it is a DNS subdomain (RFC 1123).
fn valid(origin: &'static str, name: &str) -> Result<String, NameError> {
    let settled = name.trim().to_ascii_lowercase();
    let wrong = |reason| Err(NameError::Invalid { origin, name: name.to_owned(), reason });
    if settled.is_empty() {
        return wrong("it is empty");
    }
    if settled.len() > MAX_NAME {
        return wrong("it is longer than 253 characters");
    }
    for label in settled.split('.') {
        if label.is_empty() || label.len() > MAX_LABEL {
            return wrong("the parts between dots have 1 to 63 characters");
        }
        if !label.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
            return wrong("only letters, digits, '-' and '.' are allowed");
        }
        if label.starts_with('-') || label.ends_with('-') {
            return wrong("a part begins or ends with '-'");
        }
    }
    Ok(settled)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_stays() {
        let root = tempfile::tempdir().unwrap();
        let settle = |given: Option<&str>, host: &str| settle_name(root.path(), given, host);
        assert_eq!(settle(None, "Edge1\n").unwrap(), ("edge1".to_owned(), Some(NameNotice::Settled)));
        assert_eq!(fs::read_to_string(root.path().join(FILE)).unwrap(), "edge1\n");
        assert_eq!(settle(None, "edge1").unwrap(), ("edge1".to_owned(), None));
        let renamed = Some(NameNotice::HostRenamed { host_name: "dhcp-7".to_owned() });
        assert_eq!(settle(None, "dhcp-7").unwrap(), ("edge1".to_owned(), renamed));
        assert_eq!(settle(Some("EDGE1"), "dhcp-7").unwrap(), ("edge1".to_owned(), None));
        let refused = settle(Some("edge2"), "edge2").unwrap_err().to_string();
        assert!(refused.contains("is edge1 since") && refused.contains("says edge2"), "{refused}");
        fs::remove_file(root.path().join(FILE)).unwrap();
        assert_eq!(settle(Some("edge2"), "edge1").unwrap().0, "edge2");
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_damaged_name_is_determined_again() {
        let root = tempfile::tempdir().unwrap();
        for damaged in [&b""[..], b"\0\0\0\0", b"\xff\xfe", b"two words"] {
            fs::write(root.path().join(FILE), damaged).unwrap();
            let (name, notice) = settle_name(root.path(), None, "edge1").unwrap();
            assert_eq!((name.as_str(), notice), ("edge1", Some(NameNotice::Damaged)));
        }
    }

    #[test]
    fn names_are_dns_subdomains() {
        for name in ["edge1", "1", "a.b-c.example", "UPPER", "a.".repeat(126).trim_end_matches('.')] {
            assert!(valid("host name", name).is_ok(), "{name}");
        }
        let long = "a".repeat(64);
        let longer = "a.".repeat(127);
        for name in ["", "  ", "my_box", "-a", "a-", "a..b", ".a", "größe", "a b", &long, &longer] {
            assert!(valid("host name", name).is_err(), "{name}");
        }
    }

    #[test]
    fn a_name_that_cannot_be_stored_is_an_error() {
        let error = settle_name(Path::new("/nonexistent/root"), None, "edge1").unwrap_err().to_string();
        assert!(
            error.starts_with("cannot store the node's name in /nonexistent/root/node-name: No such file"),
            "{error}"
        );
    }
}
