//! Hollow nodes: many nodes in one process, to see what a cluster of them costs and how it comes through an outage.
//!
//! Each is the agent but for what it runs pods in: its connection with a lease and watches of its own, the apiserver's
//! source with its database, merge, supervisor, workers, statuses and events. Containers are numbers in memory
//! ([`limpet_worker::fake`]). The nodes share this machine's facts, its network, the runtime and the settings of TLS.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use limpet::app::cluster::follow_selectable;
use limpet::app::published::Published;
use limpet::app::supervision::{LIFECYCLE_INBOX, allocator};
use limpet::app::{AppError, DECODER, description, drain, service};
use limpet::config::Config;
use limpet_apiserver_client::Credentials;
use limpet_cluster::certificates::CertificateSettings;
use limpet_cluster::{ClientSource, HollowRuntime, Link, LinkParts, NodeRuntime};
use limpet_core::admission::Selectable;
use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::node_shutdown::ShutdownIntake;
use limpet_core::node_state::{NodeNetwork, NodePressure, NodeState};
use limpet_core::pod_order;
use limpet_core::probe::ProbeGrid;
use limpet_core::source::cluster_update;
use limpet_core::status::observed::Observed;
use limpet_host::clock;
use limpet_host::network::NetworkStatus;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::node::NodeFacts;
use limpet_model::source::SourceKind;
use limpet_node::capacity::Capacity;
use limpet_node::network::NetworkFollower;
use limpet_plugins::csi::{CsiDrivers, CsiVolumes, VolumesInUse};
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_sources::api::ApiSource;
use limpet_store::Store;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::{Health, Heartbeat};
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::reporter::Reporter;
use limpet_worker::fake::FakeExecutor;
use limpet_worker::fake::world::{POD_ADDRESSES, World, live};
use limpet_worker::supervisor::{Intake, Supervisor};
use limpet_worker::watched_processes::WatchedProcesses;
use limpet_worker::{WorkerContext, merge_loop};

/// How many there can be: as many as their pods' networks have room in 10.0.0.0/8.
pub(super) const MAX_HOLLOW_NODES: u32 = (1 << 24) / POD_ADDRESSES;
/// Where the addresses of their pods begin.
const POD_NETWORKS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 0);

/// What hollow nodes are made of.
#[derive(Debug)]
pub(super) struct HollowNodes {
    /// The settings of each.
    pub(super) config: Config,
    /// Whose user may impersonate nodes.
    pub(super) credentials: Credentials,
    /// This machine; each node has its own name instead.
    pub(super) facts: NodeFacts,
    /// How many, [`MAX_HOLLOW_NODES`] at most.
    pub(super) count: u32,
    /// Their names are `<prefix>-0`, `<prefix>-1` and so on.
    pub(super) prefix: String,
    /// An empty directory for their databases, which the caller removes.
    pub(super) dir: PathBuf,
}

