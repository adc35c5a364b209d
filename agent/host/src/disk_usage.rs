//! How much a directory takes on its disk: a walk that has a deadline, stays on one file system and follows no symlink.

use std::collections::HashSet;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{CWD, Dir, Mode, OFlags};

/// The size of a block of `stat`.
const BLOCK: u64 = 512;

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

/// What is allocated for `path` and all below it, or for what was seen of it by `until`: never more than there is. A
/// missing one takes nothing, and what vanishes meanwhile neither.
///
/// # Errors
/// It cannot be read.
pub fn disk_usage(path: &Path, until: Instant) -> io::Result<DiskUsage> {
    let top = match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DiskUsage::default()),
        top => top?,
    };
    let (mut used, mut linked) = (DiskUsage { bytes: top.blocks() * BLOCK, inodes: 1 }, HashSet::new());
    let mut directories = if top.is_dir() { vec![path.to_owned()] } else { Vec::new() };
    while let Some(directory) = directories.pop() {
        if Instant::now() >= until {
            break;
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
            used += DiskUsage { bytes: found.blocks() * BLOCK, inodes: 1 };
            if found.is_dir() {
                directories.push(path);
            }
        }
    }
    Ok(used)
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
        let bytes = |path: &Path, until| disk_usage(path, until).unwrap().bytes;
        let empty = bytes(&root, later);
        std::fs::write(root.join("sub/deep/file"), vec![1; 1 << 20]).unwrap();
        std::fs::hard_link(root.join("sub/deep/file"), root.join("again")).unwrap();
        std::fs::write(outside.join("file"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink(&outside, root.join("link")).unwrap();
        std::fs::File::create(root.join("sparse")).unwrap().set_len(1 << 30).unwrap();
        let used = bytes(&root, later) - empty;
        assert!((1 << 20..2 << 20).contains(&used), "{used}");
        let inodes = disk_usage(&root, later).unwrap().inodes;
        assert_eq!(inodes, 6, "the root, two directories, two files, a link; a hard link is no inode of its own");
        assert!(bytes(&root, Instant::now()) < 1 << 20, "no time left: what was seen");
        assert_eq!(disk_usage(&root.join("none"), later).unwrap(), DiskUsage::default());
    }
}
