//! The listeners besides limpet's own socket. None of them delays a pod: an address on the network that is not
//! available now is tried again.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::SharedParts;
use limpet_core::node_state::NodeNetwork;
use limpet_model::error_chain::error_chain;
use limpet_plugins::device_plugins::registration;
use limpet_plugins::plugin_directory::{self, Registries};
use limpet_server::cri::CriState;
use limpet_server::kubelet::KubeletRoutes;
use limpet_server::{self as server, ServerState};

/// How often an address is tried that another process uses, or that the node does not have yet.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Serves kubelet's API, whose routes `kubelet` makes, its read-only port and its health port, if they are configured.
pub(super) fn start_listeners(
    shared: &SharedParts,
    state: &ServerState,
    kubelet: impl Fn() -> KubeletRoutes + Send + Sync + 'static,
) {
    let settings = &shared.config.server;
    if let Some(address) = settings.api() {
        let (listening, stop) = (listening(shared, "port", address), shared.stop.clone());
        let state = state.clone();
        shared.tasks.spawn(async move {
            if let Some(listener) = listening.await {
                server::serve_api(listener, &state, kubelet, stop).await;
            }
        });
    }
    if let Some(address) = settings.read_only() {
        let (listening, stop) = (listening(shared, "readOnlyPort", address), shared.stop.clone());
        let state = state.clone();
        shared.tasks.spawn(async move {
            if let Some(listener) = listening.await {
                server::serve_read_only(listener, state, stop).await;
            }
        });
    }
    if let Some(address) = settings.healthz() {
        let (listening, stop) = (listening(shared, "healthzPort", address), shared.stop.clone());
        let state = state.clone();
        shared.tasks.spawn(async move {
            if let Some(listener) = listening.await {
                server::serve_health(listener, state, stop).await;
            }
        });
    }
}

/// Serves CRI, unless it is switched off or its socket cannot be opened.
pub(super) fn start_cri(shared: &SharedParts, state: CriState) {
    let Some(path) = shared.config.cri_socket() else { return };
    match server::bind(&path) {
        Ok(listener) => drop(shared.tasks.spawn(server::serve_cri(listener, state, shared.stop.clone()))),
        Err(error) => tracing::error!(error = error_chain(&error), "serving CRI failed"),
    }
}

/// Serves kubelet's PodResources, unless its socket cannot be opened.
pub(super) fn start_pod_resources(shared: &SharedParts, state: ServerState) {
    match server::bind(&shared.config.pod_resources_socket()) {
        Ok(listener) => drop(shared.tasks.spawn(server::serve_pod_resources(listener, state, shared.stop.clone()))),
        Err(error) => tracing::error!(error = error_chain(&error), "serving PodResources failed"),
    }
}

/// Serves kubelet's Pods API, unless its socket cannot be opened.
pub(super) fn start_pods_api(shared: &SharedParts, state: ServerState) {
    match server::bind(&shared.config.pods_api_socket()) {
        Ok(listener) => drop(shared.tasks.spawn(server::serve_pods_api(listener, state, shared.stop.clone()))),
        Err(error) => tracing::error!(error = error_chain(&error), "serving the Pods API failed"),
    }
}

/// Serves the registration of device plugins and follows the directory of plugins, unless that is switched off.
/// Sockets of an earlier agent are removed first, so that plugins register again.
pub(super) fn start_device_plugins(shared: &SharedParts, state: &ServerState) {
    let plugins = &shared.device_plugins;
    shared.tasks.spawn(Arc::clone(plugins).run());
    let (csi, stop) = (Arc::clone(&shared.csi), shared.stop.clone());
    shared.tasks.spawn(async move { csi.run(stop).await });
    let Some(directory) = shared.config.plugin_dir() else { return };
    let registries = Registries { devices: Arc::clone(plugins), csi: Arc::clone(&shared.csi_drivers) };
    let follow = plugin_directory::follow(registries, directory.join("plugins_registry"), shared.stop.clone());
    shared.tasks.spawn(follow);
    let sockets = directory.join("device-plugins");
    if let Err(error) = registration::clear(&sockets) {
        return tracing::error!(path = %sockets.display(), %error, "device plugins cannot register");
    }
    match server::bind(&sockets.join(registration::SOCKET)) {
        Ok(listener) => {
            let services = registration::services(Arc::clone(plugins), sockets);
            shared.tasks.spawn(server::serve_registration(listener, state.clone(), services, shared.stop.clone()));
        }
        Err(error) => tracing::error!(error = error_chain(&error), "device plugins cannot register"),
    }
}

/// Listens at `address`, which the key `name` configures, once it is available. `None` if the agent stops.
fn listening(
    shared: &SharedParts,
    name: &'static str,
    address: SocketAddr,
) -> impl Future<Output = Option<TcpListener>> + use<> {
    let (network, stop) = (shared.node_network.clone(), shared.stop.clone());
    listen(name, address, network, stop)
}

async fn listen(
    name: &'static str,
    address: SocketAddr,
    mut network: watch::Receiver<NodeNetwork>,
    stop: CancellationToken,
) -> Option<TcpListener> {
    let mut reported = None;
    loop {
        let error = match TcpListener::bind(address).await {
            Ok(listener) => {
                tracing::info!(%address, "serving {name}");
                return Some(listener);
            }
            Err(error) => error,
        };
        if reported != Some(error.kind()) {
            reported = Some(error.kind());
            tracing::warn!(%address, %error, "{name} cannot be served yet; trying again");
        }
        tokio::select! {
            () = stop.cancelled() => return None,
            // A change of the network may have given the node the address.
            Ok(()) = network.changed() => {}
            () = tokio::time::sleep(TRY_AGAIN) => {}
        }
    }
}
