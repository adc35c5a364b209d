//! A proxy on containerd's socket that sees every request of the agent and can do harm at any of them.
//!
//! It passes on HTTP/2 request by request, including streams, with one connection to containerd for each of the
//! agent's, so that either side notices the other's end as it would without a proxy.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context as _, Result};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fault::{Harm, Moment, Target};

type Body = BoxBody<Bytes, hyper::Error>;

/// What is done to a process when the request comes. It gets the agent's process id.
pub(crate) type Blow = Arc<dyn Fn(u32) + Send + Sync>;

/// Something that happens once.
#[derive(Clone)]
pub(crate) struct Armed {
    /// The request at which it happens.
    pub(crate) target: Target,
    /// Whether it happens before containerd sees the request, or after containerd has answered.
    pub(crate) moment: Moment,
    /// What happens.
    pub(crate) harm: Harm,
    /// Harms the process that `harm` is about.
    pub(crate) blow: Blow,
}

/// One request, counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// `Tasks.Create`.
    pub(crate) method: String,
    /// Its number among those of its method, from one.
    pub(crate) number: usize,
    /// The pod that it is about, if its requests are counted by pod.
    pub(crate) about: Option<String>,
}

/// A pod, and the ends of its containers' ids.
pub(crate) type Named = (String, Vec<String>);

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    counts: BTreeMap<(Option<String>, String), usize>,
    pods: Vec<Named>,
    total: usize,
    armed: Vec<Armed>,
    struck: Vec<String>,
}

struct Shared {
    upstream: PathBuf,
    state: Mutex<State>,
}

/// The proxy. Dropping it closes the socket and all connections.
pub(crate) struct Proxy {
    socket: PathBuf,
    shared: Arc<Shared>,
    /// Ends the thread that serves, and with it every connection.
    _stop: DropGuard,
}

impl Proxy {
    /// Listens on `socket` for requests to the containerd at `upstream`.
    pub(crate) fn start(socket: &Path, upstream: &Path) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::bind(socket).with_context(|| format!("{}", socket.display()))?
        };
        let shared = Arc::new(Shared { upstream: upstream.to_owned(), state: Mutex::default() });
        let (accepting, stop) = (Arc::clone(&shared), CancellationToken::new());
        let accept = async move {
            while let Ok((downstream, _)) = listener.accept().await {
                tokio::spawn(connection(Arc::clone(&accepting), downstream));
            }
        };
        let stopped = stop.clone();
        std::thread::spawn(move || runtime.block_on(stopped.run_until_cancelled(accept)));
        Ok(Self { socket: socket.to_owned(), shared, _stop: stop.drop_guard() })
    }

    /// The socket to which the agent connects.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Begins to count anew, with nothing armed. The requests that name one of `pods` in their body are counted by pod,
    /// all others together.
    pub(crate) fn reset_counts(&self, pods: Vec<Named>) {
        *self.shared.state() = State { pods, ..State::default() };
    }

    /// Arms harm, of which each happens once.
    pub(crate) fn arm(&self, armed: impl IntoIterator<Item = Armed>) {
        self.shared.state().armed.extend(armed);
    }

    /// The requests since counting began.
    pub(crate) fn calls(&self) -> Vec<Call> {
        self.shared.state().calls.clone()
    }

    /// The requests for which harm is still armed, because they have not come.
    pub(crate) fn still_armed(&self) -> Vec<Target> {
        self.shared.state().armed.iter().map(|armed| armed.target.clone()).collect()
    }

    /// The harm that has happened, in words.
    pub(crate) fn struck(&self) -> Vec<String> {
        self.shared.state().struck.clone()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a request and takes the harm that is armed for it.
    fn count(&self, method: &str, body: &[u8]) -> Option<Armed> {
        let mut state = self.state();
        let holds = |digits: &String| body.windows(digits.len()).any(|window| window == digits.as_bytes());
        let about = state.pods.iter().find(|(_, ids)| ids.iter().any(holds)).map(|(name, _)| name.clone());
        state.total += 1;
        let total = state.total;
        let number = state.counts.entry((about.clone(), method.to_owned())).or_default();
        *number += 1;
        let call = Call { method: method.to_owned(), number: *number, about };
        state.calls.push(call.clone());
        let hit = state.armed.iter().position(|armed| armed.target.is(&call, total))?;
        let armed = state.armed.remove(hit);
        state.struck.push(format!("{}#{} {}", call.method, call.number, armed.harm));
        Some(armed)
    }
}

