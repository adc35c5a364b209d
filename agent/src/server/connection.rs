//! Connections: how many are open at once, how long a request may take to arrive and an answer to leave, how they close.

mod deadline;
mod place;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use futures_util::future::BoxFuture;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepidle};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::caller::{Caller, CallerLookup};
use super::tls::Tls;
use deadline::Deadline;
use limpet_host::peer::Peer;
use place::Places;
pub(super) use place::{OpenStreams, Place};

/// Bytes of a request's head, URL included.
const MAX_HEAD: usize = 32 << 10;
/// How long a request's head may take to arrive, and how long an idle connection stays open.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client that was not admitted to anything may read nothing of its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a connection from the network is silent before the kernel asks whether its client is still there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long open connections may take to finish once the agent stops.
const GRACE: Duration = Duration::from_millis(500);
/// Pause after a failed accept: the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// A connection that is being opened: its stream and its caller, or why it is closed again.
pub(super) type Opening<S> = BoxFuture<'static, io::Result<(S, Caller)>>;

/// A listening socket.
pub(super) trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection. What takes its time is left to the future.
    async fn accept(&self) -> io::Result<Opening<Self::Stream>>;
}

/// The local socket.
pub(super) struct Local {
    pub(super) listener: UnixListener,
    pub(super) lookup: Arc<CallerLookup>,
}

impl Listener for Local {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<Opening<Self::Stream>> {
        let (stream, _) = self.listener.accept().await?;
        let peer = Peer::of(&stream)?;
        let lookup = Arc::clone(&self.lookup);
        Ok(Box::pin(async move { Ok((stream, lookup.caller(peer).await)) }))
    }
}

/// An address without TLS, all of whose callers are the same to it.
pub(super) struct Plain {
    pub(super) listener: TcpListener,
    pub(super) caller: Caller,
}

impl Listener for Plain {
    type Stream = TcpStream;

    async fn accept(&self) -> io::Result<Opening<Self::Stream>> {
        let (stream, _) = self.listener.accept().await?;
        let caller = self.caller.clone();
        Ok(Box::pin(async move { Ok((stream, caller)) }))
    }
}

/// kubelet's API on the network: TLS, and callers by their certificates.
pub(super) struct Secure {
    pub(super) listener: TcpListener,
    pub(super) tls: Arc<Tls>,
}

impl Listener for Secure {
    type Stream = TlsStream<TcpStream>;

    async fn accept(&self) -> io::Result<Opening<Self::Stream>> {
        let (stream, _) = self.listener.accept().await?;
        // A stream that is followed for days and whose client is gone without a word ends.
        set_socket_keepalive(&stream, true)?;
        set_tcp_keepidle(&stream, KEEPALIVE)?;
        let tls = Arc::clone(&self.tls);
        Ok(Box::pin(
            async move { timeout(HEAD_TIMEOUT, tls.accept(stream)).await.map_err(|_| io::ErrorKind::TimedOut)? },
        ))
    }
}

/// Accepts and serves connections until `stop`, then lets open ones finish.
pub(super) async fn serve<L: Listener>(listener: L, app: Router, stop: CancellationToken) {
    let connections = TaskTracker::new();
    let places = Places::default();
    loop {
        let accepted = async {
            let opening = places.opening().await;
            (opening, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok(opening) => {
                let (app, stop, places) = (app.clone(), stop.clone(), places.clone());
                connections.spawn(async move {
                    let (stream, caller) = match opening.await {
                        Ok(opened) => opened,
                        Err(error) => return debug!(%error, "connection refused"),
                    };
                    let Some(place) = places.of(place, &caller) else { return };
                    let stream = Deadline::new(stream, WRITE_TIMEOUT, place.clone());
                    one(stream, caller, place.clone(), places, app, stop).await;
                    // Whoever still has the place, a stream for example, is none of these connections any more.
                    place.leave();
                });
            }
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
    caller: Caller,
    place: Place,
    places: Places,
    app: Router,
    stop: CancellationToken,
) {
    let refused = place::is_refused(&caller);
    let app = TowerToHyperService::new(app);
    let app = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        let extensions = request.extensions_mut();
        extensions.insert(caller.clone());
        extensions.insert(place.clone());
        extensions.insert(places.bodies.clone());
        extensions.insert(places.streams.clone());
        app.call(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        // A refused caller has its answer once.
        .keep_alive(!refused)
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
