//! Listens for queries by UDP and TCP.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::answer::{self, Reply, Transport};
use super::upstream::{Upstream, read_message, write_message};
use super::{MAX_DATAGRAM, MAX_MESSAGE};
use crate::zone::Zone;

const PORT: u16 = 53;
/// How many clients may be connected at once, and how many queries by UDP may wait for others.
const MAX_CLIENTS: usize = 64;
const MAX_WAITING: usize = 256;
/// For how long a connection may be idle.
const IDLE: Duration = Duration::from_secs(10);
/// The pause after a socket has failed.
const PAUSE: Duration = Duration::from_millis(100);

/// The names at the moment.
pub(crate) type Names = watch::Receiver<Arc<Zone>>;

/// The sockets of one address.
#[derive(Debug)]
pub(crate) struct Listener {
    udp: UdpSocket,
    tcp: TcpListener,
}

impl Listener {
    /// Sockets at that address of the node.
    ///
    /// # Errors
    /// Another program listens there.
    pub(crate) async fn bind(address: IpAddr) -> io::Result<Self> {
        let at = SocketAddr::new(address, PORT);
        Ok(Self { udp: UdpSocket::bind(at).await?, tcp: TcpListener::bind(at).await? })
    }

    /// Answers until it is dropped.
    pub(crate) async fn serve(self, names: Names, upstream: Arc<Upstream>) {
        let Self { udp, tcp } = self;
        let by_udp = serve_udp(Arc::new(udp), names.clone(), Arc::clone(&upstream));
        let by_tcp = serve_tcp(tcp, names, upstream);
        tokio::join!(by_udp, by_tcp);
    }
}

async fn serve_udp(socket: Arc<UdpSocket>, names: Names, upstream: Arc<Upstream>) {
    let mut message = vec![0; MAX_DATAGRAM.max(4096)];
    let mut waiting = JoinSet::new();
    loop {
        let received = socket.recv_from(&mut message).await;
        while waiting.try_join_next().is_some() {}
        let (length, client) = match received {
            Ok(received) => received,
            Err(error) => {
                // What a client's port unreachable causes, for instance.
                tracing::debug!(%error, "no query was received");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let query = message.get(..length).unwrap_or_default();
        let zone = Arc::clone(&names.borrow());
        match answer::reply(&zone, query, Transport::Udp) {
            Reply::Answer(answer) => send(&socket, &answer, client).await,
            Reply::None => {}
            reply => {
                // The client asks again after a while, as after a message that was lost.
                if waiting.len() >= MAX_WAITING {
                    continue;
                }
                let (socket, upstream, query) = (Arc::clone(&socket), Arc::clone(&upstream), query.to_vec());
                waiting.spawn(async move {
                    if let Some(answer) = ask_others(&zone, &upstream, &query, reply, Transport::Udp).await {
                        send(&socket, &answer, client).await;
                    }
                });
            }
        }
    }
}

async fn send(socket: &UdpSocket, answer: &[u8], client: SocketAddr) {
    if let Err(error) = socket.send_to(answer, client).await {
        tracing::debug!(%client, %error, "an answer was not sent");
    }
}

/// The answer with what others know.
async fn ask_others(
    zone: &Zone,
    upstream: &Upstream,
    query: &[u8],
    reply: Reply,
    transport: Transport,
) -> Option<Vec<u8>> {
    let answer = match reply {
        Reply::Alias(next) => {
            let others = upstream.ask(&next, transport).await;
            others.and_then(|others| answer::with_alias(zone, query, &others, transport))
        }
        _ => upstream.ask(query, transport).await,
    };
    let Some(answer) = answer else { return answer::unanswered(query) };
    match transport {
        Transport::Udp if answer.len() > answer::room(query) => answer::truncated(query),
        _ => Some(answer),
    }
}

async fn serve_tcp(listener: TcpListener, names: Names, upstream: Arc<Upstream>) {
    let clients = Arc::new(Semaphore::new(MAX_CLIENTS));
    let mut connected = JoinSet::new();
    loop {
        while connected.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&clients).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let (names, upstream) = (names.clone(), Arc::clone(&upstream));
                connected.spawn(async move {
                    serve_client(stream, names, &upstream).await;
                    drop(permit);
                });
            }
            Err(error) => {
                tracing::debug!(%error, "no connection was accepted");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// Answers the queries of a connection, one after the other.
async fn serve_client(mut stream: TcpStream, names: Names, upstream: &Upstream) {
    while let Ok(Ok(query)) = timeout(IDLE, read_message(&mut stream)).await {
        let zone = Arc::clone(&names.borrow());
        let answer = match answer::reply(&zone, &query, Transport::Tcp) {
            Reply::None => return,
            Reply::Answer(answer) => Some(answer),
            reply => ask_others(&zone, upstream, &query, reply, Transport::Tcp).await,
        };
        let Some(answer) = answer.filter(|answer| answer.len() <= MAX_MESSAGE) else { return };
        if !matches!(timeout(IDLE, write_message(&mut stream, &answer)).await, Ok(Ok(()))) {
            return;
        }
    }
}
