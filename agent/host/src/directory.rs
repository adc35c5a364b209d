//! The identity of directories, independent of their paths.

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

/// The directory to which a path leads, and the mount through which it was reached. While both are the same, the
/// parent directories are the same too, unless the path contains symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirectoryIdentity {
    mount: u64,
    device: (u32, u32),
    inode: u64,
}

impl DirectoryIdentity {
    /// The identity of `path`. `None` if it does not lead to a directory, or the kernel has no mount ids (Linux
    /// before 5.8). Blocks as long as a file system does.
    pub fn resolve(path: &Path) -> Option<Self> {
        Self::resolved(path, ResolveFlags::empty())
    }

    /// The same without waiting for a disk or a server. `None` also if the kernel would have to wait, or cannot tell
    /// (Linux before 5.12).
    pub fn of_cached(path: &Path) -> Option<Self> {
        Self::resolved(path, ResolveFlags::CACHED)
    }

    fn resolved(path: &Path, how: ResolveFlags) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat2(CWD, path, flags, Mode::empty(), how).ok()?;
        let (flags, wanted) = (AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC, StatxFlags::INO | StatxFlags::MNT_ID);
        let attributes = statx(directory, c"", flags, wanted).ok()?;
        StatxFlags::from_bits_retain(attributes.stx_mask).contains(wanted).then_some(Self {
            mount: attributes.stx_mnt_id,
            device: (attributes.stx_dev_major, attributes.stx_dev_minor),
            inode: attributes.stx_ino,
        })
    }
}
