//! The composition root: builds the parts in order, gives each only the channel ends it needs, and starts the tasks
//! last.
//!
//! The order is: 1 disk, 2 core, 3 sockets (reserved, still silent), 4 tasks. Nothing here waits for containerd, a
//! network or an apiserver. What fails before the tasks start is an error with an exit code; what fails later is
//! logged and tried again.

mod bundles;
pub mod cluster;
mod database;
pub mod description;
mod error;
mod guard;
mod image_collection;
mod listeners;
mod node_changes;
mod node_report;
mod node_runtime;
mod node_shutdown;
mod observer;
pub mod published;
pub mod service;
mod services;
mod serving;
mod shortage;
mod sources;
pub mod supervision;
mod trials;

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::claim_disk;
use crate::config::{Config, RunFlags};
use crate::executor::containerd::ContainerdExecutor;
use crate::executor::containerd::compose::{Backends, ExecutorParts};
use crate::generations;
use crate::workload_memory::{self, WorkloadMemory};
use cluster::join_cluster;
use database::open_store;
pub use error::AppError;
use guard::arm_guard;
use image_collection::collect_images;
use limpet_cluster::{ClientSource, Link, LinkParts};
use limpet_core::known_pods::KeptImages;
use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::node_state::{NodeNetwork, NodePressure};
use limpet_core::pod_order::{self, PodOrder};
use limpet_core::source::push::{self, Pusher};
use limpet_core::source::{Decoder, cluster_update};
use limpet_core::status::observed::Observed;
use limpet_host::throttle::Throttle;
use limpet_model::attribution::{ManifestWatch, WatchObserver};
use limpet_model::manifest;
use limpet_model::node::NodeFacts;
use limpet_model::service_account::ServiceAccounts;
use limpet_node::NodeLock;
use limpet_node::capacity::Capacity;
use limpet_node::network::NetworkFollower;
use limpet_plugins::csi::{CsiDrivers, CsiVolumes, VolumesInUse};
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_server::agent_restart::AgentRestart;
use limpet_server::bundle::BundlesState;
use limpet_server::diagnostics::{DiagnosticsState, SetVerbosity};
use limpet_server::generations::GenerationsState;
use limpet_server::images::ImagesState;
use limpet_server::shutdown::ShutdownState;
use limpet_server::{HeldUpdates, Sources};
use limpet_services::links::ServiceLinks;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::{Health, Heartbeat};
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::reporter::Reporter;
use limpet_updates::UpdateGate;
use limpet_upgrade::starter;
use limpet_wire::services::ServicesDocument;
use limpet_wire::status::ReportDocument;
use limpet_worker::allocator::Allocator;
use node_changes::{follow_networks, watch_node_files};
use node_report::start_report;
use node_shutdown::follow_shutdown;
use observer::node_observer;
use published::ConfiguredSources;
use serving::{Sockets, start_serving};
use shortage::{enforce_allocatable, evictor};
use sources::{SourceInputs, StartedSources, start_sources};
use supervision::{CoreInputs, allocator, supervise};
use trials::{keeper_parts, trials};

/// How long the tasks may take to finish what they are doing.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(15);
/// Decodes manifests, whatever their source.
pub const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);

/// Decodes manifests according to this configuration.
fn decoder(config: &Config) -> Decoder {
    let decoder = DECODER.with_security(config.sources.pod_security);
    decoder.with_field_validation(config.sources.field_validation, manifest::read_leniently)
}

/// What the agent is made from, once it may start.
pub struct Prepared {
    pub config: Config,
    /// The flags with which it was started.
    pub flags: RunFlags,
    /// Changes the verbosity of the log.
    pub set_verbosity: Arc<SetVerbosity>,
    /// The node, including its settled name.
    pub node: NodeFacts,
    /// Kept until the process ends.
    pub lock: NodeLock,
}

/// How the agent ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It must not start again.
    Stopped,
    /// It must start again in this process.
    ToRestart,
}

/// What several parts share.
struct SharedParts {
    config: Arc<Config>,
    backends: Backends,
    capacity: Capacity,
    allocator: Arc<Allocator>,
    device_plugins: Arc<DevicePlugins>,
    csi: Arc<CsiVolumes>,
    csi_drivers: Arc<CsiDrivers>,
    volumes_in_use: VolumesInUse,
    node_network: watch::Receiver<NodeNetwork>,
    slots: Arc<Slots>,
    desired: Desired,
    /// The images of generations.
    kept_images: KeptImages,
    events: Events,
    observed: Observed,
    metrics: Metrics,
    health: Health,
    /// The Services of the node's own sources, as they are served.
    services: watch::Sender<ServicesDocument>,
    /// The Services whose variables containers get at their start.
    service_links: ServiceLinks,
    /// The connection to the apiserver; `None` without `--kubeconfig`.
    link: Option<Link>,
    /// What holds updates.
    updates: UpdateGate,
    /// The rate at which updates and images are read.
    throttle: Throttle,
    stop: CancellationToken,
    tasks: TaskTracker,
}

