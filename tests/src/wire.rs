//! A way to a server on loopback that counts what goes over it, and that can be cut.

use std::io;
use std::net::Ipv4Addr;
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

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

/// The way; it is there as long as this process.
#[derive(Debug)]
pub struct Wire {
    /// Where its own end is, on 127.0.0.1.
    pub port: u16,
    counters: Arc<Counters>,
    open: watch::Sender<bool>,
}

impl Wire {
    /// A way to that port.
    pub fn to(port: u16) -> Result<Self> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("listen on loopback")?;
        listener.set_nonblocking(true)?;
        let own = listener.local_addr()?.port();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let counters: Arc<Counters> = Arc::default();
        let (counted, (open, opened)) = (Arc::clone(&counters), watch::channel(true));
        thread::spawn(move || runtime.block_on(accept(listener, port, counted, opened)));
        Ok(Self { port: own, counters, open })
    }

    /// Ends all connections, and those that are made from now on, until it is [joined](Self::join).
    pub fn cut(&self) {
        self.open.send_replace(false);
    }

    /// Lets connections through again.
    pub fn join(&self) {
        self.open.send_replace(true);
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

async fn accept(listener: std::net::TcpListener, port: u16, counters: Arc<Counters>, open: watch::Receiver<bool>) {
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let (counters, mut open) = (Arc::clone(&counters), open.clone());
        // The server may be gone: then the client's end closes.
        tokio::spawn(async move {
            tokio::select! {
                biased;
                _ = open.wait_for(|open| !open) => {}
                _ = carry(client, port, &counters) => {}
            }
        });
    }
}

async fn carry(mut client: TcpStream, port: u16, counters: &Counters) -> io::Result<()> {
    let mut server = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    counters.connections.fetch_add(1, Ordering::Relaxed);
    let ((from_client, to_client), (from_server, to_server)) = (client.split(), server.split());
    // One side that ends ends the connection.
    tokio::select! {
        done = copy(from_client, to_server, &counters.sent) => done,
        done = copy(from_server, to_client, &counters.received) => done,
    }
}

async fn copy(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    counter: &AtomicU64,
) -> io::Result<()> {
    let mut buffer = vec![0; 4 << 10];
    loop {
        let length = from.read(&mut buffer).await?;
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
}
