//! File systems that change without inotify events, because another host, a user-space program, or the layers below
//! an overlay change them.

use std::path::{Path, PathBuf};

use rustix::fs::{stat, statfs, statvfs};

use crate::blocking::{self, DEADLINE};
use crate::disk_usage::DiskUsage;

/// By `statfs` type (`linux/magic.h`, and the file systems' own headers).
const INODE_HIDING_FILE_SYSTEMS: [(u32, &str); 13] = [
    (0x6969, "NFS"),
    (0xff53_4d42, "CIFS"),
    (0xfe53_4d42, "SMB"),
    (0x517b, "SMB 1"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE"),
    (0x794c_7630, "overlay"),
    (0x00c3_6400, "Ceph"),
    (0x5346_414f, "AFS"),
    (0x7375_7245, "Coda"),
    (0x786f_4256, "vboxsf"),
    (0x0116_1970, "GFS2"),
    (0x7461_636f, "OCFS2"),
];

/// The name of the file system at `path` if it hides changes; `None` if the path does not exist. Blocks.
pub fn hides_changes(path: &Path) -> Option<&'static str> {
    // The magic numbers have 32 bits; the field is wider on some architectures, and signed.
    let magic = statfs(path).ok()?.f_type as u32;
    INODE_HIDING_FILE_SYSTEMS.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// The size in bytes.
    pub capacity: u64,
    /// The available bytes without root's reserve.
    pub available: u64,
    /// The available bytes with root's reserve.
    pub free: u64,
    /// The number of inodes; zero if the file system creates them on demand.
    pub inodes: u64,
    /// The number of free inodes.
    pub inodes_free: u64,
    /// The device, which identifies the file system.
    pub device: u64,
}

impl Space {
    /// The used part.
    pub fn used(&self) -> DiskUsage {
        DiskUsage {
            bytes: self.capacity.saturating_sub(self.free),
            inodes: self.inodes.saturating_sub(self.inodes_free),
        }
    }
}

/// The space of the file system at `path`, which may not respond.
///
/// # Errors
///
/// As [`space`], and `TimedOut` without an answer.
pub async fn space_of(path: PathBuf) -> std::io::Result<Space> {
    blocking::run(path.clone(), DEADLINE, move |_| space(&path)).await?
}

/// The space of the file system at `path`. Blocks.
///
/// # Errors
/// The path does not exist, or its file system fails.
pub fn space(path: &Path) -> std::io::Result<Space> {
    let statistics = statvfs(path)?;
    Ok(Space {
        capacity: statistics.f_blocks * statistics.f_frsize,
        available: statistics.f_bavail * statistics.f_frsize,
        free: statistics.f_bfree * statistics.f_frsize,
        inodes: statistics.f_files,
        inodes_free: statistics.f_ffree,
        device: stat(path)?.st_dev,
    })
}
