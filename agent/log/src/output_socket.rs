//! The socket on which the writer of a container's log passes live output on to attached clients.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};

const OUTPUT: &str = "output";

/// The path of the socket in `directory`, valid while the descriptor is open. It goes through the descriptor because
/// a socket's path must be short.
///
/// # Errors
///
/// The directory does not exist.
pub fn path(directory: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{OUTPUT}", opened.as_fd().as_raw_fd());
    Ok((opened, path.into()))
}
