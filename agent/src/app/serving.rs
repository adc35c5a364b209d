//! Makes the states of the routes from the core, and starts all listeners.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::watch;

use super::listeners::{start_cri, start_device_plugins, start_listeners, start_pod_resources, start_pods_api};
use super::{AppError, Core, SharedParts, decoder};
use crate::config::Config;
use crate::config::configz::document;
use crate::executor::containerd::ContainerdExecutor;
use limpet_containerd::image::Images;
use limpet_server::agent_restart::AgentRestart;
use limpet_server::cluster::ClusterState;
use limpet_server::cri::CriState;
use limpet_server::diagnostics::DiagnosticsState;
use limpet_server::diff::{DiffState, HasImage, ReadDirectory};
use limpet_server::exec::{AttachState, ExecState};
use limpet_server::kubelet::StreamStates;
use limpet_server::local::LocalStates;
use limpet_server::logs::LogState;
use limpet_server::pod_orders::PodOrdersState;
use limpet_server::port_forward::PortForwardState;
use limpet_server::settings::DebugHandlers;
use limpet_server::{self as server, Configz, ServerState};
use limpet_sources::file;
use limpet_telemetry::usage::claims::ClaimMeter;
use limpet_telemetry::usage::disks::{DiskMeter, MeasureDisks};
use limpet_telemetry::usage::{Meter, NodeReader};
use limpet_upgrade::report::{self, Reporter};
use limpet_upgrade::starter;
use limpet_watch::actors::actor_of_process;
use limpet_wire::status::UpgradeDocument;

/// The sockets that are reserved before anything else starts.
pub(super) struct Sockets {
    local: UnixListener,
    metrics: Option<TcpListener>,
}

impl Sockets {
    pub(super) async fn bind(config: &Config) -> Result<Self, AppError> {
        let local = server::bind(&config.socket())?;
        let metrics = match config.local.metrics_address {
            Some(address) => Some(server::bind_metrics(address).await?),
            None => None,
        };
        Ok(Self { local, metrics })
    }
}

/// Serves limpet's socket, the metrics, kubelet's API, CRI and the sockets of plugins.
pub(super) fn start_serving(
    shared: &SharedParts,
    core: Core,
    sockets: Sockets,
    diagnostics: DiagnosticsState,
    restart: AgentRestart,
) {
    let (config, stop) = (&shared.config, &shared.stop);
    let state = server_state(shared, &core, diagnostics.started);
    let streams = stream_states(shared, &core.executor, diagnostics);
    let exec = streams.exec.clone();
    let on_network = {
        let (state, streams, config) = (state.clone(), streams.clone(), Arc::clone(config));
        move || server::kubelet::routes(state.clone(), streams.clone(), &config.server.debug)
    };
    // Root on the node may do everything.
    let kubelet = {
        let state = state.clone();
        move || server::kubelet::routes(state.clone(), streams.clone(), &DebugHandlers::ALL)
    };
    let network = shared.backends.network.subscribe();
    let streaming = (Box::new(kubelet.clone()) as _, shared.tasks.clone());
    start_cri(shared, CriState::new(state.clone(), core.executor.images.clone(), network, exec, streaming));
    start_pod_resources(shared, state.clone());
    start_pods_api(shared, state.clone());
    start_device_plugins(shared, &state);
    let diff = diff_state(shared, &core);
    let orders = PodOrdersState { orders: core.pod_orders };
    let cluster = ClusterState { source: core.api_updates };
    let (images, shutdown) = (core.images, core.shutdown);
    let (bundles, generations) = (core.bundles, core.generations);
    let controllers = core.workload_memory;
    let (services, agent) = (shared.services.subscribe(), restart);
    let states =
        LocalStates { diff, images, orders, cluster, shutdown, agent, bundles, generations, controllers, services };
    let local = {
        let state = state.clone();
        move || (kubelet(), server::local::routes(state.clone(), states.clone()))
    };
    start_listeners(shared, &state, on_network);
    shared.tasks.spawn(server::serve(sockets.local, state.clone(), local, stop.clone()));
    if let Some(listener) = sockets.metrics {
        shared.tasks.spawn(server::serve_metrics(listener, state, stop.clone()));
    }
}

