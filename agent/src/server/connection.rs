//! Connections: who may connect, how many at once, how long a request may take to arrive, how they end.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

/// Connections at once, on each listener; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 128;
/// Bytes of a request's head, and so of its URL.
const MAX_HEAD: usize = 32 << 10;
/// How long a request's head may take to arrive, and how long an idle connection is kept.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// What open connections get to end once the agent stops.
const GRACE: Duration = Duration::from_millis(500);
/// Pause after a failed accept: the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Where connections come from.
pub(super) trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection; `None` for one that was refused.
    async fn accept(&self) -> io::Result<Option<Self::Stream>>;
}

/// The local socket: root, or the user the agent runs as.
pub(super) struct Local(pub(super) UnixListener);

impl Listener for Local {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Option<Self::Stream>> {
        let (stream, _) = self.0.accept().await?;
        // The file's mode says the same; this holds also where somebody changed it.
        let peer = stream.peer_cred()?;
        if peer.uid() == 0 || peer.uid() == rustix::process::geteuid().as_raw() {
            return Ok(Some(stream));
        }
        warn!(uid = peer.uid(), pid = peer.pid(), "refused a connection to the local socket: root only");
        Ok(None)
    }
}

/// A loopback address.
pub(super) struct Loopback(pub(super) TcpListener);

impl Listener for Loopback {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Option<Self::Stream>> {
        self.0.accept().await.map(|(stream, _)| Some(stream))
    }
}

/// Accepts and serves until `stop`, then lets what is open end.
pub(super) async fn serve(listener: impl Listener, app: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let free = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let permit = Arc::clone(&free).acquire_owned().await;
            (permit, listener.accept().await)
        };
        let (permit, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok(Some(stream)) => {
                let connection = one(stream, app.clone(), stop.clone());
                connections.spawn(async move {
                    connection.await;
                    drop(permit);
                });
            }
            Ok(None) => {}
            Err(error) => {
                warn!(%error, "accept failed");
                tokio::select! {
                    () = stop.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    connections.close();
    connections.wait().await;
}

async fn one(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, app: Router, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(app))
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // A watch never ends by itself: what is left after the grace is dropped.
            tokio::time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        debug!(%error, "connection ended");
    }
}
