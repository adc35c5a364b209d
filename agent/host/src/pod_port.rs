//! Connects to a port inside a pod's network, as a process of the pod would.
//!
//! A socket belongs to the network namespace of the thread that creates it, wherever it is used later. So a separate
//! thread enters the pod's namespace, creates the sockets and ends; the caller's runtime connects them.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use crate::network_namespace::run_in;

/// How long a pod may take to accept: its queue may be full, or a filter may drop packets.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Why a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum PodPortError {
    /// The pod's network cannot be entered: its sandbox does not exist yet, or is gone.
    #[error("enter the pod's network {}: {source}", path.display())]
    Network {
        /// The pin of its namespace.
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The connection is refused.
    #[error("failed to connect to localhost:{port} inside the pod's network, IPv4: {v4}, IPv6: {v6}")]
    Connect {
        port: u16,
        /// The error on 127.0.0.1.
        v4: io::Error,
        /// The error on ::1.
        v6: io::Error,
    },
}

/// Connects to `port` on 127.0.0.1, or else on ::1, in the network namespace that is pinned at `network`, or the host's.
///
/// # Errors
/// See [`PodPortError`].
pub async fn connect(network: Option<PathBuf>, port: u16) -> Result<TcpStream, PodPortError> {
    let [v4, v6] = match network {
        Some(path) => run_in(path.clone(), sockets).await.map_err(|source| PodPortError::Network { path, source })?,
        None => sockets(),
    };
    let first = match connected(v4, (Ipv4Addr::LOCALHOST, port).into()).await {
        Ok(stream) => return Ok(stream),
        Err(error) => error,
    };
    connected(v6, (Ipv6Addr::LOCALHOST, port).into()).await.map_err(|v6| PodPortError::Connect { port, v4: first, v6 })
}

async fn connected(socket: io::Result<OwnedFd>, address: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::from_std_stream(socket?.into());
    let stream = timeout(CONNECT_TIMEOUT, socket.connect(address)).await.map_err(|_| io::ErrorKind::TimedOut)??;
    // Forwarded data was already batched by the client.
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A socket for each family in the calling thread's namespace; a kernel may support only one.
fn sockets() -> [io::Result<OwnedFd>; 2] {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    [AddressFamily::INET, AddressFamily::INET6]
        .map(|family| socket_with(family, SocketType::STREAM, flags, None).map_err(io::Error::from))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::mpsc;

    use limpet_tests::need;
    use rustix::thread::UnshareFlags;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// A server in its own network namespace, which echoes one message; and the namespace, by its thread.
    #[allow(unsafe_code)]
    fn server(address: &'static str) -> (PathBuf, u16, mpsc::Sender<()>) {
        let (started, port) = mpsc::channel();
        let (end, ended) = mpsc::channel();
        std::thread::spawn(move || {
            // SAFETY: the function is unsafe because of `UnshareFlags::FILES`; the file descriptor table stays shared.
            unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            assert!(std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
            let listener = std::net::TcpListener::bind((address, 0)).unwrap();
            let thread = rustix::thread::gettid().as_raw_nonzero();
            let pin = PathBuf::from(format!("/proc/self/task/{thread}/ns/net"));
            started.send((pin, listener.local_addr().unwrap().port())).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            std::io::copy(&mut stream.try_clone().unwrap(), &mut stream).unwrap();
            drop((stream, listener));
            let _: Result<(), _> = ended.recv();
        });
        let (pin, port) = port.recv().unwrap();
        (pin, port, end)
    }

    #[tokio::test]
    async fn a_port_that_only_the_pod_has_is_reached_on_either_address() {
        if need::root("a network namespace").is_none() {
            return;
        }
        for address in ["127.0.0.1", "::1"] {
            let (pin, port, _alive) = server(address);
            let mut stream = connect(Some(pin.clone()), port).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            stream.shutdown().await.unwrap();
            let mut echo = String::new();
            stream.read_to_string(&mut echo).await.unwrap();
            assert_eq!(echo, "hello", "{address}");

            let refused = connect(Some(pin), 1).await.unwrap_err().to_string();
            assert!(refused.starts_with("failed to connect to localhost:1 inside the pod's network"), "{refused}");
            assert_eq!(refused.matches("refused").count(), 2, "{refused}");
        }
    }

    #[tokio::test]
    async fn a_network_that_is_gone_is_named() {
        let error = connect(Some("/nonexistent/net".into()), 80).await.unwrap_err().to_string();
        assert!(error.starts_with("enter the pod's network /nonexistent/net: No such file"), "{error}");
    }
}
