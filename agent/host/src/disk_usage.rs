//! How much a directory takes on its disk: what its file system has counted, or else a walk that is bounded in time and
//! entries, stays on one file system and follows no symlink.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, Dir, Mode, OFlags};

use crate::project_quota;

/// The size of a block of `stat`.
const BLOCK_SIZE: u64 = 512;

/// A walk ends after so many files and directories: each one costs a call, and a hard link's number is kept meanwhile.
const MAX_ENTRIES: u64 = 1_000_000;

/// What is allocated on a disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

/// What a walk has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    /// What was seen: never more than there is.
    pub seen: DiskUsage,
    /// Whether that is all: the walk was not cut short.
    pub complete: bool,
}

impl Walk {
    /// What there is, if all of it was seen.
    pub fn whole(self) -> Option<DiskUsage> {
        self.complete.then_some(self.seen)
    }
}

/// What is allocated for `path` and all below it, or for what was seen of it by `until`. A missing one takes nothing, and
/// what vanishes meanwhile neither.
///
/// # Errors
/// It cannot be read.
pub fn disk_usage(path: &Path, until: Instant) -> io::Result<Walk> {
    let top = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Walk { complete: true, ..Walk::default() }),
        top => top?,
    };
    if let Some(counted) = top.is_dir().then(|| project_quota::usage(path)).flatten() {
        return Ok(Walk { seen: DiskUsage { bytes: counted.bytes, inodes: counted.inodes }, complete: true });
    }
    let (mut seen, mut linked) = (DiskUsage { bytes: top.blocks() * BLOCK_SIZE, inodes: 1 }, HashSet::new());
    let mut directories = if top.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(directory) = directories.pop() {
        if Instant::now() >= until || seen.inodes >= MAX_ENTRIES {
            return Ok(Walk { seen, complete: false });
        }
        // NOFOLLOW: a container may put a symlink in the place of what was a directory.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(opened) = rustix::fs::openat(CWD, &directory, flags, Mode::empty()) else { continue };
        for entry in Dir::new(opened)?.flatten() {
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            let path = directory.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(name));
            let Ok(found) = path.symlink_metadata() else { continue };
            if found.dev() != top.dev() || found.nlink() > 1 && !found.is_dir() && !linked.insert(found.ino()) {
                continue;
            }
            seen += DiskUsage { bytes: found.blocks() * BLOCK_SIZE, inodes: 1 };
            if found.is_dir() {
                directories.push(path);
            }
        }
    }
    Ok(Walk { seen, complete: true })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn allocated_bytes_count_once_and_only_in_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (root, outside) = (dir.path().join("root"), dir.path().join("outside"));
        std::fs::create_dir_all(root.join("sub/deep")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        let later = Instant::now() + Duration::from_secs(600);
        let bytes = |path: &Path, until| disk_usage(path, until).unwrap().seen.bytes;
        let empty = bytes(&root, later);
        std::fs::write(root.join("sub/deep/file"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(root.join("sub/deep/file"), root.join("again")).unwrap();
        std::fs::write(outside.join("file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::fs::File::create(root.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let used = bytes(&root, later) - empty;
        assert!((1 << 20..2 << 20).contains(&used), "{used}");
        let walk = disk_usage(&root, later).unwrap();
        let inodes = walk.whole().unwrap().inodes;
        assert_eq!(inodes, 6, "the root, two directories, two files, a link; a hard link is no inode of its own");
        let cut = disk_usage(&root, Instant::now()).unwrap();
        assert!(cut.seen.bytes < 1 << 20 && cut.whole().is_none(), "no time left: what was seen");
        assert_eq!(disk_usage(&root.join("none"), later).unwrap().whole(), Some(DiskUsage::default()));
    }
}
