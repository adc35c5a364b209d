//! Project quotas: the file system counts the size of a directory, so no walk is needed to measure it. ext4 and XFS
//! do this if they are mounted with `prjquota`; reading the counts needs Linux 5.14. They also limit the size.
//!
//! A directory gets its own project when it is created, and everything created in it belongs to that project. Only
//! the initial user namespace may change a file's project, so a process in another one cannot evade the count; any
//! other owner of a file could, which is why kubelet uses this only for volumes of pods with `hostUsers: false`.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use nix::libc;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::ioctl::{Getter, Setter, ioctl, opcode};

/// limpet's first project id. Others begin at 1, kubelet's at 1,048,577.
const FIRST_PROJECT: u32 = 0x4c50_0000;
/// The maximum number of project ids that are tried.
const MAX_PROJECTS_TRIED: u32 = 1 << 16;

/// `quotactl_fd`, which has one number on every architecture, and its command `QCMD(Q_GETQUOTA, PRJQUOTA)`.
const SYS_QUOTACTL_FD: libc::c_long = 443;
const GET_QUOTA_OF_PROJECT: libc::c_uint = 0x80_0007 << 8 | 2;
/// `QCMD(Q_SETQUOTA, PRJQUOTA)`.
const SET_QUOTA_OF_PROJECT: libc::c_uint = 0x80_0008 << 8 | 2;
/// `QIF_BLIMITS`: the limits of blocks are set, and nothing else.
const BLOCK_LIMITS: u32 = 1;
/// Bytes of a block of those limits.
const BLOCK: u64 = 1_024;

/// `FS_XFLAG_PROJINHERIT`: files created in the directory get its project.
const INHERIT_PROJECT: u32 = 0x200;

/// `struct fsxattr` of `<linux/fs.h>`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attributes {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    copy_on_write_extent_size: u32,
    padding: [u8; 8],
}

const GET_ATTRIBUTES: rustix::ioctl::Opcode = opcode::read::<Attributes>(b'X', 31);
const SET_ATTRIBUTES: rustix::ioctl::Opcode = opcode::write::<Attributes>(b'X', 32);

/// `struct if_dqblk` of `<linux/quota.h>`.
#[repr(C)]
#[derive(Default)]
struct Quota {
    block_hard_limit: u64,
    block_soft_limit: u64,
    bytes: u64,
    inode_hard_limit: u64,
    inode_soft_limit: u64,
    inodes: u64,
    block_grace: u64,
    inode_grace: u64,
    valid: u32,
}

/// The disk usage of a project.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProjectUsage {
    /// Bytes on the disk.
    pub(crate) bytes: u64,
    /// Files and directories.
    pub(crate) inodes: u64,
}

/// Gives `directory`, which is empty, its own project. Returns whether its file system counts projects; if not,
/// nothing has changed.
///
/// # Errors
///
/// The directory cannot be opened, or the project cannot be set.
pub fn count(directory: &Path) -> io::Result<bool> {
    // Two directories must not choose the same project.
    static ASSIGNMENT_LOCK: Mutex<()> = Mutex::new(());
    let _turn = ASSIGNMENT_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
    let opened = rustix::fs::openat(CWD, directory, OPEN_FLAGS, Mode::empty())?;
    let Some(project) = unused(opened.as_fd()) else { return Ok(false) };
    let attributes = attributes(opened.as_fd())?;
    set_attributes(opened.as_fd(), Attributes { project, flags: attributes.flags | INHERIT_PROJECT, ..attributes })?;
    Ok(true)
}

/// The disk usage of the directory, if [`count`] has given it a project.
pub(crate) fn usage(directory: &Path) -> Option<ProjectUsage> {
    let opened = rustix::fs::openat(CWD, directory, OPEN_FLAGS, Mode::empty()).ok()?;
    let attributes = attributes(opened.as_fd()).ok()?;
    if is_counted(&attributes) { quota(opened.as_fd(), attributes.project).ok().flatten() } else { None }
}

