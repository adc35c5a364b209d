//! The disk usage of a directory: from its file system's counters, or else by a walk that stays on one file system
//! and follows no symlink.
//!
//! A pod controls what is in its directories. So the walk uses descriptors, stores no path, and is bounded in time,
//! entries, open directories and memory, all checked at every entry.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Instant;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use crate::project_quota;

/// The size of `stat`'s blocks in bytes.
const BLOCK_SIZE: u64 = 512;

/// The bounds of a walk.
#[derive(Debug, Clone, Copy)]
struct Limits {
    until: Instant,
    /// The most files and directories, each of which costs a call.
    entries: u64,
    /// The most files with several hard links, whose inode numbers are stored: 5 MiB in all.
    linked: usize,
    /// The most directories that are open on the way down, and the most deeper ones that wait.
    open: usize,
}

impl Limits {
    const fn until(until: Instant) -> Self {
        Self { until, entries: 1_000_000, linked: 1 << 18, open: 64 }
    }
}

/// Allocated disk space.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskUsage {
    pub bytes: u64,
    /// The number of files and directories.
    pub inodes: u64,
}

impl std::ops::AddAssign for DiskUsage {
    fn add_assign(&mut self, other: Self) {
        self.bytes += other.bytes;
        self.inodes += other.inodes;
    }
}

/// The result of a walk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Walk {
    /// The usage seen, which never exceeds the actual usage.
    pub seen: DiskUsage,
    /// Whether the walk was not cut short.
    pub complete: bool,
}

impl Walk {
    /// The usage, if the walk was complete.
    pub fn whole(self) -> Option<DiskUsage> {
        self.complete.then_some(self.seen)
    }
}

/// The usage of `path` and everything below it, as far as it was seen by `until`. Missing files count as nothing,
/// even if they vanish meanwhile.
///
/// # Errors
///
/// `path` cannot be read.
pub fn disk_usage(path: &Path, until: Instant) -> io::Result<Walk> {
    walk(path, Limits::until(until))
}

fn walk(path: &Path, limits: Limits) -> io::Result<Walk> {
    let top = match rustix::fs::lstat(path) {
        Err(Errno::NOENT) => return Ok(Walk { complete: true, ..Walk::default() }),
        top => top?,
    };
    let mut count = Count { seen: DiskUsage::default(), linked: HashSet::new(), device: top.st_dev, limits };
    count.add(&top);
    if !is_directory(&top) {
        return Ok(Walk { seen: count.seen, complete: true });
    }
    if let Some(counted) = project_quota::usage(path) {
        return Ok(Walk { seen: DiskUsage { bytes: counted.bytes, inodes: counted.inodes }, complete: true });
    }
    let complete = count.below(rustix::fs::openat(CWD, path, DIRECTORY, Mode::empty())?)?;
    Ok(Walk { seen: count.seen, complete })
}

/// NOFOLLOW, because a container may replace a directory by a symlink.
const DIRECTORY: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

struct Count {
    seen: DiskUsage,
    /// The inode numbers of files with several hard links that were counted.
    linked: HashSet<u64>,
    device: u64,
    limits: Limits,
}

impl Count {
    /// Counts everything below a directory. Returns whether that was complete.
    fn below(&mut self, top: OwnedFd) -> io::Result<bool> {
        let (mut whole, mut tops) = (true, vec![top]);
        while let Some(top) = tops.pop() {
            let mut open = vec![Dir::new(top)?];
            while let Some(directory) = open.last_mut() {
                let entry = match directory.read() {
                    Some(Ok(entry)) => entry,
                    end => {
                        whole &= end.is_none();
                        open.pop();
                        continue;
                    }
                };
                let name = entry.file_name();
                if name == c"." || name == c".." {
                    continue;
                }
                if self.is_spent() {
                    return Ok(false);
                }
                let parent = directory.fd()?;
                let Ok(stat) = rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
                if !self.add(&stat) || !is_directory(&stat) {
                    continue;
                }
                match rustix::fs::openat(parent, name, DIRECTORY, Mode::empty()) {
                    Ok(inner) if open.len() < self.limits.open => open.push(Dir::new(inner)?),
                    Ok(inner) if tops.len() < self.limits.open => tops.push(inner),
                    // Removed or replaced meanwhile.
                    Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {}
                    _ => whole = false,
                }
            }
        }
        Ok(whole)
    }

    fn is_spent(&self) -> bool {
        self.seen.inodes >= self.limits.entries
            || self.linked.len() >= self.limits.linked
            || Instant::now() >= self.limits.until
    }

    /// Counts a file. Returns whether it is on the same file system and was not counted before.
    #[allow(clippy::useless_conversion)] // the types of a Stat differ between architectures
    fn add(&mut self, stat: &Stat) -> bool {
        let is_new = || is_directory(stat) || stat.st_nlink <= 1;
        if stat.st_dev != self.device || !(is_new() || self.linked.insert(stat.st_ino.into())) {
            return false;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
        self.seen += DiskUsage { bytes: blocks * BLOCK_SIZE, inodes: 1 };
        true
    }
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

    fn limits() -> Limits {
        Limits::until(Instant::now() + Duration::from_secs(600))
    }

    #[test]
    fn a_file_deeper_than_any_path_counts() {
        let dir = tempfile::tempdir().unwrap();
        let mut inner = rustix::fs::openat(CWD, dir.path(), DIRECTORY, Mode::empty()).unwrap();
        let name = "d".repeat(200);
        for _ in 0..300 {
            rustix::fs::mkdirat(&inner, &name, Mode::RWXU).unwrap();
            inner = rustix::fs::openat(&inner, &name, DIRECTORY, Mode::empty()).unwrap();
        }
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&inner, "file", flags, Mode::RWXU).unwrap();
        std::io::Write::write_all(&mut std::fs::File::from(file), &vec![1; 1 << 20]).unwrap();
        let result = walk(dir.path(), limits()).unwrap();
        assert!(result.complete && result.seen.inodes == 302 && result.seen.bytes >= 1 << 20, "{result:?}");
    }

    #[test]
    fn the_limits_hold_within_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        for number in 0..50 {
            std::fs::create_dir_all(dir.path().join(format!("wide/{number}/a/b"))).unwrap();
            std::fs::hard_link(dir.path().join("file"), dir.path().join(format!("link{number}"))).unwrap();
            std::fs::write(dir.path().join(format!("one{number}")), "").unwrap();
            let (target, other) = (format!("one{number}"), format!("other{number}"));
            std::fs::hard_link(dir.path().join(target), dir.path().join(other)).unwrap();
        }
        let all = walk(dir.path(), limits()).unwrap();
        assert_eq!((all.complete, all.seen.inodes), (true, 1 + 1 + 50 + 1 + 150));
        let few = walk(dir.path(), Limits { entries: 10, ..limits() }).unwrap();
        assert_eq!((few.complete, few.seen.inodes), (false, 10));
        let linked = walk(dir.path(), Limits { linked: 20, ..limits() }).unwrap();
        assert!(!linked.complete && linked.seen.inodes < 203, "{linked:?}");
        // With two open directories, deeper ones wait, two at a time, and the rest is skipped.
        let deep = walk(dir.path(), Limits { open: 2, ..limits() }).unwrap();
        assert_eq!((deep.complete, deep.seen.inodes), (false, 103 + 4));
    }
}
