//! kubelet's `/exec` and `/attach`: connects a client to a command in a container, or to the container's own process,
//! over a WebSocket or SPDY. Both limpet's command line and kubectl (through an apiserver) use Kubernetes'
//! remotecommand protocol for this.

mod attach;
mod protocol;
mod session;
mod spdy;
mod streams;
mod websocket;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use self::protocol::{SPDY, Version, WEBSOCKET};
use self::session::{Process, Session};
use super::channels::{Encoding, bounded};
use super::connection::OpenStreams;
use super::permission::{Permission, Subresource};
use super::routes::Routes;
use crate::spdy_upgrade::{is_requested, negotiate};
use limpet_containerd::client::Client;
use limpet_containerd::exec::ExecRequest;
use limpet_core::status::observed::{Observed, ObservedPod, ObservedPods};
use limpet_model::pod::PodKey;
use limpet_wire::idle::IdleTimeout;

pub use attach::AttachState;
use limpet_wire::command::{Command, Streams};
pub(super) use session::OUTPUT_IDLE;
pub(super) use websocket::check_messages;

/// The container in which to run a command, or to which to attach.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecTarget {
    pub pod: PodKey,
    /// The pod's UID, if the client gives one.
    pub uid: Option<String>,
    pub container: String,
}

impl ExecTarget {
    /// The target's pod, if its UID matches.
    pub(super) fn find<'a>(&self, pods: &'a ObservedPods) -> Result<&'a ObservedPod, ExecLookupError> {
        let pod = pods.find(&self.pod, self.uid.as_deref());
        pod.map(|pod| &**pod).ok_or_else(|| ExecLookupError::NoPod(self.pod.name().to_owned()))
    }
}

/// Why the target does not exist, with kubelet's messages.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExecLookupError {
    #[error("pod does not exist: {0}")]
    NoPod(String),
    /// The pod has no such container, or it is not running.
    #[error("container not found (\"{0}\")")]
    NotRunning(String),
}

impl IntoResponse for ExecLookupError {
    fn into_response(self) -> Response {
        (StatusCode::NOT_FOUND, format!("{self}\n")).into_response()
    }
}

/// Looks up the container's ID in containerd.
pub type LookUpContainer = dyn Fn(&ExecTarget) -> Result<String, ExecLookupError> + Send + Sync;

#[derive(Clone)]
pub struct ExecState {
    pub client: Client,
    /// The directory for the FIFOs of commands; see `limpet_containerd::exec::sweep`.
    pub fifo_dir: PathBuf,
    /// Looks up the container; must not block.
    pub lookup: Arc<LookUpContainer>,
    /// `streamingConnectionIdleTimeout`.
    pub idle: IdleTimeout,
    /// Cancelled when the agent stops; commands are then killed.
    pub stop: CancellationToken,
}

impl ExecState {
    /// Runs commands in the observed containers. A stream is closed after `idle` without data.
    pub fn observed(
        client: Client,
        fifo_dir: PathBuf,
        observed: Observed,
        idle: IdleTimeout,
        stop: CancellationToken,
    ) -> Self {
        let lookup = move |target: &ExecTarget| {
            let pods = observed.load();
            let pod = target.find(&pods)?;
            let container = pod.containers.get(&target.container).filter(|container| container.pid.is_some());
            container
                .map(|container| container.id.clone())
                .ok_or_else(|| ExecLookupError::NotRunning(target.container.clone()))
        };
        Self { client, fifo_dir, lookup: Arc::new(lookup), idle, stop }
    }
}

/// kubelet's `/exec/{namespace}/{pod}/{container}`, and the form with the pod's UID before the container.
///
/// The server must serve connections with upgrades.
pub(super) fn routes(state: ExecState) -> Routes {
    let permission = Permission::Nodes(Subresource::Proxy);
    let routes = Routes::default();
    let routes = paths("/exec")
        .into_iter()
        .fold(routes, |routes, path| routes.get(&path, permission, exec).post(&path, permission, exec));
    routes.with_state(state)
}

/// kubelet's `/attach`, in the same two forms.
///
/// The server must serve connections with upgrades.
pub(super) fn attach_routes(state: AttachState) -> Routes {
    let permission = Permission::Nodes(Subresource::Proxy);
    let routes = Routes::default();
    let routes = paths("/attach")
        .into_iter()
        .fold(routes, |routes, path| routes.get(&path, permission, attach).post(&path, permission, attach));
    routes.with_state(state)
}

