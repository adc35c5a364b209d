//! Creates directories and files with exact permissions, independent of the agent's umask.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use super::VolumeError;

/// The most bytes of a managed file that are read.
const MAX_FILE: u64 = 1 << 20;

/// Creates `path` and missing parents, each new directory with `mode`.
pub(super) fn make_dirs(path: &Path, mode: u32) -> Result<(), VolumeError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        make_dirs(parent, mode)?;
    }
    match DirBuilder::new().mode(mode).create(path) {
        Ok(()) => set_mode(path, mode),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        Err(error) => Err(VolumeError::io("make directory", path)(error)),
    }
}

/// Creates an empty file with `mode`; an existing one is not changed.
pub(super) fn make_file(path: &Path, mode: u32) -> Result<(), VolumeError> {
    match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Ok(_) => set_mode(path, mode),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(VolumeError::io("make file", path)(error)),
    }
}

pub(super) fn set_mode(path: &Path, mode: u32) -> Result<(), VolumeError> {
    std::fs::set_permissions(path, Permissions::from_mode(mode))
        .map_err(VolumeError::io("set the permissions of", path))
}

/// The first `max` bytes of a file.
pub(super) fn read_bounded(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The file's text; `None` if it does not exist. Invalid UTF-8 is replaced.
pub(super) fn read(path: &Path) -> Result<Option<String>, VolumeError> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(VolumeError::io("read", path)(error)),
    };
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes).map_err(VolumeError::io("read", path))?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// The names of the directories in `dir`, sorted; none if it does not exist. Mounts on them are not accessed.
pub(super) fn directories(dir: &Path) -> Result<Vec<String>, VolumeError> {
    let entries = match std::fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(VolumeError::io("list", dir)(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(VolumeError::io("list", dir))?;
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            names.extend(entry.file_name().into_string());
        }
    }
    names.sort();
    Ok(names)
}

/// `O_NOFOLLOW` with the standard library's type.
pub(super) fn nofollow() -> i32 {
    rustix::fs::OFlags::NOFOLLOW.bits().cast_signed()
}
