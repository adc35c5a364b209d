//! A way to a server on loopback that counts what goes over it, and that can be cut or swallow what it is given.

use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Sub;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{io, thread};

use anyhow::{Context as _, Result};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// What has gone over it: the streams' bytes, encrypted as they are, without the headers of TCP and IP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// To the server.
    pub sent: u64,
    /// From the server.
    pub received: u64,
    /// Connections that were made.
    pub connections: u64,
}

impl Traffic {
    /// Bytes in both directions.
    pub fn bytes(&self) -> u64 {
        self.sent + self.received
    }
}

impl Sub for Traffic {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            sent: self.sent - before.sent,
            received: self.received - before.received,
            connections: self.connections - before.connections,
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    sent: AtomicU64,
    received: AtomicU64,
    connections: AtomicU64,
}

/// When Linux sends bytes on a connection again where the way is short, and how far apart the last of these moments are.
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(200);
/// See [`RETRANSMISSION_TIMEOUT`].
const MAX_RETRANSMISSION_PAUSE: Duration = Duration::from_secs(120);
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1_024;
/// Longer than the kernel takes for a connection on loopback that it takes.
const NOT_TAKEN: Duration = Duration::from_millis(100);

/// What becomes of connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireState {
    Open,
    Cut,
    Swallowing,
}

/// The way; it is there as long as this process.
#[derive(Debug)]
pub struct Wire {
    /// Where its own end is, on 127.0.0.1.
    pub port: u16,
    counters: Arc<Counters>,
    state: watch::Sender<WireState>,
    listener: std::net::TcpListener,
    /// Connections of its own that wait to be accepted, so that there is no place for others.
    fillers: Mutex<Vec<std::net::TcpStream>>,
}

impl Wire {
    /// A way to that port.
    pub fn to(port: u16) -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
        listener.set_nonblocking(true)?;
        let listening_port = listener.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counters: Arc<Counters> = Arc::default();
        let (counted, (state, seen)) = (Arc::clone(&counters), watch::channel(WireState::Open));
        let accepting = listener.try_clone()?;
        thread::spawn(move || runtime.block_on(accept(accepting, port, counted, seen)));
        Ok(Self { port: listening_port, counters, state, listener, fillers: Mutex::default() })
    }

    /// Ends all connections, and those that are made from now on, until it is [joined](Self::join).
    pub fn cut(&self) {
        self.open_as(WireState::Cut);
    }

    /// Carries nothing any more, until it is [joined](Self::join): connections stay open, new ones are not made, and
    /// neither end learns of it. What was sent meanwhile arrives after that, when TCP sends it once more. Other than on
    /// a line that is dead, the kernel acknowledges what is sent on connections that are there. A few connections of
    /// its own are counted afterwards.
    pub fn swallow(&self) -> Result<()> {
        self.state.send_replace(WireState::Swallowing);
        // The kernel does not answer the first packet of a connection when there is no place for it.
        rustix::net::listen(&self.listener, 0)?;
        let mut fillers = self.fillers.lock().unwrap_or_else(PoisonError::into_inner);
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        loop {
            match std::net::TcpStream::connect_timeout(&address, NOT_TAKEN) {
                Ok(filler) => fillers.push(filler),
                Err(error) if error.kind() == io::ErrorKind::TimedOut => return Ok(()),
                Err(error) => return Err(error).context("fill the queue of a link"),
            }
        }
    }

    /// Lets connections through again.
    pub fn join(&self) {
        self.open_as(WireState::Open);
    }

    fn open_as(&self, state: WireState) {
        self.fillers.lock().unwrap_or_else(PoisonError::into_inner).clear();
        // It listens already: nothing but the number changes.
        rustix::net::listen(&self.listener, BACKLOG).ok();
        self.state.send_replace(state);
    }

    /// Its own end, as a kubeconfig has it.
    pub fn address(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// What has gone over it so far.
    pub fn traffic(&self) -> Traffic {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { sent, received, connections } = &*self.counters;
        Traffic { sent: load(sent), received: load(received), connections: load(connections) }
    }
}

