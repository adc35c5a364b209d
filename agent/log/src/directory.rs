//! Directories of logs, opened so that no symlink below the directory of all pods' logs is followed: otherwise a
//! process that can write there, such as a pod with that directory as a volume, could make the agent read, and the
//! logger write, elsewhere on the host.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Flags for files below the directory of all pods' logs.
pub(crate) const BELOW: OFlags = OFlags::NOFOLLOW.union(OFlags::CLOEXEC);
/// Flags for a directory that is read.
pub(crate) const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Opens the directory of the log at `path`. The pod's and the container's directories must not be symlinks; their
/// parents may be.
pub(crate) fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let (above, below) = split(path);
    let top = rustix::fs::open(above, DIRECTORY, Mode::empty())?;
    let mut names = below.into_iter().flatten();
    names.try_fold(top, |parent, name| rustix::fs::openat(&parent, name, DIRECTORY | BELOW, Mode::empty()))
}

/// The same, but creates missing directories.
pub(crate) fn make(path: &Path) -> Result<OwnedFd, Errno> {
    const MODE: u32 = 0o755;
    let (above, below) = split(path);
    let mut builder = std::fs::DirBuilder::new();
    let made = std::os::unix::fs::DirBuilderExt::mode(builder.recursive(true), MODE).create(above);
    made.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let top = rustix::fs::open(above, DIRECTORY, Mode::empty())?;
    let mut names = below.into_iter().flatten();
    names.try_fold(top, |parent, name| match rustix::fs::mkdirat(&parent, name, Mode::from_raw_mode(MODE)) {
        Err(Errno::EXIST) | Ok(()) => rustix::fs::openat(&parent, name, DIRECTORY | BELOW, Mode::empty()),
        Err(error) => Err(error),
    })
}

/// Opens a file of a log for reading.
///
/// # Errors
///
/// `NotFound` if it does not exist; other errors if it is not a regular file.
pub fn open_file(path: &Path) -> io::Result<File> {
    let name = path.file_name().ok_or(Errno::INVAL)?;
    // Opening a FIFO would wait for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | BELOW;
    let file = rustix::fs::openat(open(path)?, name, flags, Mode::empty())?;
    match FileType::from_raw_mode(rustix::fs::fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(io::Error::other("the log is no regular file")),
    }
}

/// Splits a path into the directory of all pods' logs, and the names of the pod's and the container's directories.
fn split(path: &Path) -> (&Path, [Option<&OsStr>; 2]) {
    let container = path.parent().unwrap_or(Path::new("/"));
    let pod = container.parent().unwrap_or(Path::new("/"));
    (pod.parent().unwrap_or(Path::new("/")), [pod.file_name(), container.file_name()])
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn no_symlink_below_the_directory_of_all_pods_is_followed() {
        let root = tempfile::tempdir().unwrap();
        let (pods, secret) = (root.path().join("pods"), root.path().join("secret"));
        fs::create_dir_all(secret.join("main")).unwrap();
        fs::write(secret.join("main/0.log"), "secret").unwrap();
        fs::create_dir_all(root.path().join("disk/web/main")).unwrap();
        // The directory of all pods may be on another disk.
        symlink("disk", &pods).unwrap();
        fs::write(pods.join("web/main/0.log"), "text").unwrap();
        assert_eq!(io::read_to_string(open_file(&pods.join("web/main/0.log")).unwrap()).unwrap(), "text");
        assert_eq!(open_file(&pods.join("web/main/1.log")).unwrap_err().kind(), io::ErrorKind::NotFound);

        symlink(secret.join("main/0.log"), pods.join("web/main/2.log")).unwrap();
        symlink(secret.join("main"), pods.join("web/other")).unwrap();
        symlink(&secret, pods.join("linked")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, pods.join("web/main/3.log"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for path in ["web/main/2.log", "web/other/0.log", "linked/main/0.log", "web/main/3.log"] {
            assert!(open_file(&pods.join(path)).is_err(), "{path}");
        }
    }
}
