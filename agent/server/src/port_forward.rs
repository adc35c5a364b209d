//! kubelet's `/portForward`: forwards a client's TCP connections to ports of a pod. They are pairs of SPDY streams,
//! over an upgraded connection or tunnelled through a WebSocket, as `limpet port-forward` and kubectl (through an
//! apiserver) request it, or channels of a WebSocket.

mod channels;
mod forward;
mod pairs;
mod session;
mod tunnel;

use std::sync::Arc;

use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::http::header::SEC_WEBSOCKET_PROTOCOL;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

use super::channels::{Encoding, bounded};
use super::permission::{Permission, Subresource};
use super::routes::Routes;
use crate::spdy_upgrade::{is_requested, negotiate};
use limpet_core::status::observed::{Observed, ObservedPod};
use limpet_host::pod_port::{self, PodPortError};
use limpet_host::sandbox::Sandboxes;
use limpet_model::pod::{PodKey, PodUid};
use limpet_wire::idle::IdleTimeout;
use limpet_wire::port_forward::PROTOCOL;

pub(super) use channels::check_messages;

/// SPDY within the binary messages of a WebSocket.
const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
/// The most clients that forward ports at once.
const MAX_SESSIONS: usize = 64;

/// The pod whose ports are forwarded.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Target {
    key: PodKey,
    uid: PodUid,
    /// Whether the pod has the host's network.
    host_network: bool,
}

/// Connects to a port of a pod, in the pod's network or the host's.
type Connect = dyn Fn(&Target, u16) -> BoxFuture<'static, Result<TcpStream, PodPortError>> + Send + Sync;

/// The state of the routes. Clones share the bound on sessions.
#[derive(Clone)]
pub struct PortForwardState {
    observed: Observed,
    connect: Arc<Connect>,
    sessions: Arc<Semaphore>,
    idle: IdleTimeout,
    /// Cancelled when the agent stops; connections are then closed.
    stop: CancellationToken,
}

impl PortForwardState {
    /// Forwards to the observed pods, whose networks `sandboxes` holds. A session is closed after `idle` without
    /// data.
    pub fn new(observed: Observed, sandboxes: Sandboxes, idle: IdleTimeout, stop: CancellationToken) -> Self {
        let connect = move |target: &Target, port| -> BoxFuture<'static, _> {
            let network = (!target.host_network).then(|| sandboxes.network(&target.uid));
            Box::pin(pod_port::connect(network, port))
        };
        Self { observed, connect: Arc::new(connect), sessions: Arc::new(Semaphore::new(MAX_SESSIONS)), idle, stop }
    }
}

/// kubelet's `/portForward/{namespace}/{pod}` and `/portForward/{namespace}/{pod}/{uid}`.
///
/// The server must serve connections with upgrades.
pub(super) fn routes(state: PortForwardState) -> Routes {
    let (path, permission) = ("/portForward/{namespace}/{pod}", Permission::Nodes(Subresource::Proxy));
    let with_uid = format!("{path}/{{uid}}");
    let routes = Routes::default().get(path, permission, by_name).post(path, permission, by_name);
    routes.get(&with_uid, permission, by_uid).post(&with_uid, permission, by_uid).with_state(state)
}

type Upgrade = Result<WebSocketUpgrade, WebSocketUpgradeRejection>;

async fn by_name(
    State(state): State<PortForwardState>,
    Path((namespace, pod)): Path<(String, String)>,
    Query(query): Query<Vec<(String, String)>>,
    upgrade: Upgrade,
    request: Request,
) -> Response {
    port_forward(state, PodKey::parse(namespace, pod).ok(), None, &query, upgrade, request)
}

async fn by_uid(
    State(state): State<PortForwardState>,
    Path((namespace, pod, uid)): Path<(String, String, String)>,
    Query(query): Query<Vec<(String, String)>>,
    upgrade: Upgrade,
    request: Request,
) -> Response {
    port_forward(state, PodKey::parse(namespace, pod).ok(), Some(uid), &query, upgrade, request)
}

fn port_forward(
    state: PortForwardState,
    key: Option<PodKey>,
    uid: Option<String>,
    query: &[(String, String)],
    upgrade: Upgrade,
    mut request: Request,
) -> Response {
    let answer = |status: StatusCode, message: &str| (status, format!("{message}\n")).into_response();
    let Some(target) = key.and_then(|key| target(&state.observed, key, uid)) else {
        return answer(StatusCode::NOT_FOUND, "pod does not exist");
    };
    let Ok(place) = Arc::clone(&state.sessions).try_acquire_owned() else {
        let message = format!("{MAX_SESSIONS} clients forward ports of this node; try again later");
        return answer(StatusCode::SERVICE_UNAVAILABLE, &message);
    };
    if is_requested(request.headers()) {
        return match negotiate(&mut request, &[PROTOCOL]) {
            Ok(upgrade) => upgrade.on_upgrade(move |io| session::serve(io, state, target, place)),
            Err(refused) => *refused,
        };
    }
    let upgrade = match upgrade {
        Ok(upgrade) => upgrade.protocols([TUNNEL, channels::PROTOCOLS[0].0, channels::PROTOCOLS[1].0]),
        Err(rejection) => return rejection.into_response(),
    };
    let upgrade = bounded(upgrade);
    let encoding = match upgrade.selected_protocol() {
        Some(selected) if selected == TUNNEL => {
            return upgrade.on_upgrade(move |socket| session::serve(tunnel::bytes(socket), state, target, place));
        }
        Some(selected) => {
            let agreed = channels::PROTOCOLS.into_iter().find(|(name, _)| selected == *name);
            agreed.map_or(Encoding::Binary, |(_, encoding)| encoding)
        }
        // A client that names no protocol gets the first of these.
        None if !request.headers().contains_key(SEC_WEBSOCKET_PROTOCOL) => Encoding::Binary,
        None => {
            let names = channels::PROTOCOLS.map(|(name, _)| name).join(", ");
            let message = format!("none of the subprotocols is supported; use one of {TUNNEL}, {names}");
            return answer(StatusCode::BAD_REQUEST, &message);
        }
    };
    match channels::ports(query, encoding) {
        Ok(ports) => upgrade.on_upgrade(move |socket| channels::serve(socket, encoding, ports, state, target, place)),
        Err(message) => answer(StatusCode::BAD_REQUEST, &message),
    }
}

/// The pod with this name and, if one is given, this UID, if it has a network to connect to.
fn target(observed: &Observed, key: PodKey, uid: Option<String>) -> Option<Target> {
    let pods = observed.load();
    let pod = pods.find(&key, uid.as_deref())?;
    has_not_ended(pod).then(|| Target {
        key,
        uid: pod.record.uid.clone(),
        host_network: pod.record.spec().host_network == Some(true),
    })
}

fn has_not_ended(pod: &ObservedPod) -> bool {
    !matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

impl Target {
    /// Resolves when the pod has ended.
    async fn ended(&self, observed: &Observed) {
        let mut changes = observed.changes();
        let lives = || {
            let pods = observed.load();
            pods.pods.get(&self.key).is_some_and(|pod| pod.record.uid == self.uid && has_not_ended(pod))
        };
        while lives() && changes.next().await {}
    }
}

/// A session's permit among those that may run at once.
type SessionPermit = OwnedSemaphorePermit;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
