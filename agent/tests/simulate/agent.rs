//! One life of the agent on a simulated node: merge, supervisor and workers over the fake executor.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::tz::TimeZone;
use limpet_apiserver_client::Client;
use limpet_claims::{Action, Claims, Order};
use limpet_cluster::certificates::CertificateSettings;
use limpet_cluster::settings::ClusterSettings;
use limpet_cluster::{ClientSource, HollowRuntime, Link, LinkParts, Unsent};
use limpet_core::admission::Selectable;
use limpet_core::allocation::NodeOffer;
use limpet_core::connectivity::Connectivity;
use limpet_core::merge::Desired;
use limpet_core::merge::slot::Slots;
use limpet_core::node_object::NodeDescription;
use limpet_core::node_shutdown::ShutdownIntake;
use limpet_core::node_state::{NodeNetwork, NodePressure, NodeState};
use limpet_core::pod_order::{self, PodOrder};
use limpet_core::probe::ProbeGrid;
use limpet_core::source::view::View;
use limpet_core::source::{Decoder, Health, cluster_update};
use limpet_core::status::observed::Observed;
use limpet_generations::{Generations, RollbackOrder};
use limpet_host::network::NetworkStatus;
use limpet_kinds::Controllers;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::manifest;
use limpet_model::pod::requests::Requests;
use limpet_model::source::SourceKind;
use limpet_plugins::csi::{CsiDrivers, CsiVolumes, VolumesInUse};
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_services::fake::FakeBackend;
use limpet_services::feed::Feed;
use limpet_services::links::ServiceLinks;
use limpet_services::settings::{ServiceSettings, Settings};
use limpet_sources::api::ApiSource;
use limpet_store::Store;
use limpet_telemetry::event::Events;
use limpet_telemetry::health::Health as AgentHealth;
use limpet_telemetry::metrics::Metrics;
use limpet_telemetry::reporter::Reporter;
use limpet_worker::WorkerContext;
use limpet_worker::allocator::Allocator;
use limpet_worker::claimed_volumes::{ClaimDisk, ClaimedVolumes, Removed};
use limpet_worker::executor::Executor;
use limpet_worker::fake::world::{World, live};
use limpet_worker::fake::{FakeExecutor, FakeLedger};
use limpet_worker::inbox::EvictionOrder;
use limpet_worker::merge_loop::{self, SnapshotObserver, Stages};
use limpet_worker::supervisor::{Intake, Supervisor};
use limpet_worker::trials::{TrialKeeper, TrialParts, Trials};
use limpet_worker::workloads::Workloads;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Reads what the source of the apiserver's pods has kept.
const DECODER: Decoder = Decoder::new(manifest::read, manifest::restore_last_good);

/// The node's name.
pub(crate) const NODE: &str = "node";

/// A running agent.
pub(crate) struct Agent {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    slots: Arc<Slots>,
    /// What is to run.
    pub(crate) desired: Desired,
    /// What it knows of the node's network.
    pub(crate) network: watch::Sender<NodeNetwork>,
    /// What the node is short of.
    pub(crate) pressure: watch::Sender<NodePressure>,
    /// The pods that have to end for it.
    pub(crate) evictions: mpsc::Sender<EvictionOrder>,
    /// The containers that are to be added to pods.
    #[allow(dead_code, reason = "the suite of workers adds no container")]
    pub(crate) orders_of_users: mpsc::Sender<PodOrder>,
    /// What is observed of it.
    pub(crate) observed: Observed,
    /// What its parts know of the node.
    #[allow(dead_code, reason = "each suite has its own kind of agent")]
    pub(crate) node: watch::Receiver<NodeState>,
    /// What has happened to its pods.
    #[allow(dead_code, reason = "the simulator judges the world, not what is reported")]
    pub(crate) events: Events,
    member: Option<Member>,
    rollbacks: Option<mpsc::Sender<RollbackOrder>>,
}

/// What an agent needs whose source has generations.
pub(crate) struct OnTrial {
    pub(crate) generations: Generations,
    pub(crate) keeper: Arc<dyn TrialKeeper>,
    /// Sees what takes effect.
    pub(crate) observer: SnapshotObserver,
}

/// What an agent needs to be part of a simulated cluster.
pub(crate) struct Membership {
    /// Leads to the apiserver.
    pub(crate) client: Client,
    /// What the agent keeps over its lives.
    pub(crate) database: PathBuf,
}

/// The agent's part in a cluster.
struct Member {
    link: Link,
    source: mpsc::Sender<cluster_update::Update>,
}

/// Claims without files.
#[derive(Debug)]
struct NoFiles;

