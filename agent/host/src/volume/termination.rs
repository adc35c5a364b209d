//! Termination messages: the file to which a container writes why it exits.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{VolumeError, files};

/// The most bytes of a termination message that are read; kubelet's limit.
pub const MAX_TERMINATION_MESSAGE: u64 = 4096;

/// The path of the container's file.
pub(super) fn path(pod_dir: &Path, container: &str, container_id: &str) -> PathBuf {
    pod_dir.join("containers").join(container).join(container_id)
}

/// Creates the file, writable by any user of the container.
pub(super) fn make(pod_dir: &Path, container: &str, container_id: &str) -> Result<PathBuf, VolumeError> {
    let path = path(pod_dir, container, container_id);
    if let Some(dir) = path.parent() {
        files::make_dirs(dir, 0o750)?;
    }
    files::make_file(&path, 0o666)?;
    Ok(path)
}

/// The last `limit` bytes of the message (normally [`MAX_TERMINATION_MESSAGE`]) of a container that has exited, as in
/// kubelet. A missing file is an empty message; invalid UTF-8 is replaced. The file is truncated to what was read,
/// which bounds what containers leave.
pub(super) fn read(path: &Path, limit: u64) -> Result<String, VolumeError> {
    let fail = VolumeError::io("read", path);
    match read_tail(path, limit) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(fail(error)),
    }
}

fn read_tail(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let mut file = OpenOptions::new().read(true).custom_flags(files::nofollow()).open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(limit)))?;
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    if length > limit {
        // On a read-only disk the message still counts.
        let file = OpenOptions::new().write(true).custom_flags(files::nofollow()).open(path);
        let cut = |file: File| file.write_all_at(&bytes, 0).and_then(|()| file.set_len(bytes.len() as u64));
        if let Err(error) = file.and_then(cut) {
            tracing::debug!(file = %path.display(), %error, "a termination message cannot be cut to its end");
        }
    }
    Ok(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_tail_of_the_message_is_read() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(&dir.path().join("none"), 9).unwrap(), "");
        let file = make(dir.path(), "c", "id").unwrap();
        assert_eq!(file, dir.path().join("containers/c/id"));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode(), 0o100_666);
        assert_eq!(read(&file, 9).unwrap(), "");
        std::fs::write(&file, "first last").unwrap();
        assert_eq!(read(&file, 10).unwrap(), "first last");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "first last");
        for _again in 0..2 {
            assert_eq!(read(&file, 4).unwrap(), "last");
            make(dir.path(), "c", "id").unwrap();
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "last", "no more than that is kept");
        }
        std::fs::write(&file, b"\xff!").unwrap();
        assert_eq!(read(&file, 4096).unwrap(), "\u{fffd}!");
    }
}
