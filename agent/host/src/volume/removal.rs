//! Removes a pod's directory and nothing else.
//!
//! A container may have filled its volumes with anything: symlinks to any path, very deep trees, files created while
//! they are deleted. So mounts below are detached first, every directory is opened by a descriptor of its parent,
//! without following a symlink and without crossing into another mount, and the recursion is limited to
//! [`MAX_DEPTH`]: deeper directories are moved up to the top and removed from there.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use super::VolumeError;
use crate::confined::{self, Confinement};
use crate::mount_table;

/// How many directories are open at a time, which is also the depth of the recursion.
const MAX_DEPTH: usize = 32;

/// How often a directory to which a process still writes is emptied before that counts as an error.
const MAX_ROUNDS: usize = 8;

/// Removes the directory `name` in `parent`; a missing one counts as success.
pub(super) fn remove(parent: &Path, name: &str) -> Result<(), VolumeError> {
    let path = parent.join(name);
    detach_below(&path)?;
    remove_tree(parent, name).map_err(|errno| match errno {
        Errno::XDEV => VolumeError::Mounted(path),
        errno => VolumeError::io("remove", path)(errno.into()),
    })
}

/// Detaches every mount on and below `path`, the newest first; a busy one is freed with its last user.
pub(super) fn detach_below(path: &Path) -> Result<(), VolumeError> {
    let real = match path.canonicalize() {
        Ok(real) => real,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(VolumeError::io("stat", path)(error)),
    };
    let mounts = mount_table::mount_points().map_err(VolumeError::io("read", "/proc/self/mountinfo"))?;
    for mounted in mounts.iter().rev().filter(|mounted| mounted.starts_with(&real)) {
        match rustix::mount::unmount(mounted, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
            // It was unmounted with the mount below it, or is not a mount any more.
            Ok(()) | Err(Errno::NOENT | Errno::INVAL) => {}
            Err(errno) => return Err(VolumeError::io("unmount", mounted)(errno.into())),
        }
    }
    Ok(())
}

fn remove_tree(parent: &Path, name: &str) -> Result<(), Errno> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    let parent = match rustix::fs::openat(CWD, parent, directory(), Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    let top = match enter(&parent, &name) {
        Err(Errno::NOENT) => return Ok(()),
        // It is not a directory and was not created by the agent, but it occupies the path.
        Err(Errno::NOTDIR | Errno::LOOP) => return rustix::fs::unlinkat(&parent, &name, AtFlags::empty()),
        other => other?,
    };
    let mut removal = Removal { top: &top, moved_up: 0 };
    let mut rounds = 0;
    loop {
        let moved_before = removal.moved_up;
        removal.empty(&top, 0)?;
        match rustix::fs::unlinkat(&parent, &name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            // Directories that were moved up are removed in the next round, so each round makes the tree smaller.
            Err(Errno::NOTEMPTY) if removal.moved_up > moved_before => {}
            Err(Errno::NOTEMPTY) if rounds < MAX_ROUNDS => rounds += 1,
            Err(errno) => return Err(errno),
        }
    }
}

struct Removal<'a> {
    top: &'a OwnedFd,
    /// Directories moved to the top so far; the count is used for their names.
    moved_up: u64,
}

impl Removal<'_> {
    /// Removes the content of `dir`, down to the maximum depth.
    fn empty(&mut self, dir: &OwnedFd, depth: usize) -> Result<(), Errno> {
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match rustix::fs::unlinkat(dir, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                // For a directory POSIX specifies EPERM, Linux returns EISDIR.
                Err(Errno::ISDIR | Errno::PERM) if depth == MAX_DEPTH => self.move_up(dir, name)?,
                Err(Errno::ISDIR | Errno::PERM) => self.remove_dir(dir, name, depth)?,
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    fn remove_dir(&mut self, dir: &OwnedFd, name: &CStr, depth: usize) -> Result<(), Errno> {
        let inner = match enter(dir, name) {
            Err(Errno::NOENT) => return Ok(()),
            // It is a file that may not be unlinked (chattr +i).
            Err(Errno::NOTDIR | Errno::LOOP) => return Err(Errno::PERM),
            other => other?,
        };
        self.empty(&inner, depth + 1)?;
        match rustix::fs::unlinkat(dir, name, AtFlags::REMOVEDIR) {
            // A process still writes there, so the next round removes it.
            Ok(()) | Err(Errno::NOENT | Errno::NOTEMPTY) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    fn move_up(&mut self, dir: &OwnedFd, name: &CStr) -> Result<(), Errno> {
        // It must not be a mount, because renaming one is EBUSY.
        loop {
            self.moved_up += 1;
            let new = format!(".removed-{}", self.moved_up);
            match rustix::fs::renameat_with(dir, name, self.top, new, rustix::fs::RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => {}
                other => return other,
            }
        }
    }
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC
}

/// Opens a directory in `parent`: no symlink, and `EXDEV` for another mount.
fn enter(parent: &OwnedFd, name: &CStr) -> Result<OwnedFd, Errno> {
    let confinement = Confinement::BENEATH.without_symlinks().without_mounts();
    confined::open(parent, OsStr::from_bytes(name.to_bytes()), directory() | OFlags::NOFOLLOW, confinement)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn symlinks_are_removed_and_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let outside = base.path().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(outside.join("kept"), "").unwrap();
        let pod = base.path().join("pods/uid");
        std::fs::create_dir_all(pod.join("volumes/a")).unwrap();
        std::os::unix::fs::symlink(&outside, pod.join("volumes/a/link")).unwrap();
        std::os::unix::fs::symlink("/", pod.join("volumes/root")).unwrap();
        remove(&base.path().join("pods"), "uid").unwrap();
        assert!(!pod.exists());
        assert!(outside.join("kept").exists());
        remove(&base.path().join("pods"), "uid").unwrap();
        remove(&base.path().join("none"), "uid").unwrap();
    }

    #[test]
    fn a_symlink_instead_of_the_pods_directory_is_removed_itself() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("outside")).unwrap();
        std::os::unix::fs::symlink("outside", base.path().join("uid")).unwrap();
        remove(base.path(), "uid").unwrap();
        assert!(base.path().join("outside").exists());
        assert!(base.path().join("uid").symlink_metadata().is_err());
    }

    #[test]
    fn a_very_deep_tree_is_removed() {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("uid")).unwrap();
        let mut dir = rustix::fs::openat(CWD, base.path().join("uid"), directory(), Mode::empty()).unwrap();
        for _ in 0..3000 {
            rustix::fs::mkdirat(&dir, "d", Mode::from_raw_mode(0o755)).unwrap();
            rustix::fs::mkdirat(&dir, ".removed-1", Mode::from_raw_mode(0o755)).unwrap();
            dir = rustix::fs::openat(&dir, "d", directory(), Mode::empty()).unwrap();
        }
        remove(base.path(), "uid").unwrap();
        assert!(!base.path().join("uid").exists());
    }
}
