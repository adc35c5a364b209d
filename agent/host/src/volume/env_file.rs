//! The files from which variables come (`fileKeyRef`), which a container has written to an emptyDir.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;

use super::empty_dir::EmptyDir;
use crate::confined::{self, Confinement};

/// The largest file that is read.
const MAX_FILE: u64 = 1 << 20;

/// The text of the file `path` in the emptyDir `volume`; `None` if it does not exist. Symlinks are followed within
/// the volume only, and only a regular file is read, because a container has created it.
///
/// # Errors
///
/// The file cannot be read, or is not text of at most 1 MiB.
pub fn read_env_file(pod_dir: &Path, volume: &str, path: &str) -> io::Result<Option<String>> {
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let base = match rustix::fs::openat(CWD, EmptyDir::path(pod_dir, volume), directory, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        base => base?,
    };
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file: File = match confined::open(&base, path, flags, Confinement::BENEATH) {
        Err(Errno::NOENT | Errno::NOTDIR) => return Ok(None),
        Err(Errno::XDEV) => return Err(io::Error::other("it leads out of the volume")),
        file => file?.into(),
    };
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_FILE {
        return Err(io::Error::other("it is larger than 1 MiB"));
    }
    String::from_utf8(bytes).map(Some).map_err(|_| io::Error::other("it is no text"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_the_volume_is_read_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let volume = EmptyDir::path(dir.path(), "v");
        std::fs::create_dir_all(volume.join("sub")).unwrap();
        std::fs::write(volume.join("sub/env"), "A='1'\n").unwrap();
        std::fs::write(volume.join("binary"), [0xff]).unwrap();
        std::fs::write(volume.join("big"), vec![b'#'; 1 + (1 << 20)]).unwrap();
        std::os::unix::fs::symlink("sub/env", volume.join("inside")).unwrap();
        std::os::unix::fs::symlink("/etc/hostname", volume.join("outside")).unwrap();
        rustix::fs::mkfifoat(CWD, volume.join("pipe"), Mode::RWXU).unwrap();
        let read = |path: &str| read_env_file(dir.path(), "v", path).map_err(|error| error.to_string());
        assert_eq!(read("sub/env").unwrap().as_deref(), Some("A='1'\n"));
        assert_eq!(read("inside").unwrap().as_deref(), Some("A='1'\n"));
        assert_eq!((read("none").unwrap(), read_env_file(dir.path(), "w", "env").unwrap()), (None, None));
        for (path, reason) in [
            ("outside", "it leads out of the volume"),
            ("../v/sub/env", "it leads out of the volume"),
            ("pipe", "it is no regular file"),
            ("sub", "it is no regular file"),
            ("big", "it is larger than 1 MiB"),
            ("binary", "it is no text"),
        ] {
            assert_eq!(read(path), Err(reason.to_owned()), "{path}");
        }
    }
}