impl SharedParts {
    /// Lists the updates that wait now.
    fn held_updates(&self) -> HeldUpdates {
        let updates = self.updates.clone();
        Arc::new(move || updates.held())
    }
}

/// What runs without any listener: sources, core and executor, and the parts of them that the listeners need.
struct Core {
    node_name: Arc<str>,
    executor: Arc<ContainerdExecutor>,
    observer: Arc<dyn WatchObserver>,
    sources: Arc<dyn Sources>,
    pusher: Pusher,
    /// The channel to the source of bundles, if there is one.
    bundles: BundlesState,
    cluster: Option<Link>,
    /// The channel to the source of the apiserver's pods.
    api_updates: Option<mpsc::Sender<cluster_update::Update>>,
    images: ImagesState,
    pressure: watch::Receiver<NodePressure>,
    /// The channel to the supervisor for what users ask of pods.
    pod_orders: mpsc::Sender<PodOrder>,
    shutting_down: watch::Receiver<bool>,
    shutdown: ShutdownState,
    /// The generations of sources; `None` if no source has any.
    generations: Option<GenerationsState>,
    /// How the node's reports fare; `None`: it sends none.
    report: watch::Receiver<Option<ReportDocument>>,
    /// What the controllers of workloads remember.
    workload_memory: Arc<WorkloadMemory>,
}

/// Runs the agent until a signal stops it. Pods keep running.
///
/// # Errors
///
/// What is not available at the start: a directory, a socket, or the cgroups.
pub async fn run(prepared: Prepared) -> Result<Ended, AppError> {
    let Prepared { config, flags, set_verbosity, node, lock } = prepared;
    let started = Timestamp::now();
    let stop = CancellationToken::new();
    let signals = service::stop_on_signals(stop.clone()).map_err(AppError::Signals)?;
    let (health, heartbeat) = Health::new();
    let follower = NetworkFollower::new(config.node.ip, &node.name);
    let shared = shared(Arc::new(config), &node, follower.subscribe(), health, stop.clone()).await;
    let sockets = Sockets::bind(&shared.config).await?;
    let core = start_core(&shared, node, follower, heartbeat).await?;
    let diagnostics = DiagnosticsState { started, flags: Arc::new(flags.values()), set_verbosity };
    let restart = AgentRestart::new(stop.clone());
    start_serving(&shared, core, sockets, diagnostics, restart.clone());
    service::start_watchdog(&shared);
    let socket = shared.config.socket();
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %socket.display(), "limpet started");
    service::ready();

    stop.cancelled().await;
    service::stopping();
    drain(&shared.tasks).await;
    signals.abort();
    drop(lock);
    Ok(if restart.is_requested() { Ended::ToRestart } else { Ended::Stopped })
}

/// Opens the executor, arms the guard, opens the store, and starts all tasks but the listeners.
async fn start_core(
    shared: &SharedParts,
    node: NodeFacts,
    follower: NetworkFollower,
    heartbeat: Heartbeat,
) -> Result<Core, AppError> {
    let (config, stop) = (&shared.config, &shared.stop);
    let node_name: Arc<str> = Arc::from(node.name.as_str());
    let facts = node.clone();
    let executor = Arc::new(executor(shared, node).await?);
    shared.metrics.set_cgroup_version(if executor.cgroups.is_v2() { 2 } else { 1 });
    watch_node_files(shared, &executor.images);
    follow_networks(shared, follower);
    let observer = node_observer(shared, &executor.cgroups);
    arm_guard(shared, &executor.cgroups, &observer).await?;
    if let Err(error) = limpet_host::process::probe() {
        tracing::warn!(%error, "pidfd_open is refused: {}", limpet_host::process::WITHOUT_PIDFDS);
    }
    // Opened after the guard is armed, because an earlier strict guard may not know this executable.
    let store = open_store(config).await?;
    executor.pull_records.load(&store).await;
    shared.tasks.spawn(executor.pull_records.clone().follow(executor.images.clone(), stop.clone()));
    let (pusher, pushed) = push::channel(&node_name, decoder(config));
    let (offer, feeds) = mpsc::channel(1);
    let inputs = SourceInputs { pushed, observer: &observer, feeds, images: &executor.images };
    let StartedSources { sources, api_updates, bundles, bundle } = start_sources(shared, &node_name, &store, inputs);
    let programs = matches!(config.sources.watch, ManifestWatch::Auto | ManifestWatch::Ebpf);
    let offer = Some(offer).filter(|_| programs && config.sources.manifest_path.is_some());
    let (evictor, shortages) = evictor(shared, &executor, &sources);
    let (pod_orders, user_orders) = pod_order::channel();
    let (intake, shutdown) = follow_shutdown(shared);
    let shutting_down = intake.shutting_down.clone();
    let (controllers, memory) = workload_memory::load(&node_name, &store).await;
    let workload_memory = Arc::new(memory);
    let workloads = (controllers, Arc::clone(&workload_memory));
    let volumes = claim_disk::load(config).await;
    let generations = generations::load(keeper_parts(shared, &node_name, &store, &sources, &shutting_down)).await;
    let (trials, generations) = trials(shared, &executor, generations, pod_orders.clone());
    let inputs =
        CoreInputs { heartbeat, feeds: offer, shortages, shutdown: intake, user_orders, workloads, trials, volumes };
    let node_state = supervise(shared, &executor, &sources, inputs);
    let mirrored = sources.iter().map(|source| source.kind()).filter(|kind| kind.traits().is_mirrored).collect();
    let cluster = join_cluster(shared, facts, mirrored, node_state, api_updates.clone(), executor.images.clone());
    let images = collect_images(shared, &executor.images, &evictor.pods);
    let pressure = evictor.pressure.subscribe();
    shared.tasks.spawn(evictor.run(stop.clone()));
    enforce_allocatable(shared, &executor);
    let sources: Arc<dyn Sources> = Arc::new(ConfiguredSources { sources, store, link: cluster.clone() });
    let generation_views = generations.as_ref().map(|state| state.views.clone());
    let report = start_report(shared, &node_name, &sources, bundle, generation_views);
    Ok(Core {
        node_name,
        executor,
        observer,
        sources,
        pusher,
        bundles,
        cluster,
        api_updates,
        images,
        pressure,
        pod_orders,
        shutting_down,
        shutdown,
        generations,
        report,
        workload_memory,
    })
}

