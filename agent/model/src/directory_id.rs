//! Which directory something is, whatever its path.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

/// Device and inode of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DirectoryId {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
}

impl DirectoryId {
    /// The identity of what `metadata` describes; `None` when that is no directory.
    pub fn from_metadata(metadata: &Metadata) -> Option<Self> {
        metadata.is_dir().then(|| Self { device: metadata.dev(), inode: metadata.ino() })
    }
}