/// Limits what the directory takes to `bytes`, if it has a project of [`count`]. Returns whether it is limited.
pub(crate) fn limit(directory: &Path, bytes: u64) -> bool {
    let limit = || {
        let opened = rustix::fs::openat(CWD, directory, OPEN_FLAGS, Mode::empty())?;
        let attributes = attributes(opened.as_fd())?;
        if !is_counted(&attributes) {
            return Ok(false);
        }
        let blocks = bytes.div_ceil(BLOCK);
        let mut quota =
            Quota { block_hard_limit: blocks, block_soft_limit: blocks, valid: BLOCK_LIMITS, ..Quota::default() };
        control(opened.as_fd(), SET_QUOTA_OF_PROJECT, attributes.project, &mut quota).map(|()| true)
    };
    limit().unwrap_or_else(|error: io::Error| {
        tracing::warn!(path = %directory.display(), %error, "the size of a directory cannot be limited");
        false
    })
}

/// Whether the directory has a project of [`count`].
fn is_counted(attributes: &Attributes) -> bool {
    (FIRST_PROJECT..FIRST_PROJECT + MAX_PROJECTS_TRIED).contains(&attributes.project)
        && attributes.flags & INHERIT_PROJECT != 0
}

/// NOFOLLOW, because a container may replace a directory by a symlink.
const OPEN_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// An unused project. `None` if the file system does not count projects, or all are used.
fn unused(directory: BorrowedFd<'_>) -> Option<u32> {
    for project in FIRST_PROJECT..FIRST_PROJECT + MAX_PROJECTS_TRIED {
        match quota(directory, project) {
            Ok(None | Some(ProjectUsage { inodes: 0, .. })) => return Some(project),
            Ok(Some(_)) => {}
            Err(_) => return None,
        }
    }
    None
}

/// The disk usage of a project. `None`: it was never used.
fn quota(directory: BorrowedFd<'_>, project: u32) -> io::Result<Option<ProjectUsage>> {
    let mut quota = Quota::default();
    match control(directory, GET_QUOTA_OF_PROJECT, project, &mut quota) {
        Ok(()) => Ok(Some(ProjectUsage { bytes: quota.bytes, inodes: quota.inodes })),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Reads the quota of a project, or sets it, by the command.
#[allow(unsafe_code)]
fn control(directory: BorrowedFd<'_>, command: libc::c_uint, project: u32, quota: &mut Quota) -> io::Result<()> {
    let quota = std::ptr::from_mut(quota);
    // SAFETY: the descriptor is open as long as it is borrowed. The kernel reads or writes one `Quota`, of which every bit
    // pattern is one, and which nothing else refers to meanwhile.
    let result = unsafe { libc::syscall(SYS_QUOTACTL_FD, directory.as_raw_fd(), command, project, quota) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[allow(unsafe_code)]
fn attributes(directory: BorrowedFd<'_>) -> io::Result<Attributes> {
    // SAFETY: the opcode is that of FS_IOC_FSGETXATTR, which writes a `struct fsxattr`.
    Ok(unsafe { ioctl(directory, Getter::<GET_ATTRIBUTES, Attributes>::new()) }?)
}

#[allow(unsafe_code)]
fn set_attributes(directory: BorrowedFd<'_>, attributes: Attributes) -> io::Result<()> {
    // SAFETY: the opcode is that of FS_IOC_FSSETXATTR, which reads a `struct fsxattr`.
    Ok(unsafe { ioctl(directory, Setter::<SET_ATTRIBUTES, Attributes>::new(attributes)) }?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_structures_have_their_sizes() {
        assert_eq!((size_of::<Attributes>(), size_of::<Quota>()), (28, 72));
        assert_eq!((GET_ATTRIBUTES, SET_ATTRIBUTES), (0x801c_581f, 0x401c_5820));
    }

    #[test]
    fn a_directory_without_a_project_is_not_counted() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(usage(directory.path()), None);
        assert_eq!(usage(&directory.path().join("none")), None);
    }
}
