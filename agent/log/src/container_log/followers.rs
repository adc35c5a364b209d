//! Attached clients, which get the container's output as it comes, in addition to the log.
//!
//! Sending never waits, because the process may serve other containers. A client that does not take its output holds
//! back that of its container alone: the log's owner reads no further until the client has taken it or is dropped.

use std::io::{self, ErrorKind, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};

use crate::output_socket;

/// The most clients at once.
const MAX_FOLLOWERS: usize = 8;
/// How long a client that takes nothing may hold back the container's output before it is dropped.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);
/// The most bytes that are kept for a client: what a terminal or a pipe still has when its container is deleted.
const MAX_UNSENT: usize = 256 << 10;

/// The socket and the connected clients.
#[derive(Debug, Default)]
pub(super) struct Followers {
    listener: Option<UnixListener>,
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    socket: UnixStream,
    /// Output that it has not taken yet.
    unsent: Vec<u8>,
    /// When it last took something, if there is unsent output.
    waits_since: Option<Instant>,
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
            Ok((socket, _)) => {
                self.clients.retain(|client| is_connected(&client.socket));
                if self.clients.len() < MAX_FOLLOWERS && socket.set_nonblocking(true).is_ok() {
                    self.clients.push(Client { socket, unsent: Vec::new(), waits_since: None });
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            // It would fail again and again.
            Err(_) => self.listener = None,
        }
    }

    /// Passes output on, and drops clients that have gone.
    pub(super) fn pass_on(&mut self, output: &[u8]) {
        if self.clients.is_empty() {
            return;
        }
        let now = Instant::now();
        self.clients.retain_mut(|client| client.send(output, now));
    }

    /// The first client that has not taken its output; nothing more is read for it.
    pub(super) fn blocked(&self) -> Option<&UnixStream> {
        self.clients.iter().find(|client| client.waits_since.is_some()).map(|client| &client.socket)
    }

    /// Sends what clients take now, and drops those that have gone or took nothing for too long.
    pub(super) fn send_unsent(&mut self, now: Instant) {
        self.clients.retain_mut(|client| {
            client.send(&[], now)
                && client.waits_since.is_none_or(|since| now.saturating_duration_since(since) < SEND_TIMEOUT)
        });
    }

    /// How long until a client that takes nothing is dropped; `None` if each has taken everything.
    pub(super) fn timeout(&self, now: Instant) -> Option<Duration> {
        let waits = self.clients.iter().filter_map(|client| client.waits_since);
        waits.min().map(|since| SEND_TIMEOUT.saturating_sub(now.saturating_duration_since(since)))
    }
}

impl Client {
    /// Sends unsent and new output as far as the socket takes it. Returns false if the client has gone.
    fn send(&mut self, output: &[u8], now: Instant) -> bool {
        if self.unsent.len() + output.len() > MAX_UNSENT {
            return false;
        }
        self.unsent.extend_from_slice(output);
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.socket.write(&self.unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        self.unsent.drain(..sent);
        if self.unsent.is_empty() {
            // Most clients take everything at once, so the buffer is freed.
            (self.unsent, self.waits_since) = (Vec::new(), None);
        } else if sent > 0 || self.waits_since.is_none() {
            self.waits_since = Some(now);
        }
        true
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read as _;

    use super::*;

    /// Followers with one client, and the other end of its socket.
    fn followers() -> (Followers, UnixStream) {
        let (socket, theirs) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let client = Client { socket, unsent: Vec::new(), waits_since: None };
        (Followers { listener: None, clients: vec![client] }, theirs)
    }

    /// Passes output on until the client takes no more. Returns how many bytes that were.
    fn fill(followers: &mut Followers) -> usize {
        let mut passed = 0;
        while followers.blocked().is_none() {
            followers.pass_on(&[b'x'; 16 << 10]);
            passed += 16 << 10;
        }
        passed
    }

    #[test]
    fn a_client_that_reads_late_gets_everything() {
        let (mut followers, mut theirs) = followers();
        let passed = fill(&mut followers);
        followers.pass_on(b"the end");
        let mut got = Vec::new();
        while followers.blocked().is_some() {
            let mut piece = vec![0; 64 << 10];
            let count = theirs.read(&mut piece).unwrap();
            got.extend_from_slice(&piece[..count]);
            followers.send_unsent(Instant::now());
        }
        drop(followers);
        theirs.read_to_end(&mut got).unwrap();
        assert_eq!(got.len(), passed + 7);
        assert!(got.ends_with(b"xxxthe end"));
    }

    #[test]
    fn a_client_that_takes_nothing_is_dropped_at_the_deadline() {
        let (mut followers, _theirs) = followers();
        assert_eq!(followers.timeout(Instant::now()), None);
        fill(&mut followers);
        let since = followers.clients[0].waits_since.unwrap();
        followers.send_unsent(since + SEND_TIMEOUT / 2);
        assert!(followers.blocked().is_some());
        assert_eq!(followers.timeout(since + SEND_TIMEOUT / 2), Some(SEND_TIMEOUT / 2));
        followers.send_unsent(since + SEND_TIMEOUT);
        assert!(followers.clients.is_empty());
    }

    #[test]
    fn clients_that_are_gone_or_have_too_much_to_take_are_dropped() {
        let (mut followers, theirs) = self::followers();
        fill(&mut followers);
        followers.pass_on(&[b'x'; MAX_UNSENT]);
        assert!(followers.clients.is_empty());
        drop(theirs);
        let (mut followers, theirs) = self::followers();
        drop(theirs);
        followers.pass_on(b"x");
        assert!(followers.clients.is_empty());
    }
}