fn server_state(shared: &SharedParts, core: &Core, started: Timestamp) -> ServerState {
    ServerState {
        node_name: Arc::clone(&core.node_name),
        settings: Arc::new(shared.config.served_node()),
        configz: configz(&shared.config),
        actor_of_process,
        desired: shared.desired.clone(),
        observed: shared.observed.clone(),
        sources: Arc::clone(&core.sources),
        cluster: core.cluster.clone(),
        pusher: core.pusher.clone(),
        observer: Arc::clone(&core.observer),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
        meter: meter(shared, &core.executor),
        pressure: core.pressure.clone(),
        shutting_down: core.shutting_down.clone(),
        upgrade: follow_upgrade(shared),
        held_updates: shared.held_updates(),
        report: core.report.clone(),
        started,
        health: shared.health.clone(),
        device_plugins: Arc::clone(&shared.device_plugins),
        cpus: core.executor.cpus.clone(),
    }
}

/// Follows the result of the newest upgrade.
fn follow_upgrade(shared: &SharedParts) -> watch::Receiver<Option<UpgradeDocument>> {
    let (document, followed) = watch::channel(None);
    match starter::agent_slot() {
        Ok(slot) => {
            let reporter = Reporter {
                events: shared.events.clone(),
                metrics: shared.metrics.clone(),
                document: Arc::new(document),
            };
            shared.tasks.spawn(report::follow(slot, reporter, shared.stop.clone()));
        }
        Err(error) => tracing::warn!(%error, "the executables of this agent are not known"),
    }
    followed
}

fn diff_state(shared: &SharedParts, core: &Core) -> DiffState {
    DiffState {
        node_name: Arc::clone(&core.node_name),
        manifest_path: shared.config.sources.manifest_path.clone(),
        decoder: decoder(&shared.config),
        sources: Arc::clone(&core.sources),
        observed: shared.observed.clone(),
        generations: core.generations.as_ref().map(|state| state.views.clone()),
        read_directory: read_directory(shared, core),
        has_image: has_image(core.executor.images.clone()),
    }
}

/// Makes the document of `/configz` for each request, because keeping it would take more memory than the agent's idle
/// tasks.
fn configz(config: &Arc<Config>) -> Arc<Configz> {
    let config = Arc::clone(config);
    Arc::new(move || document(&config))
}

/// Reads the manifest directory as the file source does.
fn read_directory(shared: &SharedParts, core: &Core) -> Arc<ReadDirectory> {
    let (path, node_name) = (shared.config.sources.manifest_path.clone(), Arc::clone(&core.node_name));
    let decoder = decoder(&shared.config);
    Arc::new(move || match &path {
        Some(path) => file::read_all(path, &node_name, decoder),
        None => Ok(Vec::new()),
    })
}

/// The routes that carry streams of containers, and those for diagnosing the agent.
fn stream_states(shared: &SharedParts, executor: &ContainerdExecutor, diagnostics: DiagnosticsState) -> StreamStates {
    let (config, stop) = (&shared.config, &shared.stop);
    let (client, observed) = (&shared.backends.client, &shared.observed);
    let idle = config.server.stream_idle_timeout;
    StreamStates {
        logs: LogState::observed(observed.clone()),
        exec: ExecState::observed(
            client.clone(),
            shared.config.executor().exec_dir(),
            observed.clone(),
            idle,
            stop.clone(),
        ),
        attach: AttachState {
            client: client.clone(),
            attach_dir: shared.config.executor().attach_dir(),
            observed: observed.clone(),
            idle,
            stop: stop.clone(),
        },
        ports: PortForwardState::new(observed.clone(), executor.sandboxes.clone(), idle, stop.clone()),
        diagnostics,
    }
}

/// Measures what the node and its pods use, on request.
fn meter(shared: &SharedParts, executor: &Arc<ContainerdExecutor>) -> Meter {
    let (config, measure) = (&shared.config, Arc::clone(executor) as Arc<dyn MeasureDisks>);
    let claims = ClaimMeter::new(Arc::clone(&measure), config.volumes.stats_period);
    let disks = DiskMeter::new(measure, config.volumes.stats_period, shared.tasks.clone(), shared.stop.clone());
    Meter::new(Arc::new(NodeReader { cgroups: executor.cgroups.clone(), root: config.root_dir.clone() }), disks, claims)
}

/// Whether containerd has an image; an error is reported when it is pulled.
fn has_image(images: Images) -> Arc<HasImage> {
    Arc::new(move |image| {
        let images = images.clone();
        Box::pin(async move { images.is_here(&image).await.ok() })
    })
}
