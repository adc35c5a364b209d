//! File systems that change without inotify events: another host, a user-space program, or the layers below an overlay
//! changes them.

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

/// The name of the file system at `path` if it hides changes; `None` for a missing path. Blocks.
pub fn hides_changes(path: &Path) -> Option<&'static str> {
    // The magic numbers have 32 bits; the field is wider on some architectures, and signed.
    let found = statfs(path).ok()?.f_type as u32;
    INODE_HIDING_FILE_SYSTEMS.iter().find(|(number, _)| *number == found).map(|(_, name)| *name)
}

/// The space of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// All bytes.
    pub capacity: u64,
    /// Bytes that can still be written without root's reserve.
    pub available: u64,
    /// Bytes that can still be written with it.
    pub free: u64,
    /// All inodes; zero where the file system makes them as needed.
    pub inodes: u64,
    /// Inodes that are not used.
    pub inodes_free: u64,
    /// Which file system it is: its device.
    pub device: u64,
}

impl Space {
    /// What is taken of it.
    pub fn used(&self) -> DiskUsage {
        DiskUsage {
            bytes: self.capacity.saturating_sub(self.free),
            inodes: self.inodes.saturating_sub(self.inodes_free),
        }
    }
}

/// The space of the file system at `path`, which may not answer.
///
/// # Errors
/// As [`space`], and `TimedOut` without an answer.
pub async fn space_of(path: PathBuf) -> std::io::Result<Space> {
    blocking::run(path.clone(), DEADLINE, move |_| space(&path)).await?
}

/// The space of the file system at `path`. Blocks.
///
/// # Errors
/// The path does not exist, or its file system fails.
pub fn space(path: &Path) -> std::io::Result<Space> {
    let found = statvfs(path)?;
    Ok(Space {
        capacity: found.f_blocks * found.f_frsize,
        available: found.f_bavail * found.f_frsize,
        free: found.f_bfree * found.f_frsize,
        inodes: found.f_files,
        inodes_free: found.f_ffree,
        device: stat(path)?.st_dev,
    })
}
