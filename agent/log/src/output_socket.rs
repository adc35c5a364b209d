//! The socket at which the writer of a container's log passes on live output to attached clients.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

/// The socket's name.
const OUTPUT: &str = "output";

/// The path of the socket in `directory`, which is valid as long as the descriptor: the path of a socket must be short.
///
/// # Errors
/// The directory does not exist.
pub fn path(directory: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{OUTPUT}", opened.as_fd().as_raw_fd());
    Ok((opened, path.into()))
}
