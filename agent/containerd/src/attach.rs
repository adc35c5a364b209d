//! The input of a container, and the live output of a container with a terminal, for `limpet attach` and kubelet's
//! `/attach`.
//!
//! Both are in a directory of the container's own: the FIFO that containerd's shim reads as the container's stdin,
//! and the socket on which its logger sends what the container writes ([`limpet_log::writer`]). The agent opens them
//! only while a client is attached, so restarting the agent ends nothing.

use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use limpet_log::output_socket;
use rustix::fs::{CWD, FileType, Mode, OFlags};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{OpenOptions, Sender};

/// The FIFO's name.
const STDIN: &str = "stdin";
/// The link to limpet's executable, which recognizes its role by this name.
pub(crate) const RUNTIME_WITH_STDIN: &str = "runtime-with-stdin";
/// The name of the link to the OCI runtime that [`crate::stdin`] executes.
const RUNTIME: &str = "runtime";

/// The directory of one container's input and terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttachPoint {
    directory: PathBuf,
}

#[derive(Debug)]
pub struct AttachedStreams {
    /// The container's input, if it has one.
    pub stdin: Option<Sender>,
    /// The container's output from now on; ends when its process has exited.
    pub output: UnixStream,
}

impl AttachPoint {
    /// The directory of container `id` below `base`. Creates nothing yet.
    pub fn new(base: &Path, id: &str) -> Self {
        Self { directory: base.join(id) }
    }

    /// Creates the directory, private to root, with a FIFO if the container has a stdin. Removes what an earlier
    /// attempt left.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub fn make(&self, stdin: bool) -> io::Result<()> {
        self.remove();
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.directory)?;
        if stdin {
            rustix::fs::mknodat(CWD, self.stdin(), FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        }
        Ok(())
    }

    /// Creates the directory for a container without a terminal, with a FIFO and the link that starts `executable`,
    /// limpet's own, instead of `runtime`, a path or a program in the shim's `PATH`.
    ///
    /// # Errors
    ///
    /// The directory cannot be created.
    pub fn make_input(&self, executable: &Path, runtime: &Path) -> io::Result<()> {
        self.make(true)?;
        std::os::unix::fs::symlink(runtime, self.directory.join(RUNTIME))?;
        std::os::unix::fs::symlink(executable, self.runtime_with_stdin())
    }

    pub(crate) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// The link that is the shim's OCI runtime.
    pub(crate) fn runtime_with_stdin(&self) -> PathBuf {
        self.directory.join(RUNTIME_WITH_STDIN)
    }

    pub(crate) fn runtime(&self) -> io::Result<PathBuf> {
        fs::read_link(self.directory.join(RUNTIME))
    }

    /// Holds the FIFO open until the shim does: without a writer, its reader would get end of file.
    ///
    /// # Errors
    ///
    /// The FIFO does not exist.
    pub(crate) fn hold(&self) -> io::Result<OwnedFd> {
        Ok(rustix::fs::open(self.stdin(), OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
    }

    /// The path of the FIFO, for the container's task.
    pub fn stdin(&self) -> PathBuf {
        self.directory.join(STDIN)
    }

    /// The directory's path, for the logger.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Removes the directory, if there is one.
    pub(crate) fn remove(&self) {
        match fs::remove_dir_all(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::debug!(path = %self.directory.display(), %error, "removing the directory of a container's terminal failed; it remains until the next boot");
            }
            _ => {}
        }
    }

    /// Connects to the container's output, and to its input if `stdin` is set and the container has one.
    ///
    /// # Errors
    ///
    /// Its logger does not listen, or has stopped.
    pub async fn open(&self, stdin: bool) -> io::Result<AttachedStreams> {
        let (_directory, socket) = output_socket::path(&self.directory)?;
        let output = UnixStream::connect(socket).await?;
        let stdin = if stdin { self.open_input()? } else { None };
        Ok(AttachedStreams { stdin, output })
    }

    /// Connects to the container's input, if it has one that is open.
    ///
    /// # Errors
    ///
    /// The input has no reader: the process has exited, or has closed it.
    pub fn open_input(&self) -> io::Result<Option<Sender>> {
        // This open never blocks: the process, or the shim with a terminal, is the reader. As for commands, there is no
        // check that it is a FIFO: on armv7 it fails after 2038.
        match OpenOptions::new().unchecked(true).open_sender(self.stdin()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.map(Some),
        }
    }

    /// Prevents later clients from opening the input. Clients that have it open keep it.
    pub fn end_input(&self) {
        match fs::remove_file(self.stdin()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(path = %self.directory.display(), %error, "closing a container's standard input failed");
            }
            _ => {}
        }
    }
}
