//! The socket on which the OCI runtime sends a terminal.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use crate::stdio::set_nonblocking;

/// A socket that receives one terminal. It is removed on drop.
#[derive(Debug)]
pub(crate) struct ConsoleSocket {
    listener: UnixListener,
    path: PathBuf,
}

impl ConsoleSocket {
    /// Listens at `path`, which has to be short.
    pub(crate) fn listen(path: PathBuf) -> io::Result<Self> {
        let listener = UnixListener::bind(&path)?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, path })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The terminal that a runtime sent before it exited.
    pub(crate) fn receive(&self) -> io::Result<OwnedFd> {
        let (connection, _) = self.listener.accept()?;
        connection.set_nonblocking(true)?;
        let mut name = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let buffer = &mut [io::IoSliceMut::new(&mut name)];
        rustix::net::recvmsg(&connection, buffer, &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let mut descriptors = ancillary.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        let terminal = descriptors.next().ok_or_else(|| io::Error::other("the OCI runtime sent no terminal"))?;
        set_nonblocking(&terminal)?;
        Ok(terminal)
    }
}

impl Drop for ConsoleSocket {
    fn drop(&mut self) {
        // A file that stays behind does no harm.
        let _ = std::fs::remove_file(&self.path);
    }
}
