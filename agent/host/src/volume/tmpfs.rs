//! Mounts tmpfs and hugetlbfs file systems for volumes in memory.

use std::ffi::CString;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::VolumeError;
use crate::mount_table;

/// Mounts a tmpfs on `path`, which is created, unless something is mounted there. `data`: the mount options.
pub(super) fn mount(path: &Path, data: &str) -> Result<(), VolumeError> {
    if prepare(path)? {
        return Ok(());
    }
    try_mount(path, data, MountFlags::empty()).map_err(|errno| VolumeError::io("mount a tmpfs on", path)(errno.into()))
}

/// The same for secrets: not swapped out, where the kernel supports that (Linux 6.4).
pub(super) fn mount_private(path: &Path, mode: u32, group: Option<u32>) -> Result<(), VolumeError> {
    if prepare(path)? {
        return Ok(());
    }
    let mut data = format!("mode={mode:o}");
    data.extend(group.map(|group| format!(",gid={group}")));
    let flags = MountFlags::NODEV | MountFlags::NOSUID;
    let mounted = match try_mount(path, &format!("{data},noswap"), flags) {
        Err(Errno::INVAL) => try_mount(path, &data, flags),
        other => other,
    };
    mounted.map_err(|errno| VolumeError::io("mount a tmpfs on", path)(errno.into()))
}

/// Mounts a hugetlbfs on `path`, which is created. `false`: something is mounted there already.
pub(super) fn mount_huge_pages(path: &Path, data: &str) -> Result<bool, VolumeError> {
    if prepare(path)? {
        return Ok(false);
    }
    let mounted = try_mount_of("hugetlbfs", path, data, MountFlags::empty());
    mounted.map(|()| true).map_err(|errno| VolumeError::io("mount a hugetlbfs on", path)(errno.into()))
}

/// Creates the mount point. True: something is mounted there already.
fn prepare(path: &Path) -> Result<bool, VolumeError> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(VolumeError::io("make directory", path))?;
    mount_table::is_mount_point(path).map_err(VolumeError::io("stat", path))
}

fn try_mount(path: &Path, data: &str, flags: MountFlags) -> Result<(), Errno> {
    try_mount_of("tmpfs", path, data, flags)
}

fn try_mount_of(file_system: &str, path: &Path, data: &str, flags: MountFlags) -> Result<(), Errno> {
    // The options consist of digits, letters and punctuation: no zero byte.
    let data = CString::new(data).unwrap_or_default();
    rustix::mount::mount(file_system, path, file_system, flags, data.as_c_str())
}
