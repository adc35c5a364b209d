//! Attached clients, which get the container's output as it comes, in addition to the log.

use std::io::{self, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::output_socket;

/// The most clients at once.
const MAX_FOLLOWERS: usize = 8;
/// How long a client that reads nothing may block the container before it is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The socket and the connected clients.
#[derive(Debug, Default)]
pub(super) struct Followers {
    listener: Option<UnixListener>,
    clients: Vec<UnixStream>,
}

impl Followers {
    /// Listens in the directory of a container's terminal. Logging does not depend on it: without a socket clients
    /// cannot attach.
    pub(super) fn listen(directory: &Path) -> Self {
        Self { listener: bind(directory).ok(), clients: Vec::new() }
    }

    /// The socket to poll for clients.
    pub(super) fn listener(&self) -> Option<&UnixListener> {
        self.listener.as_ref()
    }

    /// Accepts a client.
    pub(super) fn accept(&mut self) {
        let Some(listener) = &self.listener else { return };
        match listener.accept() {
            Ok((client, _)) => {
                self.clients.retain(is_connected);
                if self.clients.len() < MAX_FOLLOWERS && client.set_write_timeout(Some(SEND_TIMEOUT)).is_ok() {
                    self.clients.push(client);
                }
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {}
            // It would fail again and again.
            Err(_) => self.listener = None,
        }
    }

    /// Passes output on, and drops clients that have gone or do not read.
    pub(super) fn pass_on(&mut self, output: &[u8]) {
        self.clients.retain_mut(|client| client.write_all(output).is_ok());
    }
}

fn bind(directory: &Path) -> io::Result<UnixListener> {
    let (_directory, socket) = output_socket::path(directory)?;
    // Left by a logger that was killed.
    let _ = std::fs::remove_file(&socket);
    let listener = UnixListener::bind(socket)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Whether the other end is still open.
fn is_connected(client: &UnixStream) -> bool {
    let mut poll = [PollFd::new(client, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut poll, Some(&at_once)).is_err() || poll[0].revents().is_empty()
}
