//! Connections: who may connect, how many are open at once, how long a request may take to arrive, how they close.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::attribution::actor_of_process;
use limpet_model::actor::Actor;
use limpet_model::attribution::Onlooker;

/// Open connections per listener; further ones wait in the kernel's accept queue.
const MAX_CONNECTIONS: usize = 128;
/// Bytes of a request's head, URL included.
const MAX_HEAD: usize = 32 << 10;
/// How long a request's head may take to arrive, and how long an idle connection stays open.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long open connections may take to finish once the agent stops.
const GRACE: Duration = Duration::from_millis(500);
/// Pause after a failed accept: the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The process that connected to the local socket.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pid: Option<u32>,
    uid: u32,
    /// Identifies the process while `/proc` is read.
    pidfd: Option<Arc<OwnedFd>>,
}

impl Peer {
    fn of(stream: &tokio::net::UnixStream) -> io::Result<Self> {
        let credentials = stream.peer_cred()?;
        let pid = credentials.pid().and_then(Pid::from_raw);
        let pidfd = pid.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()).map(Arc::new);
        Ok(Self { pid: pid.map(|pid| pid.as_raw_nonzero().get().unsigned_abs()), uid: credentials.uid(), pidfd })
    }

    /// The process as an actor; reads `/proc`.
    pub(super) fn actor(&self, onlooker: &dyn Onlooker) -> Actor {
        let known =
            self.pid.zip(self.pidfd.as_ref()).map(|(pid, pidfd)| actor_of_process(pid, pidfd.as_fd(), onlooker));
        // The kernel recorded PID and user at connect time; the PID may have been reused since.
        let known = known.filter(|actor| actor.uid == Some(self.uid)).unwrap_or_default();
        Actor { pid: self.pid, uid: Some(self.uid), ..known }
    }
}

/// A listening socket.
pub(super) trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection and its peer, if known; `None` for a connection that was refused.
    async fn accept(&self) -> io::Result<Option<(Self::Stream, Option<Peer>)>>;
}

/// The local socket: only root, or the user the agent runs as, may connect.
pub(super) struct Local(pub(super) UnixListener);

impl Listener for Local {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Option<(Self::Stream, Option<Peer>)>> {
        let (stream, _) = self.0.accept().await?;
        // The file mode restricts this already; the check also holds if the mode was changed.
        let peer = Peer::of(&stream)?;
        if peer.uid == 0 || peer.uid == geteuid().as_raw() {
            return Ok(Some((stream, Some(peer))));
        }
        warn!(uid = peer.uid, pid = peer.pid, "refused a connection to the local socket: root only");
        Ok(None)
    }
}

/// A loopback address.
pub(super) struct Loopback(pub(super) TcpListener);

impl Listener for Loopback {
    type Stream = tokio::net::TcpStream;

    async fn accept(&self) -> io::Result<Option<(Self::Stream, Option<Peer>)>> {
        self.0.accept().await.map(|(stream, _)| Some((stream, None)))
    }
}

/// Accepts and serves connections until `stop`, then lets open ones finish.
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
            Ok(Some((stream, peer))) => {
                let connection = one(stream, peer, app.clone(), stop.clone());
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

async fn one(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    peer: Option<Peer>,
    app: Router,
    stop: CancellationToken,
) {
    let app = TowerToHyperService::new(app);
    let app = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        if let Some(peer) = &peer {
            request.extensions_mut().insert(peer.clone());
        }
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        .serve_connection(TokioIo::new(stream), app)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            // A watch never ends by itself: connections still open after the grace period are dropped.
            tokio::time::timeout(GRACE, connection).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        debug!(%error, "connection ended");
    }
}
