//! Labels files: those of a volume when a container mounts it, and files that are added later.
//!
//! The files are untrusted: see [`crate::tree`].

use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::path::Path;

use rustix::fs::{FileType, XattrFlags};
use rustix::io::Errno;

use super::is_enabled;
use crate::tree;

/// The extended attribute with a file's label.
const ATTRIBUTE: &str = "security.selinux";
/// System directories, which no volume may relabel (those of opencontainers/selinux).
const SYSTEM_DIRECTORIES: [&str; 24] = [
    "/",
    "/bin",
    "/boot",
    "/dev",
    "/etc",
    "/etc/passwd",
    "/etc/pki",
    "/etc/shadow",
    "/home",
    "/lib",
    "/lib64",
    "/media",
    "/opt",
    "/proc",
    "/root",
    "/run",
    "/sbin",
    "/srv",
    "/sys",
    "/tmp",
    "/usr",
    "/var",
    "/var/lib",
    "/var/log",
];
/// The label of directories with plugins' sockets.
const PLUGINS_LABEL: &[u8] = b"system_u:object_r:container_file_t:s0";
/// Bytes of a label, at most.
const MAX_LABEL: usize = 4_096;

/// Gives the label to `path` and everything below it. Files that already have it are skipped, and a file system
/// without labels, or a read-only one, stays unchanged. If `path` is a symlink, the link itself is labelled. Blocks.
///
/// # Errors
///
/// A file cannot be labelled; `InvalidInput`: the policy does not have the label.
pub fn relabel(path: &Path, label: &str) -> io::Result<()> {
    if SYSTEM_DIRECTORIES.iter().any(|system| Path::new(system) == path) {
        return Err(io::Error::other(
            "it is a directory of the system, which keeps its labels; give the volume one of its own",
        ));
    }
    Walk { attribute: ATTRIBUTE, label: label.as_bytes() }.all(path)
}

/// Gives the label of the directory `from` to `path` and everything below it. Does nothing if SELinux is off. Blocks.
///
/// # Errors
///
/// As [`relabel`].
pub fn inherit(path: &Path, from: &Path) -> io::Result<()> {
    if is_enabled() { inherit_attribute(ATTRIBUTE, path, from) } else { Ok(()) }
}

fn inherit_attribute(attribute: &str, path: &Path, from: &Path) -> io::Result<()> {
    let mut buffer = [0; MAX_LABEL];
    match rustix::fs::lgetxattr(from, attribute, &mut buffer[..]) {
        Ok(length) => {
            let label = buffer[..length].strip_suffix(b"\0").unwrap_or(&buffer[..length]);
            Walk { attribute, label }.all(path)
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Lets containers with plugins reach the sockets in one of the agent's directories, with kubelet's label. Does
/// nothing if SELinux is off; if the policy lacks the label, the directory stays unchanged. Blocks.
pub fn open_to_plugins(directory: &Path) {
    if !is_enabled() {
        return;
    }
    if let Err(errno) = rustix::fs::setxattr(directory, ATTRIBUTE, PLUGINS_LABEL, XattrFlags::empty()) {
        tracing::info!(path = %directory.display(), error = %errno, "relabelling the directory failed; plugins in unprivileged containers may not be able to use it");
    }
}

struct Walk<'a> {
    attribute: &'a str,
    label: &'a [u8],
}

impl Walk<'_> {
    /// Files that are too deep keep their labels, because a container's files must never prevent its restart.
    fn all(&self, path: &Path) -> io::Result<()> {
        let (top, stat) = tree::file(path)?;
        let has_labels = self.set_label(&top)?;
        if has_labels && FileType::from_raw_mode(stat.st_mode) == FileType::Directory {
            tree::visit_below(&top, &mut |file, _| self.set_label(file).map(drop))?;
        }
        Ok(())
    }

    /// Labels one file. Returns false if its file system has no labels, or accepts none.
    fn set_label(&self, file: &impl AsFd) -> io::Result<bool> {
        // An `O_PATH` descriptor has no attributes; the path to it leads to the file itself, symlink or not.
        let itself = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
        let mut buffer = [0; MAX_LABEL];
        let has = match rustix::fs::getxattr(&itself, self.attribute, &mut buffer[..]) {
            Ok(length) => buffer[..length].strip_suffix(b"\0").unwrap_or(&buffer[..length]) == self.label,
            Err(Errno::OPNOTSUPP) => return Ok(false),
            Err(_) => false,
        };
        if has {
            return Ok(true);
        }
        match rustix::fs::setxattr(&itself, self.attribute, self.label, XattrFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::OPNOTSUPP | Errno::ROFS) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::symlink;

    use limpet_tests::need;
    use rustix::fs::{CWD, Mode};

    use super::*;

    /// Without SELinux, another attribute of root's replaces the label, because the kernel has the same rules for
    /// both.
    const STAND_IN: &str = "trusted.limpet-test";

    fn set(path: &Path, label: &str) {
        Walk { attribute: STAND_IN, label: label.as_bytes() }.all(path).unwrap();
    }

    fn label(path: &Path) -> Option<String> {
        let mut buffer = [0; 64];
        let length = rustix::fs::lgetxattr(path, STAND_IN, &mut buffer[..]).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }

    #[test]
    fn everything_of_a_volume_is_labelled_and_symlinks_are_not_followed() {
        if need::root("attributes of files").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (volume, outside) = (dir.path().join("volume"), dir.path().join("outside"));
        std::fs::create_dir_all(volume.join("a/b")).unwrap();
        for file in [&outside, &volume.join("a/b/file")] {
            std::fs::write(file, "").unwrap();
        }
        symlink(&outside, volume.join("a/link")).unwrap();
        rustix::fs::mknodat(CWD, volume.join("a/pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        set(&volume, "one");
        for path in ["", "a", "a/b", "a/b/file", "a/link", "a/pipe"] {
            assert_eq!(label(&volume.join(path)).as_deref(), Some("one"), "{path:?}");
        }
        assert_eq!(label(&outside), None);
        // Files with another level, and added files, get the same label.
        std::fs::write(volume.join("late"), "").unwrap();
        set(&volume.join("a/b"), "two");
        set(&volume, "one");
        for path in ["late", "a/b", "a/b/file"] {
            assert_eq!(label(&volume.join(path)).as_deref(), Some("one"), "{path:?}");
        }
    }

    #[test]
    fn what_is_added_to_a_volume_has_its_label() {
        if need::root("attributes of files").is_none() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let added = dir.path().join("..new");
        std::fs::create_dir(&added).unwrap();
        std::fs::write(added.join("key"), "").unwrap();
        inherit_attribute(STAND_IN, &added, dir.path()).unwrap();
        assert_eq!(label(&added), None, "the volume has none");
        rustix::fs::setxattr(dir.path(), STAND_IN, b"mine\0", XattrFlags::empty()).unwrap();
        inherit_attribute(STAND_IN, &added, dir.path()).unwrap();
        assert_eq!((label(&added).as_deref(), label(&added.join("key")).as_deref()), (Some("mine"), Some("mine")));
    }

    #[test]
    fn a_file_system_without_labels_stays_as_it_is() {
        relabel(Path::new("/proc/self/status"), "u:r:t").unwrap();
        assert!(relabel(Path::new("/"), "u:r:t").is_err() && relabel(Path::new("/usr/"), "u:r:t").is_err());
    }
}
