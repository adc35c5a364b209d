//! The version of what an agent leaves for its successor: the files of the root and the run directory, the database,
//! and the labels of containers. It is a single number, in `<root>/state-version` and in the database.
//!
//! A release that changes a format so that its predecessor would misread it raises [`VERSION`]. The file also tells
//! which version is needed to read it ([`READABLE_FROM`]). So a release reads what its successor wrote, or refuses
//! before it changes anything, and the newest release reads everything.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::durable;

/// The version that this release writes, and the newest that it knows.
pub const VERSION: u32 = 1;
/// The oldest version whose releases read what this release writes.
pub const READABLE_FROM: u32 = 1;
/// The file below the root directory.
pub const FILE: &str = "state-version";
/// The file has some 60 bytes.
const MAX_BYTES: u64 = 4 << 10;

/// The version of something that an agent has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StateVersion {
    pub version: u32,
    /// The version that is needed to read it.
    pub readable_from: u32,
    /// The release that first wrote it; empty if unknown.
    #[serde(default)]
    pub written_by: String,
}

/// Why the state cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A newer release wrote it, in a form that this one does not know.
    #[error(
        "{path} has version {} of limpet's state, which {} wrote; limpet {} reads up to version {VERSION}, and has changed nothing. \
         Install {} again, or a newer release", state.version, writer(state), env!("CARGO_PKG_VERSION"), writer(state)
    )]
    Newer {
        /// The file with that version.
        path: PathBuf,
        state: StateVersion,
    },
    /// It cannot be read or written.
    #[error("cannot {verb} {path}: {source}")]
    Io {
        /// `read` or `write`.
        verb: &'static str,
        path: PathBuf,
        source: io::Error,
    },
}

fn writer(state: &StateVersion) -> String {
    match state.written_by.as_str() {
        "" => "a newer limpet".to_owned(),
        release => format!("limpet {release}"),
    }
}

impl StateVersion {
    /// The version that this release writes.
    pub fn current() -> Self {
        Self { version: VERSION, readable_from: READABLE_FROM, written_by: env!("CARGO_PKG_VERSION").to_owned() }
    }

    /// Whether this release can read something with this version; `path` is the file with the version.
    ///
    /// # Errors
    ///
    /// It cannot.
    pub fn demand_readable(self, path: &Path) -> Result<Self, StateError> {
        match self.readable_from <= VERSION {
            true => Ok(self),
            false => Err(StateError::Newer { path: path.to_owned(), state: self }),
        }
    }

    /// The version to write if this one is present; `None` if it stays. The version of a newer release stays, because
    /// there may be files that only that release wrote.
    pub fn successor(recorded: Option<&Self>) -> Option<Self> {
        let current = Self::current();
        recorded.is_none_or(|recorded| recorded.version < current.version).then_some(current)
    }
}

/// The version of the root directory, which need not exist. Changes nothing. `None` if it has none, or a damaged one.
///
/// # Errors
///
/// The file cannot be read, or this release cannot read the state.
pub fn check(root_dir: &Path) -> Result<Option<StateVersion>, StateError> {
    let path = root_dir.join(FILE);
    let read = durable::read(&path, MAX_BYTES);
    let bytes = read.map_err(|source| StateError::Io { verb: "read", path: path.clone(), source })?;
    let Some(bytes) = bytes else { return Ok(None) };
    match serde_json::from_slice::<StateVersion>(&bytes) {
        Ok(version) => version.demand_readable(&path).map(Some),
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "the version of the state is damaged, written again");
            Ok(None)
        }
    }
}

/// Writes this release's version, if there is an older one or none. Writes nothing on a read-only file system.
///
/// # Errors
///
/// Those of [`check`], or the file cannot be written.
pub fn settle(root_dir: &Path) -> Result<(), StateError> {
    let recorded = check(root_dir)?;
    let (path, Some(version)) = (root_dir.join(FILE), StateVersion::successor(recorded.as_ref())) else {
        return Ok(());
    };
    let failed = |source| StateError::Io { verb: "write", path: path.clone(), source };
    let mut text = serde_json::to_vec(&version).map_err(|error| failed(error.into()))?;
    text.push(b'\n');
    match durable::write(&path, &text, 0o644) {
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(()),
        written => written.map_err(failed),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    fn newer(version: u32, readable_from: u32) -> StateVersion {
        StateVersion { version, readable_from, written_by: "9.9.9".to_owned() }
    }

    #[test]
    fn the_first_start_writes_the_version_and_the_next_one_nothing() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(check(&root.path().join("missing")).unwrap(), None);
        settle(root.path()).unwrap();
        let path = root.path().join(FILE);
        let text = fs::read_to_string(&path).unwrap();
        let release = env!("CARGO_PKG_VERSION");
        assert_eq!(text, format!("{{\"version\":1,\"readableFrom\":1,\"writtenBy\":\"{release}\"}}\n"));
        assert_eq!(check(root.path()).unwrap(), Some(StateVersion::current()));
        let before = fs::metadata(&path).unwrap().ino();
        settle(root.path()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().ino(), before, "written again");
    }

    #[test]
    fn what_a_successor_wrote_is_read_or_refused_and_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join(FILE);
        let put = |version: &StateVersion| fs::write(&path, serde_json::to_vec(version).unwrap()).unwrap();
        // This release reads its successor's formats.
        put(&newer(VERSION + 1, VERSION));
        let seen = check(root.path()).unwrap();
        assert_eq!(seen, Some(newer(VERSION + 1, VERSION)));
        settle(root.path()).unwrap();
        assert_eq!(check(root.path()).unwrap(), seen, "the higher version stays");
        put(&newer(VERSION + 2, VERSION + 1));
        let bytes = fs::read(&path).unwrap();
        let error = check(root.path()).unwrap_err().to_string();
        for part in [path.to_str().unwrap(), "has version 3", "limpet 9.9.9 wrote", "Install limpet 9.9.9 again"] {
            assert!(error.contains(part), "{error} lacks {part}");
        }
        assert_eq!(fs::read(&path).unwrap(), bytes);
    }

    #[test]
    fn a_damaged_version_is_written_again() {
        let root = tempfile::tempdir().unwrap();
        for damaged in [&b""[..], b"{", b"\0\0\0", b"{\"version\":-1}"] {
            fs::write(root.path().join(FILE), damaged).unwrap();
            assert_eq!(check(root.path()).unwrap(), None);
            settle(root.path()).unwrap();
            assert_eq!(check(root.path()).unwrap(), Some(StateVersion::current()));
        }
    }
}
