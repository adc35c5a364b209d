//! Serves kubelet's HTTP routes for node tools and limpet's own routes for the command line on the local socket, and
//! kubelet's routes on the network.
//!
//! A handler renders snapshots, passes a push to the push source or a debug container to its pod, or has the kernel's
//! counters read ([`limpet_telemetry::usage`]); none waits for a container. kubelet's routes ([`kubelet`]) and
//! limpet's own ([`local`]) are separate types, so a network listener cannot get the latter. Before any handler runs,
//! a layer checks that the caller has the route's permission ([`authorization`]). A connection costs one task. The
//! number of connections, request size and request time are bounded.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use jiff::Timestamp;
use serde_json::Value;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch as watch_channel;
use tokio_util::sync::CancellationToken;

use crate::settings::ServedNode;
use limpet_cluster::{Link, Reviews};
use limpet_core::merge::Desired;
use limpet_core::node_state::NodePressure;
use limpet_core::source::push::Pusher;
use limpet_core::status::observed::Observed;
use limpet_cpus::ExclusiveCpus;
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchObserver;
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::Health;
use limpet_telemetry::metrics::{Metrics, ServerType};
use limpet_telemetry::usage::Meter;
use limpet_wire::status::{HeldUpdateDocument, ReportDocument, UpgradeDocument};

mod admission;
pub mod agent_restart;
mod api;
mod authentication;
mod authorization;
mod bodies;
pub mod bundle;
mod caller;
mod channels;
pub mod cluster;
mod connection;
pub mod cri;
mod debug_container;
pub mod diagnostics;
pub mod diff;
mod events;
pub mod exec;
mod expiring;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod gate;
pub mod generations;
mod grpc;
pub mod health;
pub mod images;
mod json_response;
pub mod kubelet;
pub mod local;
pub mod logs;
mod node_logs;
mod objects;
mod on_demand;
mod permission;
mod pod_changes;
pub mod pod_orders;
mod pod_resources;
mod pods;
mod pods_api;
pub mod port_forward;
mod requests;
mod restart;
mod reviewer;
pub mod revisions;
mod routes;
mod run;
pub mod services;
pub mod settings;
pub mod shutdown;
pub mod sources;
mod spdy_upgrade;
mod stats;
pub mod status;
mod status_error;
pub mod stream_check;
mod tls;
pub mod usage;
mod view;
mod watch;

use caller::{Caller, CallerLookup};
use cri::CriState;
use gate::Gate;
use kubelet::KubeletRoutes;
use local::LocalRoutes;
use on_demand::OnDemand;
use requests::counted;
use routes::Routes;
pub use sources::{SourceView, Sources};
use tls::Tls;

/// Makes the document of `/configz`.
pub type Configz = dyn Fn() -> Value + Send + Sync;

/// Describes a process, given its PID and pidfd.
pub type ActorOfProcess = fn(u32, BorrowedFd<'_>, &dyn WatchObserver) -> Actor;

/// Lists the updates that wait now for a window, a cheaper link or an application.
pub type HeldUpdates = Arc<dyn Fn() -> Vec<HeldUpdateDocument> + Send + Sync>;

/// The state that every handler reads. Clones share everything.
#[derive(Clone)]
pub struct ServerState {
    pub node_name: Arc<str>,
    /// The part of the configuration that routes use and show.
    pub settings: Arc<ServedNode>,
    /// The whole configuration in effect, as `/configz` shows it.
    pub configz: Arc<Configz>,
    /// Describes the process that makes a request.
    pub actor_of_process: ActorOfProcess,
    pub desired: Desired,
    pub observed: Observed,
    /// The sources, their health and the manifests they reject.
    pub sources: Arc<dyn Sources>,
    pub events: Events,
    /// Sends pods, ConfigMaps and Secrets to the push source.
    pub pusher: Pusher,
    /// Finds the pod of a process that connects.
    pub observer: Arc<dyn WatchObserver>,
    /// The connection to the apiserver; `None` outside a cluster.
    pub cluster: Option<Link>,
    pub metrics: Metrics,
    /// Measures the usage of the node and its pods.
    pub meter: Meter,
    /// The resources that the node is short of.
    pub pressure: watch_channel::Receiver<NodePressure>,
    pub shutting_down: watch_channel::Receiver<bool>,
    /// Where new versions of limpet are put, and the result of the last upgrade.
    pub upgrade: watch_channel::Receiver<Option<UpgradeDocument>>,
    /// The updates that wait now.
    pub held_updates: HeldUpdates,
    /// How the node's reports fare; `None`: it sends none.
    pub report: watch_channel::Receiver<Option<ReportDocument>>,
    pub started: Timestamp,
    pub health: Health,
    pub device_plugins: Arc<DevicePlugins>,
    /// The exclusive processors of containers; `None` if that policy is off.
    pub cpus: Option<Arc<ExclusiveCpus>>,
}

#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The socket's path belongs to a file that is not a socket.
    #[error("{} is not a socket; move it away, it will not be overwritten", path.display())]
    NotASocket { path: PathBuf },
    #[error("{step} {}", path.display())]
    Socket {
        /// The failed operation: `bind`, `restrict`, …
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("metricsAddress {address} is not a loopback address; use 127.0.0.1 or [::1]")]
    NotLoopback { address: SocketAddr },
    #[error("listen on metricsAddress {address}")]
    Listen {
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
}

/// Opens the local socket at `path`, mode 0600, in place of an earlier agent's. The agent's lock ensures that no
/// other agent still serves it.
///
/// The new socket is created under another name and then renamed over the old one, so only root can ever connect.
/// Must be called within a tokio runtime.
pub fn bind(path: &Path) -> Result<UnixListener, ServerError> {
    let failed = |step| move |source| ServerError::Socket { step, path: path.to_owned(), source };
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed("create the directory of"))?;
    }
    if std::fs::symlink_metadata(path).is_ok_and(|metadata| !metadata.file_type().is_socket()) {
        return Err(ServerError::NotASocket { path: path.to_owned() });
    }
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = PathBuf::from(fresh);
    match std::fs::remove_file(&fresh) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("remove the stale temporary file of")(error));
        }
        _ => {}
    }
    let listener = UnixListener::bind(&fresh).map_err(failed("bind"))?;
    std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600)).map_err(failed("restrict"))?;
    std::fs::rename(&fresh, path).map_err(failed("rename"))?;
    Ok(listener)
}