/// Waits until the tasks have finished what they are doing, for at most 15 s.
pub async fn drain(tasks: &TaskTracker) {
    tasks.close();
    if tokio::time::timeout(DRAIN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!(tasks = tasks.len(), "stop timed out; some tasks were still running");
    }
}

async fn shared(
    config: Arc<Config>,
    node: &NodeFacts,
    node_network: watch::Receiver<NodeNetwork>,
    health: Health,
    stop: CancellationToken,
) -> SharedParts {
    let capacity = Capacity::measure(&config.root_dir, config.capacity(), node).await;
    let tasks = TaskTracker::new();
    let table = config.plugins.devices.keys().cloned().collect();
    let device_plugins = Arc::new(DevicePlugins::new(table, &config.root_dir, tasks.clone(), stop.clone()));
    let csi_drivers = Arc::new(CsiDrivers::new(config.plugin_dir()));
    let volumes_in_use = VolumesInUse::default();
    let (events, metrics) = (Events::default(), Metrics::new(&node.name));
    SharedParts {
        allocator: Arc::new(allocator(&config, node, &capacity, &device_plugins)),
        device_plugins,
        csi: Arc::new(CsiVolumes::new(
            Arc::clone(&csi_drivers),
            volumes_in_use.clone(),
            &node.name,
            &config.root_dir,
            config.plugin_dir().as_deref(),
        )),
        csi_drivers,
        capacity,
        backends: Backends::open(&config.executor(), node, volumes_in_use.clone()).await,
        volumes_in_use,
        link: ClientSource::files(&config.cluster, &config.pki_dir()).map(|source| {
            let (metrics, events) = (metrics.clone(), events.clone());
            Link::new(source, &config.cluster.server, LinkParts { node_network: node_network.clone(), metrics, events })
        }),
        updates: UpdateGate::new(config.updates.gate.clone(), node_network.clone(), events.clone()),
        throttle: Throttle::new(config.updates.bandwidth),
        node_network,
        slots: Arc::default(),
        desired: Desired::default(),
        kept_images: KeptImages::default(),
        events,
        observed: Observed::default(),
        metrics,
        health,
        services: watch::Sender::default(),
        service_links: ServiceLinks::default(),
        stop,
        tasks,
        config,
    }
}

/// The executor, over what the other parts use as well.
async fn executor(shared: &SharedParts, node: NodeFacts) -> Result<ContainerdExecutor, AppError> {
    let parts = ExecutorParts {
        settings: shared.config.executor(),
        reporter: Arc::new(reporter(shared, &node)),
        node,
        node_network: shared.node_network.clone(),
        executable: starter::lasting_executable().map_err(AppError::Executable)?,
        backends: shared.backends.clone(),
        device_plugins: Arc::clone(&shared.device_plugins),
        csi: Arc::clone(&shared.csi),
        service_accounts: shared.link.clone().map(|link| Arc::new(link) as Arc<dyn ServiceAccounts>),
        updates: shared.updates.clone(),
        throttle: shared.throttle.clone(),
        service_links: shared.service_links.clone(),
    };
    Ok(ContainerdExecutor::open(parts).await?)
}

/// Where the core reports what happens.
fn reporter(shared: &SharedParts, node: &NodeFacts) -> Reporter {
    Reporter {
        runtime_endpoint: shared.config.runtime.endpoint.clone(),
        node_name: node.name.clone(),
        network: shared.backends.network.subscribe(),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
        observed: shared.observed.clone(),
        health: shared.health.clone(),
        devices: shared.device_plugins.clone(),
    }
}