impl ClaimDisk for NoFiles {
    fn perform(self: Arc<Self>, orders: Vec<Order>) -> BoxFuture<'static, Removed> {
        let removed = orders.into_iter().filter(|order| order.action == Action::Remove).map(|order| (order.id, true));
        Box::pin(std::future::ready(removed.collect()))
    }
}

impl Agent {
    /// Starts an agent on `world` with that network, and with one source that publishes `view`.
    #[allow(dead_code, reason = "each suite has its own kind of agent")]
    pub(crate) fn start(world: &Arc<Mutex<World>>, view: &mut View, node_network: NodeNetwork) -> Self {
        Self::begin(world, view, node_network, Additions::default())
    }

    /// The same for an agent whose source has generations.
    #[allow(dead_code, reason = "the suite of workers has no generations")]
    pub(crate) fn on_trial(
        world: &Arc<Mutex<World>>,
        view: &mut View,
        node_network: NodeNetwork,
        on_trial: OnTrial,
    ) -> Self {
        Self::begin(world, view, node_network, Additions { on_trial: Some(on_trial), ..Additions::default() })
    }

    /// The same for an agent that serves Services by that kernel.
    #[allow(dead_code, reason = "the suite of workers has no Services")]
    pub(crate) fn serve(
        world: &Arc<Mutex<World>>,
        view: &mut View,
        node_network: NodeNetwork,
        kernel: &FakeBackend,
    ) -> Self {
        let additions = Additions { kernel: Some(kernel.clone()), ..Additions::default() };
        Self::begin(world, view, node_network, additions)
    }

    /// The same for an agent that is part of a cluster.
    #[allow(dead_code, reason = "the suite of workers has no cluster")]
    pub(crate) fn join(
        world: &Arc<Mutex<World>>,
        view: &mut View,
        node_network: NodeNetwork,
        membership: Membership,
    ) -> Self {
        let additions = Additions { membership: Some(membership), ..Additions::default() };
        Self::begin(world, view, node_network, additions)
    }

    fn begin(
        world: &Arc<Mutex<World>>,
        view: &mut View,
        node_network: NodeNetwork,
        Additions { membership, on_trial, kernel }: Additions,
    ) -> Self {
        let (slots, desired, stop) = (Arc::<Slots>::default(), Desired::default(), CancellationToken::new());
        let (merging, merged) = mpsc::channel(1);
        let (events, lifecycle) = mpsc::channel(1_024);
        let mut tasks = JoinSet::new();
        let (health, heartbeat) = AgentHealth::new();
        let (network_status, network) = watch::channel(NetworkStatus::Ready { name: "sim".to_owned() });
        let (archives, images) = watch::channel(Arc::default());
        let (addresses, node_network) = watch::channel(node_network);
        let (pressure, conditions) = watch::channel(NodePressure::from_iter([]));
        let (orders, evictions) = mpsc::channel(1);
        let (orders_of_users, user_orders) = pod_order::channel();
        let (observed, occurrences, metrics) = (Observed::default(), Events::default(), Metrics::new(NODE));
        let mut sources = vec![SourceKind::File];
        let member = membership.map(|membership| {
            sources.push(SourceKind::Api);
            let parts = Parts {
                slots: &slots,
                desired: &desired,
                observed: &observed,
                events: &occurrences,
                metrics: &metrics,
                network: &network,
                node_network: &node_network,
                stop: &stop,
            };
            parts.take_part(&mut tasks, membership)
        });
        let metrics_of_trials = metrics.clone();
        let reporter = Reporter {
            runtime_endpoint: "/simulated".into(),
            node_name: NODE.to_owned(),
            network: network.clone(),
            events: occurrences.clone(),
            metrics,
            observed: observed.clone(),
            health,
            devices: Arc::<DevicePlugins>::default(),
        };
        let executor: Arc<dyn Executor> = Arc::new(FakeExecutor::new(Arc::clone(world)));
        let context = WorkerContext {
            executor: Arc::clone(&executor),
            reporter: Arc::new(reporter),
            probe_grid: ProbeGrid { origin: Some(Instant::now().into_std()), slack_percent: 10 },
            followed: Arc::default(),
            allocator: Arc::new(Allocator::new(offer(world), BTreeMap::new(), Arc::default())),
            evictions: orders.clone(),
        };
        let mut supervisor = Supervisor::new(context, sources, stop.clone());
        let remembered = world.lock().unwrap_or_else(PoisonError::into_inner).memories.clone();
        let (ledger, controllers) = (FakeLedger(Arc::clone(world)), Controllers::new(NODE, zone, remembered));
        let volumes = ClaimedVolumes::new(Claims::new("/simulated".into(), []), Arc::new(NoFiles));
        let (observer, reports) = (observed.clone(), occurrences.clone());
        let workloads = Workloads::new(controllers, Arc::new(ledger), observer, reports, supervisor.adopted(), volumes);
        let node = supervisor.node_state();
        let serving = kernel.map(|kernel| Serving {
            kernel,
            observed: observed.clone(),
            desired: desired.clone(),
            node: node.clone(),
            events: occurrences.clone(),
            stop: stop.clone(),
        });
        let observer = serving.map(|serving| serving.begin(&mut tasks));
        let mut stages = Stages { workloads: Some(workloads), observer, ..Stages::default() };
        let rollbacks = on_trial.map(|OnTrial { generations, keeper, observer }| {
            let (order, orders) = mpsc::channel(1);
            let parts = TrialParts {
                keeper,
                executor: Arc::clone(&executor),
                observed: observed.clone(),
                events: occurrences.clone(),
                metrics: metrics_of_trials,
                orders,
                pod_orders: orders_of_users.clone(),
                views: watch::channel(Vec::new()).0,
            };
            (stages.trials, stages.observer) = (Some(Trials::new(generations, parts)), Some(observer));
            order
        });
        let merge = merge_loop::run_with(Arc::clone(&slots), desired.clone(), merging, stages, stop.clone());
        tasks.spawn(merge);
        tasks.spawn(async move {
            let pressure = conditions;
            let shutdown = ShutdownIntake::default();
            let intake = Intake {
                merged,
                lifecycle,
                network,
                node_network,
                images,
                pressure,
                evictions,
                shutdown,
                orders: user_orders,
                heartbeat,
            };
            supervisor.run(intake).await;
            drop((network_status, archives));
        });
        let mut world = world.lock().unwrap_or_else(PoisonError::into_inner);
        if world.is_connected() {
            events.try_send(LifecycleEvent::Connected).unwrap();
        }
        world.begin_agent(events);
        drop(world);
        let agent = Self {
            tasks,
            stop,
            slots,
            desired,
            network: addresses,
            pressure,
            evictions: orders,
            orders_of_users,
            observed,
            node,
            events: occurrences,
            member,
            rollbacks,
        };
        agent.slots.publish(SourceKind::File, view.snapshot());
        agent.publish(view);
        agent
    }