async fn accept(
    listener: std::net::TcpListener,
    port: u16,
    counters: Arc<Counters>,
    mut now: watch::Receiver<WireState>,
) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        // Without a `Wire` nothing changes any more.
        now.wait_for(|state| *state != WireState::Swallowing).await.ok();
        let client = tokio::select! {
            biased;
            Ok(()) = now.changed() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((client, _)) = client else { continue };
        let (counters, mut seen, state) = (Arc::clone(&counters), now.clone(), now.clone());
        // The server may be gone: then the client's end closes.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = seen.wait_for(|state| *state == WireState::Cut) => {}
                _ = carry(client, port, &counters, state) => {}
            }
        });
    }
}

async fn carry(
    mut client: TcpStream,
    port: u16,
    counters: &Counters,
    state: watch::Receiver<WireState>,
) -> io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    counters.connections.fetch_add(1, Ordering::Relaxed);
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    // One side that ends ends the connection.
    tokio::select! {
        done = copy(from_client, to_server, &counters.sent, state.clone()) => done,
        done = copy(from_server, to_client, &counters.received, state.clone()) => done,
    }
}

/// Waits while everything is swallowed: until the first of the moments after that at which TCP sends again, each twice
/// as far away as the one before.
async fn pass(state: &watch::Receiver<WireState>) {
    let mut pause = RETRANSMISSION_TIMEOUT;
    while *state.borrow() == WireState::Swallowing {
        tokio::time::sleep(pause).await;
        pause = MAX_RETRANSMISSION_PAUSE.min(pause * 2);
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    counter: &AtomicU64,
    state: watch::Receiver<WireState>,
) -> io::Result<()> {
    let mut buffer = vec![0; 4 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
        pass(&state).await;
        if length == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..length]).await?;
        counter.fetch_add(length as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn what_goes_over_it_is_counted_until_it_is_cut_and_after_it_is_joined() {
        let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let wire = Wire::to(server.local_addr().unwrap().port()).unwrap();
        let connect = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, wire.port)).unwrap();
        let mut client = connect();
        let (mut stream, _) = server.accept().unwrap();
        client.write_all(b"question").unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        stream.write_all(b"yes").unwrap();
        client.read_exact(&mut [0; 3]).unwrap();
        wire.cut();
        assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0, "the server's end is closed");
        assert_eq!(connect().read(&mut [0]).unwrap_or(0), 0, "nobody comes through");
        let traffic = wire.traffic();
        assert_eq!((traffic.sent, traffic.connections), (8, 1));
        wire.join();
        connect().write_all(b"again").unwrap();
        server.accept().unwrap().0.read_exact(&mut [0; 5]).unwrap();
        assert_eq!(wire.traffic().connections, 2);
    }

    #[test]
    fn what_it_swallows_arrives_when_it_is_joined_and_no_end_learns_of_it() {
        let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let wire = Wire::to(server.local_addr().unwrap().port()).unwrap();
        let connect = || std::net::TcpStream::connect((Ipv4Addr::LOCALHOST, wire.port)).unwrap();
        let mut client = connect();
        let (mut stream, _) = server.accept().unwrap();
        wire.swallow().unwrap();
        client.write_all(b"question").unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, wire.port));
        let refused = std::net::TcpStream::connect_timeout(&address, NOT_TAKEN).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut, "{refused}");
        stream.set_read_timeout(Some(NOT_TAKEN)).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(wire.traffic().sent, 0);
        wire.join();
        stream.set_read_timeout(None).unwrap();
        stream.read_exact(&mut [0; 8]).unwrap();
        connect().write_all(b"late").unwrap();
        let come = std::iter::repeat_with(|| server.accept().unwrap().0);
        let reads_late = |mut stream: std::net::TcpStream| stream.read_exact(&mut [0; 4]).is_ok();
        assert!(come.take(8).any(reads_late), "after those that have filled the queue");
    }
}
