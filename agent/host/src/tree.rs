//! Walks untrusted files below a directory: follows no symlink, opens no device or pipe, and skips other mounts. The
//! caller decides what to do with each file.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::path::Arg;

/// The deepest nesting that is walked, and thus the most open directories.
pub(crate) const MAX_DEPTH: usize = 128;

/// Opens the file at `path` with `O_PATH`; a symlink is opened itself.
pub(crate) fn file(path: impl Arg) -> Result<(OwnedFd, Stat), Errno> {
    at(CWD, path)
}

/// Visits every file below `directory`, opened with `O_PATH`, before the files below it. Returns whether all were
/// visited: those below [`MAX_DEPTH`] directories are not. A file that is removed meanwhile is skipped. Blocks.
///
/// # Errors
///
/// A directory cannot be read, or `visit` fails.
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
        match visit_entry(directory, name, device, depth, visit) {
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => whole &= outcome?,
        }
    }
    Ok(whole)
}

fn visit_entry(
    parent: &OwnedFd,
    name: impl Arg,
    device: u64,
    depth: usize,
    visit: &mut impl FnMut(&OwnedFd, &Stat) -> io::Result<()>,
) -> io::Result<bool> {
    let (file, stat) = at(parent, name)?;
    if stat.st_dev != device {
        return Ok(true);
    }
    visit(&file, &stat)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => below(&file, device, depth + 1, visit),
        _ => Ok(true),
    }
}

fn at(parent: impl AsFd, name: impl Arg) -> Result<(OwnedFd, Stat), Errno> {
    let file = rustix::fs::openat(parent, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let attributes = rustix::fs::fstat(&file)?;
    Ok((file, attributes))
}

/// Opens a directory for reading that was opened with `O_PATH`.
fn open(directory: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::openat(directory, c".", flags, Mode::empty())
}
