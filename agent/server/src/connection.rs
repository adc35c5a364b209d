//! Accepts, bounds and closes connections: how many are open at once, how long a request may take to arrive and a
//! response to leave.

mod authority;
mod crowd;
mod deadline;
mod delivery;
mod place;
mod source;

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::response::Response;
use futures_util::future::BoxFuture;
use hyper::rt::Executor;
use hyper::server::conn::{http1, http2};
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use rustix::net::sockopt::{set_socket_keepalive, set_tcp_keepcnt, set_tcp_keepidle, set_tcp_keepintvl};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::timeout;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use super::caller::{Caller, CallerLookup};
use super::on_demand::OnDemand;
use super::tls::{HandshakeLimit, Tls};
use authority::LocalAuthority;
use crowd::Crowd;
use deadline::Deadline;
use limpet_host::memory;
use limpet_host::peer::Peer;
use limpet_host::tcp::{self, Delivery};
pub(super) use place::{ConnectionSlot, OpenStreams};
use place::{Places, is_refused};
use source::Source;

/// The largest request head in bytes, URL included.
const MAX_HEAD: usize = 32 << 10;
/// The most concurrent gRPC calls on a connection.
const MAX_CALLS: u32 = 32;
/// How long a request's head may take to arrive, and how long an idle connection stays open.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a client without any admitted request may stop reading its response.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a network connection is silent before the kernel probes it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// How long open connections may take to finish after the agent's stop.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// The pause after a failed accept, which means that the process is out of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// The interval of keepalive probes, and the number of unanswered ones that ends the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 3;

/// A connection that is being opened. It resolves to its stream and caller, or to the reason for closing it.
pub(super) type Opening<S> = BoxFuture<'static, io::Result<(S, Caller)>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    /// gRPC: HTTP/2 from the first byte.
    Grpc,
}

/// A listening socket.
pub(super) trait Listener {
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;
    const PROTOCOL: Protocol = Protocol::Http;
    /// Whether clients come from a network. Opening their connections never blocks the listener.
    const IS_NETWORK: bool = false;
    /// Reports whether data that was sent has been delivered; `None` where it cannot be lost.
    const DELIVERY: Option<fn(&Self::Stream) -> Delivery> = None;

    /// The next connection, and its source if it comes from a network. Slow work, such as a handshake, is left to the
    /// future.
    async fn accept(&self) -> io::Result<(Opening<Self::Stream>, Option<Source>)>;
}

/// The local socket.
pub(super) struct Local {
    pub(super) listener: UnixListener,
    pub(super) lookup: Arc<CallerLookup>,
}

impl Listener for Local {
    type Stream = tokio::net::UnixStream;

    async fn accept(&self) -> io::Result<(Opening<Self::Stream>, Option<Source>)> {
        let (stream, _) = self.listener.accept().await?;
        let peer = Peer::connected_to(&stream)?;
        let lookup = Arc::clone(&self.lookup);
        Ok((Box::pin(async move { Ok((stream, lookup.caller(peer).await)) }), None))
    }
}

/// A local socket for gRPC, with the same callers.
pub(super) struct Grpc(pub(super) Local);

impl Listener for Grpc {
    type Stream = tokio::net::UnixStream;
    const PROTOCOL: Protocol = Protocol::Grpc;

    async fn accept(&self) -> io::Result<(Opening<Self::Stream>, Option<Source>)> {
        self.0.accept().await
    }
}

/// A TCP address without TLS. All of its callers count as the same caller.
pub(super) struct Plain {
    pub(super) listener: TcpListener,
    pub(super) caller: Caller,
}

impl Listener for Plain {
    type Stream = TcpStream;
    const IS_NETWORK: bool = true;

    async fn accept(&self) -> io::Result<(Opening<Self::Stream>, Option<Source>)> {
        let (stream, address) = self.listener.accept().await?;
        let caller = self.caller.clone();
        Ok((Box::pin(async move { Ok((stream, caller)) }), Some(Source::new(address.ip()))))
    }
}

/// kubelet's API on the network: TLS, with callers identified by their certificates.
pub(super) struct Secure {
    pub(super) listener: TcpListener,
    pub(super) tls: Arc<Tls>,
}

impl Listener for Secure {
    type Stream = TlsStream<HandshakeLimit<TcpStream>>;
    const IS_NETWORK: bool = true;
    // Every supported kernel reports this for TCP.
    const DELIVERY: Option<fn(&Self::Stream) -> Delivery> =
        Some(|stream| tcp::delivery(stream.get_ref().0.get_ref()).unwrap_or(Delivery::Acknowledged));

