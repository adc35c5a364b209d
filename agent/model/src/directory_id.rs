//! The identity of a directory, independent of its path.

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
    /// The identity of the directory that `metadata` describes; `None` if it is not a directory.
    pub fn from_metadata(metadata: &Metadata) -> Option<Self> {
        metadata.is_dir().then(|| Self { device: metadata.dev(), inode: metadata.ino() })
    }
}
