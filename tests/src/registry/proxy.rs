//! A TCP connection to a registry that can be cut during a download, holds back requests, and records those it
//! carried.

use std::io::{ErrorKind, Read, Write};
use std::iter::Peekable;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use anyhow::{Result, ensure};

use crate::wait;

/// The proxy. Its threads end with the process, because they hold nothing but the port.
#[derive(Debug, Clone)]
pub struct Proxy {
    address: SocketAddr,
    passage: Arc<Passage>,
}

/// The state of what passes.
#[derive(Debug)]
struct Passage {
    target: SocketAddr,
    state: Mutex<ProxyState>,
    /// Notified when the connection was cut, a request came, or one is no longer held back.
    changed: Condvar,
}

/// After how many bytes of replies each connection is cut, one after the other.
type Limits = Peekable<Box<dyn Iterator<Item = u64> + Send>>;

struct ProxyState {
    limits: Limits,
    cuts: usize,
    /// Bytes of replies so far.
    said: u64,
    heads: Vec<String>,
    /// Requests whose head contains it are not passed on.
    held: Option<String>,
}

impl std::fmt::Debug for ProxyState {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("ProxyState");
        shown.field("cuts", &self.cuts).field("said", &self.said).field("heads", &self.heads).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Listens on a free loopback port. Nothing is cut until [`Self::cut_after`].
    pub fn start(target: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let state = ProxyState { limits: no_limits(), cuts: 0, said: 0, heads: Vec::new(), held: None };
        let passage = Arc::new(Passage { target, state: Mutex::new(state), changed: Condvar::new() });
        let carried = passage.clone();
        thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let passage = carried.clone();
                thread::spawn(move || passage.carry(client));
            }
        });
        Ok(Self { address, passage })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Cuts the first connection from now on when the registry has sent more than the first of these numbers of bytes
    /// in it, then another for the second, and so on.
    pub fn cut_after(&self, limits: impl IntoIterator<Item = u64, IntoIter: Send + 'static>) {
        self.passage.state().limits = (Box::new(limits.into_iter()) as Box<dyn Iterator<Item = u64> + Send>).peekable();
    }

    /// Cuts nothing any more.
    pub fn heal(&self) {
        self.passage.state().limits = no_limits();
    }

    /// The heads of all requests so far: request line and headers.
    pub fn requests(&self) -> Vec<String> {
        self.passage.state().heads.clone()
    }

    /// The offsets at which the requests for the blob `digest` begin.
    pub fn offsets(&self, digest: &str) -> Vec<u64> {
        let wanted = format!("/blobs/{digest}");
        let offset = |head: &str| {
            let head = head.to_lowercase();
            let range = head.lines().find_map(|line| line.strip_prefix("range: bytes="));
            range.and_then(|range| range.split('-').next()?.parse().ok()).unwrap_or_default()
        };
        self.requests().iter().filter(|head| head.contains(&wanted)).map(|head| offset(head)).collect()
    }

    /// How many bytes the registry has sent so far.
    pub fn bytes(&self) -> u64 {
        self.passage.state().said
    }

    /// Whether the line has been cut.
    pub fn was_cut(&self) -> bool {
        self.passage.state().cuts > 0
    }

    /// Holds back requests from now on whose head contains `part`, until [`Self::release`].
    pub fn hold(&self, part: &str) {
        self.passage.state().held = Some(part.to_owned());
    }

    /// Passes on what was held back, and all that follows.
    pub fn release(&self) {
        self.passage.state().held = None;
        self.passage.changed.notify_all();
    }

    /// Waits until a request has come whose head contains `part`, held back or not.
    pub fn wait_request(&self, part: &str) -> Result<()> {
        let came = |state: &ProxyState| state.heads.iter().any(|head| head.contains(part));
        ensure!(self.passage.wait(came), "no request for {part}: {:#?}", self.requests());
        Ok(())
    }

    /// Waits until it has been cut.
    pub fn wait_cut(&self) -> Result<()> {
        ensure!(self.passage.wait(|state| state.cuts > 0), "the line was not cut");
        Ok(())
    }
}

fn no_limits() -> Limits {
    (Box::new(std::iter::empty()) as Box<dyn Iterator<Item = u64> + Send>).peekable()
}

impl Passage {
    fn state(&self) -> MutexGuard<'_, ProxyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a state. Returns whether it was reached.
    fn wait(&self, is_so: impl Fn(&ProxyState) -> bool) -> bool {
        let waited = self.changed.wait_timeout_while(self.state(), wait::soon(), |state| !is_so(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        is_so(&state)
    }

    /// Records a request, and returns when it may pass.
    fn take_down(&self, head: String) {
        let mut state = self.state();
        state.heads.push(head.clone());
        self.changed.notify_all();
        while state.held.as_ref().is_some_and(|held| head.contains(held)) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn carry(self: Arc<Self>, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.target) else { return };
        let (Ok(from), Ok(to)) = (client.try_clone(), server.try_clone()) else { return };
        let ahead = self.clone();
        let requests = thread::spawn(move || ahead.carry_requests(from, to));
        self.carry_replies(server, client);
        requests.join().ok();
    }

    /// Requests of a registry client have no body here: each ends with an empty line.
    fn carry_requests(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut head = Vec::new();
        let mut buffer = [0; 16 * 1024];
        while let Some(length) = read(&mut from, &mut buffer) {
            head.extend_from_slice(&buffer[..length]);
            while let Some(end) = head.windows(4).position(|window| window == b"\r\n\r\n") {
                let request: Vec<_> = head.drain(..end + 4).collect();
                self.take_down(String::from_utf8_lossy(&request).trim().to_owned());
            }
            if to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        to.shutdown(Shutdown::Write).ok();
    }

    fn carry_replies(&self, mut from: TcpStream, mut to: TcpStream) {
        let mut buffer = [0; 16 * 1024];
        let mut carried = 0;
        while let Some(length) = read(&mut from, &mut buffer) {
            let (passes, cut) = self.spend(carried, length);
            carried += passes as u64;
            if to.write_all(&buffer[..passes]).is_err() || cut {
                break;
            }
        }
        to.shutdown(Shutdown::Both).ok();
        from.shutdown(Shutdown::Both).ok();
    }

    /// How many of `length` bytes may pass in a connection that has `carried` so many, and whether it is cut after them.
    fn spend(&self, carried: u64, length: usize) -> (usize, bool) {
        let mut state = self.state();
        let limit = state.limits.next_if(|limit| carried + length as u64 > *limit);
        let passes = limit.map_or(length, |limit| usize::try_from(limit.saturating_sub(carried)).unwrap_or(length));
        state.said += passes as u64;
        if limit.is_some() {
            state.cuts += 1;
            self.changed.notify_all();
        }
        (passes, limit.is_some())
    }
}

/// Reads once; `None` at the end of the stream.
fn read(from: &mut TcpStream, buffer: &mut [u8]) -> Option<usize> {
    loop {
        match from.read(buffer) {
            Ok(0) => return None,
            Ok(length) => return Some(length),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
}