/// What all of them share.
struct Common {
    config: Arc<Config>,
    credentials: Credentials,
    facts: NodeFacts,
    capacity: Capacity,
    runtime: Arc<dyn NodeRuntime>,
    device_plugins: Arc<DevicePlugins>,
    followed: Arc<WatchedProcesses>,
    node_network: watch::Receiver<NodeNetwork>,
    network: watch::Receiver<NetworkStatus>,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Runs them until a signal stops the process.
///
/// # Errors
/// Signals or a database are not available.
pub(super) async fn run(nodes: HollowNodes) -> Result<(), AppError> {
    let HollowNodes { config, credentials, facts, count, prefix, dir } = nodes;
    let stop = CancellationToken::new();
    let signals = service::stop_on_signals(stop.clone()).map_err(AppError::Signals)?;
    let follower = NetworkFollower::new(config.node.ip, &facts.name);
    // The sender lives as long as the nodes.
    let (_network, network) = watch::channel(NetworkStatus::Ready { name: "hollow".to_owned() });
    let common = Common {
        capacity: Capacity::measure(&config.root_dir, config.capacity(), &facts).await,
        config: Arc::new(config),
        credentials,
        facts,
        runtime: HollowRuntime::new(),
        device_plugins: Arc::default(),
        followed: Arc::default(),
        node_network: follower.subscribe(),
        network,
        stop: stop.clone(),
        tasks: TaskTracker::new(),
    };
    common.tasks.spawn(follower.run(stop.clone()));
    common.tasks.spawn(limpet::lifecycle::memory::release_after_bursts(Arc::clone(&common.followed), stop.clone()));
    for number in (0..count).take_while(|_| !stop.is_cancelled()) {
        start(&common, number, &format!("{prefix}-{number}"), &dir).await?;
    }
    tracing::info!(count, "hollow nodes started");
    stop.cancelled().await;
    drain(&common.tasks).await;
    signals.abort();
    Ok(())
}

/// Starts one node.
async fn start(common: &Common, number: u32, name: &str, dir: &Path) -> Result<(), AppError> {
    let facts = NodeFacts { name: name.to_owned(), ..common.facts.clone() };
    let (health, heartbeat) = Health::new();
    let (slots, desired, observed) = (Arc::<Slots>::default(), Desired::default(), Observed::default());
    let (events, metrics) = (Events::default(), Metrics::new(name));
    let published = Published {
        kind: SourceKind::Api,
        place: Arc::from(common.config.cluster.server.as_str()),
        backend: Arc::from("watch"),
        pulse: Arc::default(),
        slots: Arc::clone(&slots),
        events: events.clone(),
        metrics: metrics.clone(),
        observed: observed.clone(),
    };
    let source = start_source(common, name, dir, published).await?;
    let reporter = Reporter {
        runtime_endpoint: "hollow".into(),
        node_name: name.to_owned(),
        network: common.network.clone(),
        events: events.clone(),
        metrics: metrics.clone(),
        observed: observed.clone(),
        health,
        devices: common.device_plugins.clone(),
    };
    let network = Ipv4Addr::from_bits(POD_NETWORKS.to_bits() + number.min(MAX_HOLLOW_NODES - 1) * POD_ADDRESSES);
    let world = Arc::new(Mutex::new(World::calm(u64::from(number), network)));
    let (node_state, selectable) = supervise(common, &facts, world, reporter, (&slots, &desired), heartbeat);
    let credentials = ClientSource::Read(Box::new(common.credentials.as_node(name)));
    let parts = LinkParts { node_network: common.node_network.clone(), metrics, events: events.clone() };
    let link = Link::new(credentials, &common.config.cluster.server, parts);
    let (csi, volumes_in_use) = (Arc::<CsiDrivers>::default(), VolumesInUse::default());
    let inputs = limpet_cluster::Inputs {
        settings: common.config.cluster.clone(),
        certificates: CertificateSettings {
            directory: common.config.pki_dir(),
            serving: common.config.server.certificate_by_request,
        },
        observed,
        desired,
        sources: Vec::new(),
        events,
        selectable,
        node_state,
        network: common.network.clone(),
        runtime: Arc::clone(&common.runtime),
        device_plugins: Arc::clone(&common.device_plugins),
        csi_volumes: Arc::new(CsiVolumes::new(Arc::clone(&csi), volumes_in_use.clone(), name, dir, None)),
        csi,
        volumes_in_use,
        slots,
        source,
        unsent_events: None,
    };
    let (config, capacity) = (Arc::clone(&common.config), common.capacity.clone());
    let description = async move { description::describe(&config, &facts, &capacity).await };
    common.tasks.spawn(limpet_cluster::run(link, inputs, description, common.stop.clone()));
    Ok(())
}

/// Starts the source of the apiserver's pods, with a database of its own.
async fn start_source(
    common: &Common,
    name: &str,
    dir: &Path,
    published: Published,
) -> Result<mpsc::Sender<cluster_update::Update>, AppError> {
    let path = dir.join(format!("{name}.db"));
    let opened = tokio::task::spawn_blocking(move || Store::open(&path)).await;
    let (store, _) = opened.map_err(|error| AppError::Died("opening a database", error))??;
    let source = ApiSource::new(name, Arc::new(store), DECODER);
    let published = Published { pulse: source.pulse(), ..published };
    let (updates, inbox) = cluster_update::channel();
    let stop = common.stop.clone();
    common.tasks.spawn(async move { source.run(inbox, |snapshot| published.publish(snapshot), stop).await });
    Ok(updates)
}

/// Where the labels and taints of a Node object are reported.
type Selectables = watch::Sender<Selectable>;

/// Starts the core of one node on `world`: merge, processes, supervisor.
fn supervise(
    common: &Common,
    facts: &NodeFacts,
    world: Arc<Mutex<World>>,
    reporter: Reporter,
    (slots, desired): (&Arc<Slots>, &Desired),
    heartbeat: Heartbeat,
) -> (watch::Receiver<NodeState>, Selectables) {
    let (tasks, stop) = (&common.tasks, &common.stop);
    let (merging, merged) = mpsc::channel(1);
    let (events, lifecycle) = mpsc::channel(LIFECYCLE_INBOX);
    tasks.spawn(merge_loop::run(Arc::clone(slots), desired.clone(), merging, stop.clone()));
    let (orders, evictions) = mpsc::channel(1);
    let allocator = Arc::new(allocator(&common.config, facts, &common.capacity, &common.device_plugins));
    let selectable = follow_selectable(&allocator, tasks);
    let reporter = Arc::new(reporter);
    let context = WorkerContext {
        executor: Arc::new(FakeExecutor::reporting(Arc::clone(&world), Arc::clone(&reporter))),
        reporter,
        probe_grid: ProbeGrid {
            origin: Some(clock::now().mono),
            slack_percent: common.config.workers.probe_timer_slack,
        },
        followed: Arc::clone(&common.followed),
        allocator,
        evictions: orders,
    };
    let supervisor = Supervisor::new(context, vec![SourceKind::Api], stop.clone());
    let node_state = supervisor.node_state();
    // There are no image loads, evictions, shutdowns or orders of users; the senders live as long as the supervisor.
    let (archives, images) = watch::channel(Arc::default());
    let (unpressed, pressure) = watch::channel(NodePressure::from_iter([]));
    let (user_orders, orders) = pod_order::channel();
    let intake = Intake {
        merged,
        lifecycle,
        network: common.network.clone(),
        node_network: common.node_network.clone(),
        images,
        pressure,
        evictions,
        shutdown: ShutdownIntake::default(),
        orders,
        heartbeat,
    };
    tasks.spawn(async move {
        supervisor.run(intake).await;
        drop((archives, unpressed, user_orders));
    });
    // There is room: nothing was sent before.
    let _ = events.try_send(LifecycleEvent::Connected);
    world.lock().unwrap_or_else(PoisonError::into_inner).begin_agent(events);
    let stop = stop.clone();
    tasks.spawn(async move { stop.run_until_cancelled(live(&world)).await });
    (node_state, selectable)
}
