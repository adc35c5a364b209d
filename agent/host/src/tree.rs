//! The files below a directory that may be of anybody: no symlink is followed, no device or pipe is opened, and nothing below
//! another mount is looked at. What is done with each file is the caller's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

/// Directories that are open at a time.
pub(crate) const MAX_DEPTH: usize = 128;

/// The file at `path`, as a path alone: a symlink is the file itself.
pub(crate) fn file(path: impl Arg) -> Result<(OwnedFd, Stat), Errno> {
    at(CWD, path)
}

/// Visits every file below `directory`, each as a path alone, before what is below it. Returns whether that was all of
/// them: what is below [`MAX_DEPTH`] directories is not. A file that is removed meanwhile is left out. Blocks.
///
/// # Errors
/// A directory cannot be read, or those of `visit`.
pub(crate) fn visit_below(
    directory: &OwnedFd,
    visit: &mut impl FnMut(&OwnedFd, &Stat) -> io::Result<()>,
) -> io::Result<bool> {
    let device = rustix::fs::fstat(directory)?.st_dev;
    below(directory, device, 0, visit)
}

fn below(
    directory: &OwnedFd,
    device: u64,
    depth: usize,
    visit: &mut impl FnMut(&OwnedFd, &Stat) -> io::Result<()>,
) -> io::Result<bool> {
    if depth >= MAX_DEPTH {
        return Ok(false);
    }
    let mut whole = true;
    for entry in Dir::read_from(open(directory)?)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match one(directory, name, device, depth, visit) {
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => whole &= found?,
        }
    }
    Ok(whole)
}

fn one(
    parent: &OwnedFd,
    name: impl Arg,
    device: u64,
    depth: usize,
    visit: &mut impl FnMut(&OwnedFd, &Stat) -> io::Result<()>,
) -> io::Result<bool> {
    let (file, found) = at(parent, name)?;
    if found.st_dev != device {
        return Ok(true);
    }
    visit(&file, &found)?;
    match FileType::from_raw_mode(found.st_mode) {
        FileType::Directory => below(&file, device, depth + 1, visit),
        _ => Ok(true),
    }
}

fn at(parent: impl AsFd, name: impl Arg) -> Result<(OwnedFd, Stat), Errno> {
    let file = rustix::fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let found = rustix::fs::fstat(&file)?;
    Ok((file, found))
}

/// Opens a directory for reading that is known as a path alone.
fn open(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c".", flags, Mode::empty())
}