    async fn accept(&self) -> io::Result<(Opening<Self::Stream>, Option<Source>)> {
        let (stream, address) = self.listener.accept().await?;
        // Ends a stream that is followed for days after its client vanished without closing it.
        set_socket_keepalive(&stream, true)?;
        set_tcp_keepidle(&stream, KEEPALIVE_IDLE)?;
        set_tcp_keepintvl(&stream, KEEPALIVE_INTERVAL)?;
        set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        let tls = Arc::clone(&self.tls);
        let opening =
            async move { timeout(HEAD_TIMEOUT, tls.accept(stream)).await.map_err(|_| io::ErrorKind::TimedOut)? };
        Ok((Box::pin(opening), Some(Source::new(address.ip()))))
    }
}

/// Accepts connections and serves `app` to them until `stop`, then lets open ones finish.
pub(super) async fn serve<L: Listener>(listener: L, app: impl Into<OnDemand>, stop: CancellationToken) {
    let app = Arc::new(app.into());
    let connections = TaskTracker::new();
    let (places, crowd) = (Places::default(), Crowd::default());
    loop {
        let accepted = async {
            let place = if L::IS_NETWORK { None } else { places.opening().await };
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            () = stop.cancelled() => break,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((opening, source)) => {
                let unknown = source.map(|source| places.unknown(source));
                if matches!(unknown, Some(None)) {
                    debug!(?source, "connection closed: too many are being opened");
                    continue;
                }
                let (app, stop, places, crowd) = (Arc::clone(&app), stop.clone(), places.clone(), crowd.clone());
                let calls = Calls(connections.clone());
                crowd.enter();
                let serving = async move {
                    let (stream, caller) = match opening.await {
                        Ok(opened) => opened,
                        Err(error) => return debug!(%error, "connection refused"),
                    };
                    let Some(place) = places.take(place, &caller, source).await else { return };
                    drop(unknown);
                    let stream = Deadline::new(stream, WRITE_TIMEOUT, place.clone(), L::DELIVERY);
                    let routes = app.routes();
                    let app = Served { caller, place: place.clone(), places, app: Router::clone(&routes) };
                    match L::PROTOCOL {
                        Protocol::Http => http(stream, app, stop).await,
                        Protocol::Grpc => grpc(stream, app, calls, stop).await,
                    }
                    // A stream may still hold the place, but it no longer counts as one of these connections.
                    place.leave();
                };
                connections.spawn(async move {
                    serving.await;
                    if crowd.leave() {
                        memory::release_on_the_blocking_pool().await;
                    }
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

/// What one connection serves: the routes and its caller.
struct Served {
    caller: Caller,
    place: ConnectionSlot,
    places: Places,
    app: Router,
}

impl Served {
    /// The service of a connection, which attaches what is known of the connection to each request.
    fn service(
        self,
    ) -> impl Service<hyper::Request<hyper::body::Incoming>, Response = Response, Error = Infallible, Future: Send + 'static>
    {
        let Self { caller, place, places, app } = self;
        let app = TowerToHyperService::new(app);
        service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
            let extensions = request.extensions_mut();
            extensions.insert(caller.clone());
            extensions.insert(place.clone());
            extensions.insert(places.bodies.clone());
            extensions.insert(places.streams.clone());
            app.call(request)
        })
    }
}

async fn http(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, app: Served, stop: CancellationToken) {
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(MAX_HEAD)
        // A refused caller gets one response, then the connection closes.
        .keep_alive(!is_refused(&app.caller))
        .serve_connection(TokioIo::new(stream), app.service())
        .with_upgrades();
    let connection = std::pin::pin!(connection);
    report(finish(connection, |connection| connection.graceful_shutdown(), stop).await);
}

/// Serves gRPC. An admitted client may keep its connection as long as it likes.
async fn grpc(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Served,
    calls: Calls,
    stop: CancellationToken,
) {
    let refused = is_refused(&app.caller);
    let connection = http2::Builder::new(calls)
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEAD as u32)
        .serve_connection(TokioIo::new(LocalAuthority::new(stream)), app.service());
    let connection = std::pin::pin!(connection);
    let served = finish(connection, |connection| connection.graceful_shutdown(), stop);
    match refused {
        // A refused client has its response by then.
        true => timeout(HEAD_TIMEOUT, served).await.map_or((), report),
        false => report(served.await),
    }
}

/// Runs a connection to its end. After `stop` it has [`SHUTDOWN_GRACE`] to finish, because a watch never ends by
/// itself.
async fn finish<C: Future<Output = hyper::Result<()>>>(
    mut connection: Pin<&mut C>,
    shut_down: fn(Pin<&mut C>),
    stop: CancellationToken,
) -> hyper::Result<()> {
    tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            shut_down(connection.as_mut());
            timeout(SHUTDOWN_GRACE, connection).await.unwrap_or(Ok(()))
        }
    }
}

fn report(result: hyper::Result<()>) {
    if let Err(error) = result {
        debug!(%error, "connection ended");
    }
}

/// Runs the calls of a gRPC connection, which end with it.
#[derive(Clone)]
struct Calls(TaskTracker);

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Calls {
    fn execute(&self, call: F) {
        self.0.spawn(call);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
