//! The input and the live output of a container with a terminal: `limpet attach` and kubelet's `/attach`.
//!
//! Both are in a directory of the container's own: the FIFO that containerd's shim reads as the container's stdin, and the socket at which
//! its logger passes on what the container writes ([`crate::log::writer`]). The agent opens them only while somebody is attached, so
//! its own restart ends nothing.

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{OpenOptions, Sender};

/// The FIFO's name.
const STDIN: &str = "stdin";
/// The socket's name.
const OUTPUT: &str = "output";

/// The directory of one container's terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachPoint {
    directory: PathBuf,
}

/// What a client is connected with.
#[derive(Debug)]
pub struct Ends {
    /// The container's input, if it has one.
    pub stdin: Option<Sender>,
    /// What it writes from now on; ends when its process has exited.
    pub output: UnixStream,
}

impl AttachPoint {
    /// That of the container `id` below `base`. Nothing is created yet.
    pub fn new(base: &Path, id: &str) -> Self {
        Self { directory: base.join(id) }
    }

    /// Creates the directory, for root alone, with a FIFO if the container has a stdin. What an earlier try has left is removed.
    ///
    /// # Errors
    /// When it cannot be created.
    pub fn make(&self, stdin: bool) -> io::Result<()> {
        self.remove();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        if stdin {
            rustix::fs::mknodat(CWD, self.stdin(), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        }
        Ok(())
    }

    /// The FIFO, for the container's task.
    pub fn stdin(&self) -> PathBuf {
        self.directory.join(STDIN)
    }

    /// The directory, for the logger.
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the directory, if there is one.
    pub(crate) fn remove(&self) {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %self.directory.display(), %error, "a container's terminal stays until the next boot");
            }
            _ => {}
        }
    }

    /// Connects with the container's output, and with its input if `stdin` asks for it and it has one.
    ///
    /// # Errors
    /// When its logger does not listen, or no longer.
    pub async fn open(&self, stdin: bool) -> io::Result<Ends> {
        let (_directory, socket) = socket(&self.directory)?;
        let output = UnixStream::connect(socket).await?;
        let stdin = match stdin {
            // Opening it so never waits: the shim is its reader as long as the process runs.
            true => match OpenOptions::new().open_sender(self.stdin()) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => None,
                opened => Some(opened?),
            },
            false => None,
        };
        Ok(Ends { stdin, output })
    }
}

/// The path of the socket in `directory`, which is valid as long as the descriptor: the path of a socket must be short.
pub(crate) fn socket(directory: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}/{OUTPUT}", opened.as_fd().as_raw_fd());
    Ok((opened, path.into()))
}
