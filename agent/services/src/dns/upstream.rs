//! Asks the node's name servers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use limpet_host::blocking::{self, DEADLINE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout};

use super::answer::Transport;
use super::{MAX_DATAGRAM, MAX_MESSAGE};

/// How many queries may be under way at others; further ones fail, and clients ask again.
const MAX_QUERIES: usize = 256;
/// How long one server may take. Clients wait for five seconds.
const PATIENCE: Duration = Duration::from_secs(2);
/// How often all servers are asked.
const ROUNDS: usize = 2;
/// How many servers are asked, as by resolvers.
const MAX_SERVERS: usize = 3;
/// For how long the file with the servers is not read again.
const FRESH: Duration = Duration::from_secs(2);
const PORT: u16 = 53;

/// Passes queries on to the node's name servers, as its `resolv.conf` lists them.
#[derive(Debug)]
pub(crate) struct Upstream {
    resolv_conf: Option<PathBuf>,
    /// limpet's own addresses, which are not asked.
    excluded: Vec<IpAddr>,
    queries: Semaphore,
    known: Mutex<(Option<Instant>, Vec<IpAddr>)>,
}

impl Upstream {
    pub(crate) fn new(resolv_conf: Option<PathBuf>, excluded: Vec<IpAddr>) -> Self {
        Self { resolv_conf, excluded, queries: Semaphore::new(MAX_QUERIES), known: Mutex::default() }
    }

    /// The first answer of a server; `None` if none answers.
    pub(super) async fn ask(&self, query: &[u8], transport: Transport) -> Option<Vec<u8>> {
        let _permit = self.queries.try_acquire().ok()?;
        let servers = self.servers().await;
        for server in servers.iter().cycle().take(ROUNDS * servers.len()) {
            let server = SocketAddr::new(*server, PORT);
            let answer = match transport {
                Transport::Udp => timeout(PATIENCE, by_udp(server, query)).await,
                Transport::Tcp => timeout(PATIENCE, by_tcp(server, query)).await,
            };
            match answer {
                Ok(Ok(answer)) => return Some(answer),
                Ok(Err(error)) => tracing::debug!(%server, %error, "a name server of the node cannot be asked"),
                Err(_) => tracing::debug!(%server, "a name server of the node does not answer"),
            }
        }
        None
    }

    async fn servers(&self) -> Vec<IpAddr> {
        {
            let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.0.is_some_and(|read| read.elapsed() < FRESH) {
                return known.1.clone();
            }
        }
        let Some(path) = self.resolv_conf.clone() else { return Vec::new() };
        let reading = path.clone();
        let text = blocking::run(path, DEADLINE, move |_| std::fs::read_to_string(reading)).await;
        let Ok(Ok(text)) = text else { return Vec::new() };
        let servers: Vec<IpAddr> =
            servers(&text).filter(|server| !self.excluded.contains(server)).take(MAX_SERVERS).collect();
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = (Some(Instant::now()), servers.clone());
        servers
    }
}

/// The name servers in a `resolv.conf`. The scope of a link-local address is left out, and with it the address.
fn servers(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.next() == Some("nameserver")).then(|| fields.next()?.parse().ok()).flatten()
    })
}

async fn by_udp(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let any: IpAddr = if server.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A port of its own for each query, which the kernel chooses by chance.
    let socket = UdpSocket::bind((any, 0)).await?;
    socket.connect(server).await?;
    socket.send(query).await?;
    let mut answer = vec![0; MAX_DATAGRAM.max(4096)];
    loop {
        let length = socket.recv(&mut answer).await?;
        // Anything else is not the answer to this query.
        if length >= 12 && answer.get(..2) == query.get(..2) && answer[2] & 0x80 != 0 {
            answer.truncate(length);
            return Ok(answer);
        }
    }
}

async fn by_tcp(server: SocketAddr, query: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    write_message(&mut stream, query).await?;
    read_message(&mut stream).await
}

/// Reads a message that begins with its length.
pub(super) async fn read_message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; usize::from(stream.read_u16().await?)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

/// Writes a message behind its length.
pub(super) async fn write_message(stream: &mut TcpStream, message: &[u8]) -> std::io::Result<()> {
    let length = u16::try_from(message.len().min(MAX_MESSAGE)).unwrap_or(u16::MAX);
    let mut bytes = length.to_be_bytes().to_vec();
    bytes.extend(&message[..usize::from(length)]);
    stream.write_all(&bytes).await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_from_the_nodes_file() {
        let text =
            "# nameserver 1.1.1.1\nsearch a\nnameserver 192.0.2.1\n nameserver fd00::1 \nnameserver fe80::1%eth0\n";
        let expected: [IpAddr; 2] = ["192.0.2.1".parse().unwrap(), "fd00::1".parse().unwrap()];
        assert_eq!(servers(text).collect::<Vec<_>>(), expected);
    }
}