/// The two forms of a path that names a container.
pub(super) fn paths(first: &str) -> [String; 2] {
    ["{namespace}/{pod}/{container}", "{namespace}/{pod}/{uid}/{container}"].map(|path| format!("{first}/{path}"))
}

#[derive(Debug, Deserialize)]
pub(super) struct ContainerPath {
    namespace: String,
    pod: String,
    uid: Option<String>,
    container: String,
}

impl TryFrom<ContainerPath> for ExecTarget {
    type Error = ExecLookupError;

    fn try_from(path: ContainerPath) -> Result<Self, ExecLookupError> {
        let ContainerPath { namespace, pod, uid, container } = path;
        let key = PodKey::parse(namespace, pod.as_str()).map_err(|_| ExecLookupError::NoPod(pod))?;
        Ok(Self { pod: key, uid, container })
    }
}

/// The request's WebSocket, or the reason why it has none.
type MaybeWebSocket = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn exec(
    State(state): State<ExecState>,
    Path(path): Path<ContainerPath>,
    Query(query): Query<Vec<(String, String)>>,
    upgrade: MaybeWebSocket,
    request: Request,
) -> Response {
    let Command { arguments: command, streams } = match Command::parse(&query) {
        Ok(command) => command,
        Err(message) => return bad_request(&message),
    };
    let container_id = match ExecTarget::try_from(path).and_then(|target| (state.lookup)(&target)) {
        Ok(container) => container,
        Err(error) => return error.into_response(),
    };
    let ExecState { client, fifo_dir, idle, stop, .. } = state;
    let command = ExecRequest { container_id, command, tty: streams.tty, stdin: streams.stdin };
    let process = Process::Command { client, fifo_dir, request: command };
    connect(Session { process, streams, version: Version::V1, idle, stop }, upgrade, request)
}

async fn attach(
    State(state): State<AttachState>,
    Path(path): Path<ContainerPath>,
    Query(query): Query<Vec<(String, String)>>,
    upgrade: MaybeWebSocket,
    request: Request,
) -> Response {
    let streams = match Streams::parse(&query) {
        Ok(streams) => streams,
        Err(message) => return bad_request(&message),
    };
    match ExecTarget::try_from(path).and_then(|target| state.attachment(&target)) {
        Ok(attachment) => {
            let process = Process::Container(attachment);
            let AttachState { idle, stop, .. } = state;
            connect(Session { process, streams, version: Version::V1, idle, stop }, upgrade, request)
        }
        Err(error) => error.into_response(),
    }
}

/// Serves the session over the requested protocol: SPDY or a WebSocket.
fn connect(mut session: Session, upgrade: MaybeWebSocket, mut request: Request) -> Response {
    let open = request.extensions().get::<OpenStreams>().cloned().unwrap_or_default();
    let place = match open.enter() {
        Ok(place) => place,
        Err(message) => return (StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n")).into_response(),
    };
    if is_requested(request.headers()) {
        return match negotiate(&mut request, &SPDY.map(|(name, _)| name)) {
            Ok(upgrade) => {
                let agreed = SPDY.into_iter().find(|(name, _)| *name == upgrade.protocol());
                session.version = agreed.map_or(Version::V4, |(_, version)| version);
                upgrade.on_upgrade(async move |io| {
                    let _place = place;
                    spdy::serve(io, session).await;
                })
            }
            Err(refused) => *refused,
        };
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade.protocols(WEBSOCKET.map(|(name, ..)| name)),
        Err(rejection) => return rejection.into_response(),
    };
    let encoding = match upgrade.selected_protocol().cloned() {
        Some(selected) => {
            let agreed = WEBSOCKET.into_iter().find(|(name, ..)| selected == *name);
            let (version, encoding) =
                agreed.map_or((Version::V4, Encoding::Binary), |(_, version, encoding)| (version, encoding));
            session.version = version;
            encoding
        }
        // A client that names no protocol gets the first.
        None if !request.headers().contains_key(SEC_WEBSOCKET_PROTOCOL) => Encoding::Binary,
        None => {
            let names = WEBSOCKET.map(|(name, ..)| name).join(", ");
            return bad_request(&format!("none of the subprotocols is supported; use one of {names}"));
        }
    };
    bounded(upgrade).on_upgrade(async move |socket| {
        let _place = place;
        websocket::serve(socket, session, encoding).await;
    })
}

fn bad_request(message: &str) -> Response {
    (StatusCode::BAD_REQUEST, format!("{message}\n")).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
