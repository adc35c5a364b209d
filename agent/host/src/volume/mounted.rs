//! Reads what is mounted from the mount table only, because a file system whose server is gone may not respond.

use std::io;
use std::path::{Path, PathBuf};

use super::VolumeError;
use crate::mount_table;

/// Whether something is mounted on `path`.
pub(super) fn is_mounted(path: &Path) -> Result<bool, VolumeError> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else { return Ok(false) };
    Ok(below(parent)?.contains(&real(parent)?.join(name)))
}

/// The mount points directly in `directory`; none if it does not exist.
pub(super) fn below(directory: &Path) -> Result<Vec<PathBuf>, VolumeError> {
    if !directory.exists() {
        return Ok(Vec::new());
    }
    let real = real(directory)?;
    let mounts = mount_table::mount_points().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    Ok(mounts.into_iter().filter(|mounted| mounted.parent() == Some(&real)).collect())
}

fn real(directory: &Path) -> Result<PathBuf, VolumeError> {
    match directory.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(directory.to_owned()),
        real => real.map_err(VolumeError::io("stat", directory)),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mounted_is_read_from_the_mount_table() {
        assert!(is_mounted(Path::new("/proc")).unwrap());
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_mounted(dir.path()).unwrap());
        assert!(!is_mounted(&dir.path().join("none/data")).unwrap());
        assert_eq!(below(&dir.path().join("none")).unwrap(), Vec::<PathBuf>::new());
    }
}