/// Serves one connection of the agent by one to containerd. The end of either ends the other.
async fn connection(shared: Arc<Shared>, downstream: UnixStream) {
    let Ok(upstream) = UnixStream::connect(&shared.upstream).await else { return };
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(upstream));
    let Ok((requests, link)) = handshake.await else { return };
    let cut = CancellationToken::new();
    let _guard = cut.clone().drop_guard();
    let lost = cut.clone();
    tokio::spawn(async move {
        tokio::select! { _ = link => lost.cancel(), () = lost.cancelled() => {} }
    });
    let agent = downstream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok()).unwrap_or(0);
    let service = hyper::service::service_fn(|request| {
        let (shared, requests, link) = (Arc::clone(&shared), requests.clone(), Link { agent, cut: cut.clone() });
        async move { Ok::<_, Infallible>(pass_on(&shared, requests, &link, request).await) }
    });
    let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(downstream), service);
    tokio::select! { _ = serving => {}, () = cut.cancelled() => {} }
}

/// The connection on which a request came.
struct Link {
    agent: u32,
    cut: CancellationToken,
}

/// Passes on one request and its answer, or does what is armed instead.
async fn pass_on(
    shared: &Shared,
    mut requests: SendRequest<Body>,
    link: &Link,
    request: Request<Incoming>,
) -> Response<Body> {
    let method = short_name(request.uri().path());
    let (parts, body) = request.into_parts();
    let (body, bytes) = match method.as_str() {
        // This is a stream in both directions, so its end is not awaited.
        "Content.Write" => (body.boxed(), Bytes::new()),
        _ => {
            let bytes = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            (Full::new(bytes.clone()).map_err(never).boxed(), bytes)
        }
    };
    let armed = shared.count(&method, &bytes);
    if let Some(armed) = armed.as_ref().filter(|armed| armed.moment == Moment::Before)
        && let Some(answer) = strike(armed, link).await
    {
        return answer;
    }
    let Ok(answer) = requests.send_request(Request::from_parts(parts, body)).await else {
        link.cut.cancel();
        return std::future::pending().await;
    };
    match armed.as_ref().filter(|armed| armed.moment == Moment::After) {
        Some(armed) => {
            // The whole answer has arrived before anything happens, except for the one that never ends.
            let answer =
                if method == "Events.Subscribe" { answer.map(BodyExt::boxed) } else { whole(answer, link).await };
            strike(armed, link).await.unwrap_or(answer)
        }
        None => answer.map(BodyExt::boxed),
    }
}

async fn whole(answer: Response<Incoming>, link: &Link) -> Response<Body> {
    let (parts, body) = answer.into_parts();
    match body.collect().await {
        Ok(body) => Response::from_parts(parts, body.map_err(never).boxed()),
        Err(_) => {
            link.cut.cancel();
            std::future::pending().await
        }
    }
}

/// Does the harm. Returns the answer in place of containerd's.
async fn strike(armed: &Armed, link: &Link) -> Option<Response<Body>> {
    let (blow, agent) = (Arc::clone(&armed.blow), link.agent);
    tokio::task::spawn_blocking(move || blow(agent)).await.ok();
    match &armed.harm {
        // The agent is dead, or gives up by itself; this request is then dropped.
        Harm::KillAgent | Harm::Delay => std::future::pending().await,
        Harm::Cut => {
            link.cut.cancel();
            std::future::pending().await
        }
        Harm::Answer(code) => Some(refusal(code.number(), code.name())),
        _ => None,
    }
}

/// An answer that is a gRPC status and nothing else.
fn refusal(code: u8, name: &str) -> Response<Body> {
    let mut answer = Response::new(Empty::new().map_err(never).boxed());
    let headers = answer.headers_mut();
    headers.insert("content-type", hyper::header::HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", u16::from(code).into());
    if let Ok(message) = format!("a fault was asked for: {name}").parse() {
        headers.insert("grpc-message", message);
    }
    answer
}

fn never(error: Infallible) -> hyper::Error {
    match error {}
}

/// `/containerd.services.tasks.v1.Tasks/Create` as `Tasks.Create`.
fn short_name(path: &str) -> String {
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    format!("{}.{method}", service.rsplit('.').next().unwrap_or_default())
}
