//! The directories and mounts of sandboxes, with errors that name them.

use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use rustix::fs::FsWord;
use rustix::io::Errno;
use rustix::mount::{MountPropagationFlags, UnmountFlags};

use super::SandboxError;

/// `NSFS_MAGIC` and `TMPFS_MAGIC` of linux/magic.h.
pub(super) const NSFS_MAGIC: FsWord = 0x6e73_6673;
pub(super) const TMPFS_MAGIC: FsWord = 0x0102_1994;

/// The mode of the parent directories: a pod's `/dev/shm` is writable by all users, and only its containers may reach
/// it.
pub(super) const PRIVATE_MODE: u32 = 0o700;

/// How many mounts stacked on one path are unmounted before giving up.
const MAX_STACKED: usize = 32;

/// Unmounts everything that is stacked on `path`. A missing path, or no mount, counts as success.
pub(super) fn detach(path: &Path) -> Result<(), SandboxError> {
    for _ in 0..MAX_STACKED {
        match rustix::mount::unmount(path, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // EINVAL: not a mount point.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(at("unmount", path, errno)),
        }
    }
    Err(at("unmount", path, Errno::BUSY))
}

pub(super) fn ignore_not_found(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes the directory a mount point whose mounts do not propagate to other mount namespaces.
pub(super) fn make_private(dir: &Path) -> Result<(), SandboxError> {
    if !is_mount_point(dir)? {
        rustix::mount::mount_bind(dir, dir).map_err(|errno| at("bind onto itself", dir, errno))?;
    }
    rustix::mount::mount_change(dir, MountPropagationFlags::PRIVATE).map_err(|errno| at("make private", dir, errno))
}

pub(super) fn make_dir(path: &Path) -> Result<(), SandboxError> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(PRIVATE_MODE)
        .create(path)
        .map_err(|source| SandboxError::path("make directory", path, source))
}

pub(super) fn exists(path: &Path) -> Result<bool, SandboxError> {
    path.try_exists().map_err(|source| SandboxError::path("stat", path, source))
}

/// The magic number of the file system of `path`; `None` if the path does not exist.
pub(super) fn file_system_of(path: &Path) -> Result<Option<FsWord>, SandboxError> {
    match rustix::fs::statfs(path) {
        Ok(stat) => Ok(Some(stat.f_type)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(at("stat", path, errno)),
    }
}

pub(super) fn is_mount_point(path: &Path) -> Result<bool, SandboxError> {
    crate::mount_table::is_mount_point(path).map_err(|source| SandboxError::path("stat", path, source))
}

pub(super) fn at(operation: &'static str, path: &Path, errno: Errno) -> SandboxError {
    SandboxError::path(operation, path, errno.into())
}
