//! The identity of directories, independent of their paths, and where paths lead to.

use std::io::{self, ErrorKind};
use std::path::Path;

use limpet_model::directory_id::DirectoryId;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};

/// The identity of the directory `path` resolves to.
///
/// # Errors
/// The path does not resolve to a directory, or may not be searched.
pub fn directory_id(path: &Path) -> io::Result<DirectoryId> {
    DirectoryId::from_metadata(&path.metadata()?).ok_or_else(|| ErrorKind::NotADirectory.into())
}

/// Where a path leads to: a directory, and the mount that it was reached through. As long as both are the same, the directories
/// above are the same, too, unless symlinks are on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryIdentity {
    mount: u64,
    device: (u32, u32),
    inode: u64,
}

impl DirectoryIdentity {
    /// Where `path` leads to. `None`: to no directory, or the kernel has no numbers of mounts (Linux before 5.8).
    /// Blocks as long as a file system does.
    pub fn of(path: &Path) -> Option<Self> {
        Self::resolved(path, ResolveFlags::empty())
    }

    /// The same without waiting for a disk or a server. `None` also if the kernel would have to wait, or cannot report that
    /// (Linux before 5.12).
    pub fn of_cached(path: &Path) -> Option<Self> {
        Self::resolved(path, ResolveFlags::CACHED)
    }

    fn resolved(path: &Path, how: ResolveFlags) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(CWD, path, flags, Mode::empty(), how).ok()?;
        let (flags, wanted) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::MNT_ID);
        let found = statx(directory, c"", flags, wanted).ok()?;
        StatxFlags::from_bits_retain(found.stx_mask).contains(wanted).then_some(Self {
            mount: found.stx_mnt_id,
            device: (found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
        })
    }
}