    /// The source publishes what has changed of `view`.
    pub(crate) fn publish(&self, view: &mut View) {
        if let Some(snapshot) = view.finish_update(true, Health::Good) {
            self.slots.publish(SourceKind::File, snapshot);
        }
    }

    /// What the operator says of a cluster that was restored.
    #[allow(dead_code, reason = "the suite of workers has no cluster")]
    pub(crate) async fn accept_cluster(&self) {
        let (done, accepted) = oneshot::channel();
        let member = self.member.as_ref().unwrap();
        member.source.send(cluster_update::Update::Accepted(done)).await.unwrap();
        accepted.await.unwrap();
    }

    /// A user returns to the good generation before.
    #[allow(dead_code, reason = "the suite of workers has no generations")]
    pub(crate) async fn roll_back(&self) {
        let order = limpet_generations::Order { source: None, number: None };
        // The answer is not awaited.
        let order = RollbackOrder { order, done: oneshot::channel().0 };
        self.rollbacks.as_ref().unwrap().send(order).await.unwrap();
    }

    /// What was not reported to the apiserver yet.
    #[allow(dead_code, reason = "the suite of workers has no cluster")]
    pub(crate) fn unreported(&self) -> Vec<String> {
        let link = &self.member.as_ref().unwrap().link;
        let unsent = link.unsent(NODE);
        let mut differences = Vec::new();
        if unsent != Unsent::default() {
            differences.push(format!("{unsent:?}"));
        }
        if !matches!(link.view().state, Connectivity::Online { .. }) {
            differences.push(format!("no connection: {:?}", link.view().state));
        }
        differences
    }

    /// It ends as by SIGTERM.
    pub(crate) async fn stop(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }

    /// It ends as by SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.tasks.shutdown().await;
    }
}

/// What only some agents have.
#[derive(Default)]
struct Additions {
    membership: Option<Membership>,
    on_trial: Option<OnTrial>,
    kernel: Option<FakeBackend>,
}

/// What Services are served with.
struct Serving {
    kernel: FakeBackend,
    observed: Observed,
    desired: Desired,
    node: watch::Receiver<NodeState>,
    events: Events,
    stop: CancellationToken,
}

