//! Opens a path below a directory whose content is untrusted, so that it cannot lead elsewhere even if it is changed
//! meanwhile.
//!
//! The kernel does this with openat2 (Linux 5.6). Before that, and where a seccomp profile refuses openat2, the path
//! is walked component by component, each opened without following it and each symlink read as text, with the same
//! result.

use std::collections::VecDeque;
use std::ffi::{CStr, CString, OsStr};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

/// The kernel's limit of symlinks in one path.
const MAX_LINKS: usize = 40;

/// How often to retry a path with `..` while files are being renamed.
const MAX_TRIES: usize = 64;

/// How a path is confined to its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Confinement {
    /// Whether the directory acts as the root, to which `/` and `..` at the top lead. Otherwise a path that leads out
    /// fails with `EXDEV`.
    is_root: bool,
    symlinks: bool,
    mounts: bool,
}

impl Confinement {
    /// Whatever leads out of the directory fails with `EXDEV`, even an absolute symlink.
    pub const BENEATH: Self = Self { is_root: false, symlinks: true, mounts: true };
    /// The directory is the root for every symlink, as in a container.
    pub const IN_ROOT: Self = Self { is_root: true, symlinks: true, mounts: true };

    /// A symlink in the path fails with `ELOOP`.
    #[must_use]
    pub const fn without_symlinks(self) -> Self {
        Self { symlinks: false, ..self }
    }

    /// Another mount in the path fails with `EXDEV`. Before Linux 5.6 this detects other file systems only.
    #[must_use]
    pub const fn without_mounts(self) -> Self {
        Self { mounts: false, ..self }
    }

    fn flags(self) -> ResolveFlags {
        let scope = if self.is_root { ResolveFlags::IN_ROOT } else { ResolveFlags::BENEATH };
        let symlinks = if self.symlinks { ResolveFlags::empty() } else { ResolveFlags::NO_SYMLINKS };
        let mounts = if self.mounts { ResolveFlags::empty() } else { ResolveFlags::NO_XDEV };
        scope | symlinks | mounts | ResolveFlags::NO_MAGICLINKS
    }
}

/// Opens `path` below `directory`, which exists, with these flags; creates nothing. Blocks.
///
/// # Errors
///
/// The path does not exist, leads out, or may not be opened.
pub fn open(
    directory: impl AsFd,
    path: impl AsRef<Path>,
    flags: OFlags,
    confinement: Confinement,
) -> Result<OwnedFd, Errno> {
    let (path, flags) = (path.as_ref(), flags | OFlags::CLOEXEC);
    for _ in 0..MAX_TRIES {
        match rustix::fs::openat2(&directory, path, flags, Mode::empty(), confinement.flags()) {
            // A concurrent rename or mount interfered.
            Err(Errno::AGAIN) => {}
            Err(Errno::NOSYS | Errno::PERM) => break,
            opened => return opened,
        }
    }
    walk(directory, path, flags, confinement)
}

/// What [`open`] does, without openat2.
fn walk(directory: impl AsFd, path: &Path, flags: OFlags, confinement: Confinement) -> Result<OwnedFd, Errno> {
    if path.as_os_str().is_empty() {
        return Err(Errno::NOENT);
    }
    let top = rustix::fs::openat(directory, c".", DIRECTORY, Mode::empty())?;
    let device = rustix::fs::fstat(&top)?.st_dev;
    let mut walk = Walk { top, below: Vec::new(), left: VecDeque::new(), links: 0, confinement, device };
    walk.lead(path.as_os_str())?;
    walk.open(flags)
}

/// Opens a directory with `O_PATH`.
const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Opens anything with `O_PATH`, even a symlink itself.
const NAME: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

struct Walk {
    top: OwnedFd,
    /// The directories that were entered, so that `..` never asks the file system for a parent.
    below: Vec<OwnedFd>,
    /// The names that are left.
    left: VecDeque<CString>,
    links: usize,
    confinement: Confinement,
    device: u64,
}

impl Walk {
    /// Continues with `path` from the current directory; `.` at its end stands for a trailing slash.
    fn lead(&mut self, path: &OsStr) -> Result<(), Errno> {
        let bytes = path.as_bytes();
        if bytes.starts_with(b"/") {
            if !self.confinement.is_root {
                return Err(Errno::XDEV);
            }
            self.below.clear();
        }
        let mut names: Vec<&[u8]> = bytes.split(|byte| *byte == b'/').filter(|name| !name.is_empty()).collect();
        if bytes.ends_with(b"/") {
            names.push(b".");
        }
        for name in names.into_iter().rev() {
            self.left.push_front(CString::new(name).map_err(|_| Errno::INVAL)?);
        }
        Ok(())
    }

    fn open(mut self, flags: OFlags) -> Result<OwnedFd, Errno> {
        while let Some(name) = self.left.pop_front() {
            match name.as_bytes() {
                b"." => {}
                b".." => {
                    if self.below.pop().is_none() && !self.confinement.is_root {
                        return Err(Errno::XDEV);
                    }
                }
                _ => {
                    if let Some(opened) = self.enter(&name, flags)? {
                        return Ok(opened);
                    }
                }
            }
        }
        rustix::fs::openat(self.here(), c".", flags, Mode::empty())
    }

    fn here(&self) -> &OwnedFd {
        self.below.last().unwrap_or(&self.top)
    }

    /// Enters the directory with this name, or follows the symlink. Returns the opened file at the end of the path.
    fn enter(&mut self, name: &CStr, flags: OFlags) -> Result<Option<OwnedFd>, Errno> {
        let entry = rustix::fs::openat(self.here(), name, NAME, Mode::empty())?;
        let stat = rustix::fs::fstat(&entry)?;
        let is_last = self.left.is_empty();
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink if !(is_last && flags.contains(OFlags::NOFOLLOW)) => {
                self.follow(&entry)?;
                Ok(None)
            }
            FileType::Directory => {
                self.check_device(&stat)?;
                self.below.push(entry);
                Ok(None)
            }
            _ if !is_last => Err(Errno::NOTDIR),
            _ if flags.contains(OFlags::PATH | OFlags::DIRECTORY) => Err(Errno::NOTDIR),
            // A replacement that appears meanwhile, such as a symlink, is not opened.
            _ if flags.contains(OFlags::PATH) => Ok(Some(entry)),
            _ => rustix::fs::openat(self.here(), name, flags | OFlags::NOFOLLOW, Mode::empty()).map(Some),
        }
    }

    /// A magic link of `/proc` is read as text here too, so it leads no further than other links.
    fn follow(&mut self, link: &OwnedFd) -> Result<(), Errno> {
        self.links += 1;
        if !self.confinement.symlinks || self.links > MAX_LINKS {
            return Err(Errno::LOOP);
        }
        let target = rustix::fs::readlinkat(link, c"", Vec::new())?;
        self.lead(OsStr::from_bytes(target.as_bytes()))
    }

    /// Checks directories only, because an overlay may report other devices for their files.
    fn check_device(&self, stat: &Stat) -> Result<(), Errno> {
        if self.confinement.mounts || stat.st_dev == self.device { Ok(()) } else { Err(Errno::XDEV) }
    }
}

#[cfg(test)]
#[path = "confined_tests.rs"]
mod tests;