/// Opens `metricsAddress`; only loopback addresses are allowed.
pub async fn bind_metrics(address: SocketAddr) -> Result<TcpListener, ServerError> {
    if !address.ip().is_loopback() {
        return Err(ServerError::NotLoopback { address });
    }
    TcpListener::bind(address).await.map_err(|source| ServerError::Listen { address, source })
}

/// Serves the local socket until `stop`; open connections then have half a second to finish. `state` identifies the
/// callers. `routes` makes the routes, which exist while a client is connected.
pub async fn serve(
    listener: UnixListener,
    state: ServerState,
    routes: impl Fn() -> (KubeletRoutes, LocalRoutes) + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let lookup = Arc::new(CallerLookup::new(&state));
    let reported = Arc::clone(&lookup);
    let app = OnDemand::new(move || {
        let (kubelet, local) = routes();
        let app = counted(kubelet.0.merge(local.0).into_router(), &state.metrics, ServerType::ReadWrite);
        app.layer(from_fn_with_state(Arc::clone(&reported), caller::report_refused))
    });
    connection::serve(connection::Local { listener, lookup }, app, stop).await;
}

/// Serves CRI on its socket until `stop`, to the callers of the local socket.
pub async fn serve_cri(listener: UnixListener, state: CriState, stop: CancellationToken) {
    let lookup = Arc::new(CallerLookup::new(&state.server));
    serve_grpc(listener, lookup, cri::services(state), stop).await;
}

/// Serves kubelet's PodResources on its socket until `stop`, to the callers of the local socket.
pub async fn serve_pod_resources(listener: UnixListener, state: ServerState, stop: CancellationToken) {
    let lookup = Arc::new(CallerLookup::new(&state));
    serve_grpc(listener, lookup, pod_resources::services(state), stop).await;
}

/// Serves kubelet's Pods API on its socket until `stop`, to the callers of the local socket.
pub async fn serve_pods_api(listener: UnixListener, state: ServerState, stop: CancellationToken) {
    let lookup = Arc::new(CallerLookup::new(&state));
    serve_grpc(listener, lookup, pods_api::services(state), stop).await;
}

/// Serves the registration of device plugins on its socket until `stop`. Like kubelet, it serves whoever can open the
/// socket, since plugins run in pods.
pub async fn serve_registration(listener: UnixListener, state: ServerState, services: Router, stop: CancellationToken) {
    let lookup = Arc::new(CallerLookup::new(&state));
    connection::serve(connection::Grpc(connection::Local { listener, lookup }), services, stop).await;
}

async fn serve_grpc(listener: UnixListener, lookup: Arc<CallerLookup>, services: Router, stop: CancellationToken) {
    let app = grpc::guarded(services).layer(from_fn_with_state(Arc::clone(&lookup), caller::report_refused));
    connection::serve(connection::Grpc(connection::Local { listener, lookup }), app, stop).await;
}

/// Serves `/metrics` and the health routes on `metricsAddress` until `stop`.
pub async fn serve_metrics(listener: TcpListener, state: ServerState, stop: CancellationToken) {
    let app = read_by_all(state, kubelet::observability);
    connection::serve(connection::Plain { listener, caller: Caller::Anonymous }, app, stop).await;
}

/// Serves health alone on `healthzPort` until `stop`.
pub async fn serve_health(listener: TcpListener, state: ServerState, stop: CancellationToken) {
    let app = read_by_all(state, kubelet::health);
    connection::serve(connection::Plain { listener, caller: Caller::Anonymous }, app, stop).await;
}

/// Serves pods, statistics, health and metrics on `readOnlyPort` until `stop`.
pub async fn serve_read_only(listener: TcpListener, state: ServerState, stop: CancellationToken) {
    let app = read_by_all(state, kubelet::read_only);
    connection::serve(connection::Plain { listener, caller: Caller::ReadOnly }, app, stop).await;
}

/// The service of a listener that does not tell its callers apart.
fn read_by_all(state: ServerState, routes: fn() -> Routes<ServerState>) -> OnDemand {
    OnDemand::new(move || {
        counted(routes().with_state(state.clone()).into_router(), &state.metrics, ServerType::ReadOnly)
    })
}

/// Serves kubelet's API on `port` over TLS until `stop`, to the users whom the gate admits. `routes` makes the routes,
/// which exist while a client is connected.
pub async fn serve_api(
    listener: TcpListener,
    state: &ServerState,
    routes: impl Fn() -> KubeletRoutes + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let reviews = state.cluster.clone().map(|link| Arc::new(link) as Arc<dyn Reviews>);
    let gate = Gate::new(state.settings.server.clone(), Arc::clone(&state.node_name), reviews);
    let tls = Arc::new(Tls::new(&state.settings, &state.node_name, gate));
    let metrics = state.metrics.clone();
    let app = OnDemand::new(move || counted(routes().0.into_router(), &metrics, ServerType::ReadWrite));
    connection::serve(connection::Secure { listener, tls }, app, stop).await;
}

#[cfg(test)]
mod tests;