impl Serving {
    /// Starts what serves Services once there is one, and returns what it sees them by.
    fn begin(self, tasks: &mut JoinSet<()>) -> SnapshotObserver {
        // Others answer queries for names here.
        let directories = ("/simulated".into(), "/simulated".into());
        let name_server: [IpAddr; 1] = [[192, 0, 2, 53].into()];
        let settings = Settings::new(ServiceSettings::default(), (&name_server, ""), None, directories);
        let (has_leftovers, links) = (self.kernel.kernel().rules.is_some(), ServiceLinks::default());
        let parts = limpet_services::task::Parts {
            settings,
            backend: Arc::new(self.kernel),
            off: None,
            observed: self.observed,
            desired: self.desired,
            node: self.node,
            events: self.events,
            views: watch::Sender::default(),
            set_name_servers: Arc::new(|_| {}),
            links: links.clone(),
        };
        let (begin, begun) = oneshot::channel();
        let stop = self.stop;
        tasks.spawn(async move {
            if let Ok(definitions) = begun.await {
                limpet_services::task::run(parts, definitions, stop).await;
            }
        });
        let start = Box::new(move |definitions| drop(begin.send(definitions)));
        let mut feed = Feed::new(vec![SourceKind::File], start, links, has_leftovers);
        Box::new(move |snapshots| feed.read(snapshots))
    }
}

/// What the part in a cluster is made of.
struct Parts<'a> {
    slots: &'a Arc<Slots>,
    desired: &'a Desired,
    observed: &'a Observed,
    events: &'a Events,
    metrics: &'a Metrics,
    network: &'a watch::Receiver<NetworkStatus>,
    node_network: &'a watch::Receiver<NodeNetwork>,
    stop: &'a CancellationToken,
}

impl Parts<'_> {
    /// Starts the source of the apiserver's pods, and the connection.
    fn take_part(self, tasks: &mut JoinSet<()>, Membership { client, database }: Membership) -> Member {
        let store = Arc::new(Store::open(&database).unwrap().0.inline());
        let (source, inbox) = cluster_update::channel();
        let (slots, of_api) = (Arc::clone(self.slots), ApiSource::new(NODE, store, DECODER));
        let publish = move |snapshot| slots.publish(SourceKind::Api, snapshot);
        tasks.spawn(of_api.run(inbox, publish, self.stop.clone()));
        let parts = LinkParts {
            node_network: self.node_network.clone(),
            metrics: self.metrics.clone(),
            events: self.events.clone(),
        };
        let link = Link::new(ClientSource::Fixed(client), "", parts);
        let (selectable, _) = watch::channel(Selectable::default());
        let (_, node_state) = watch::channel(NodeState::default());
        let (csi, volumes_in_use) = (Arc::<CsiDrivers>::default(), VolumesInUse::default());
        let inputs = limpet_cluster::Inputs {
            settings: ClusterSettings::default(),
            certificates: CertificateSettings { directory: "/nonexistent".into(), serving: false },
            observed: self.observed.clone(),
            desired: self.desired.clone(),
            sources: vec![SourceKind::File, SourceKind::Api],
            events: self.events.clone(),
            selectable,
            node_state,
            network: self.network.clone(),
            runtime: HollowRuntime::new(),
            device_plugins: Arc::default(),
            csi_volumes: Arc::new(CsiVolumes::new(
                Arc::clone(&csi),
                volumes_in_use.clone(),
                NODE,
                Path::new("/nonexistent"),
                None,
            )),
            csi,
            volumes_in_use,
            slots: Arc::clone(self.slots),
            source: source.clone(),
            unsent_events: None,
        };
        let description = std::future::ready(description());
        tasks.spawn(limpet_cluster::run(link.clone(), inputs, description, self.stop.clone()));
        Member { link, source }
    }
}

/// Every zone is UTC.
fn zone(_: Option<&str>) -> Option<TimeZone> {
    Some(TimeZone::UTC)
}

fn offer(world: &Mutex<World>) -> NodeOffer {
    let max_pods = world.lock().unwrap_or_else(PoisonError::into_inner).max_pods;
    NodeOffer { max_pods, ..NodeOffer::default() }
}

fn description() -> NodeDescription {
    NodeDescription {
        name: NODE.to_owned(),
        labels: BTreeMap::new(),
        provider_id: None,
        taints: Vec::new(),
        external_cloud: None,
        architecture: "amd64",
        capacity: Requests::default(),
        allocatable: Requests::default(),
        max_pods: 110,
        runtime_handlers: Vec::new(),
        user_namespaces: BTreeSet::new(),
        swap: 0,
        api_port: None,
        info: BTreeMap::new(),
    }
}

/// Lets virtual time pass, in which the processes of `world` exit when they are due.
pub(crate) async fn pass(world: &Mutex<World>, time: Duration) {
    // It continues for ever.
    let _ = tokio::time::timeout(time, live(world)).await;
}
