//! A link to a server on loopback that counts what passes through it, and that can be cut or swallow what is sent.

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

/// What has passed through it: the streams' bytes, encrypted as they are, without the headers of TCP and IP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes to the server.
    pub sent: u64,
    /// Bytes from the server.
    pub received: u64,
    /// How many connections were made.
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

/// After how long Linux retransmits the bytes of a connection with a short way for the first time. Each further pause
/// is twice as long, up to [`MAX_RETRANSMISSION_PAUSE`].
const RETRANSMISSION_TIMEOUT: Duration = Duration::from_millis(200);
/// See [`RETRANSMISSION_TIMEOUT`].
const MAX_RETRANSMISSION_PAUSE: Duration = Duration::from_secs(120);
/// How many connections may wait to be accepted.
const BACKLOG: i32 = 1_024;
/// The timeout of a connection on loopback, which is longer than the kernel takes for one that it accepts.
const NOT_TAKEN: Duration = Duration::from_millis(100);

/// What happens to connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WireState {
    Open,
    Cut,
    Swallowing,
}

/// The link, which exists as long as this process.
#[derive(Debug)]
pub struct Wire {
    /// The port of its own end, on 127.0.0.1.
    pub port: u16,
    counters: Arc<Counters>,
    state: watch::Sender<WireState>,
    listener: std::net::TcpListener,
    /// Its own connections that wait to be accepted, so that there is no place for others.
    fillers: Mutex<Vec<std::net::TcpStream>>,
}

impl Wire {
    /// A link to that port.
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

    /// Ends all connections, and new ones at once, until it is [joined](Self::join).
    pub fn cut(&self) {
        self.open_as(WireState::Cut);
    }

    /// Carries nothing until it is [joined](Self::join): connections stay open, new ones are not made, and neither end
    /// notices. What was sent meanwhile arrives after that, when TCP would retransmit it. Unlike on a dead line, the
    /// kernel acknowledges what is sent on existing connections. A few of its own connections are counted afterwards.
    pub fn swallow(&self) -> Result<()> {
        self.state.send_replace(WireState::Swallowing);
        // The kernel does not answer the first packet of a connection if there is no place for it.
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
        // It already listens, so only the number changes.
        rustix::net::listen(&self.listener, BACKLOG).ok();
        self.state.send_replace(state);
    }

    /// The address of its own end, as in a kubeconfig.
    pub fn address(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    /// What has passed through it so far.
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
        // An error means that the `Wire` was dropped, after which nothing changes.
        now.wait_for(|state| *state != WireState::Swallowing).await.ok();
        let client = tokio::select! {
            biased;
            Ok(()) = now.changed() => continue,
            accepted = listener.accept() => accepted,
        };
        let Ok((client, _)) = client else { continue };
        let (counters, mut seen, state) = (Arc::clone(&counters), now.clone(), now.clone());
        // If the server is gone, the client's end closes.
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
    // If one side ends, the connection ends.
    tokio::select! {
        done = copy(from_client, to_server, &counters.sent, state.clone()) => done,
        done = copy(from_server, to_client, &counters.received, state.clone()) => done,
    }
}

/// Waits while everything is swallowed, until the next time at which TCP would retransmit after that. Each pause is
/// twice as long as the one before.
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
