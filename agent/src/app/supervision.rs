//! Builds the core: merge, lifecycle, supervisor, and the allocation of the node's resources to its pods.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::SharedParts;
use super::published::Published;
use super::services;
use super::shortage::Shortages;
use crate::config::Config;
use crate::executor::containerd::ContainerdExecutor;
use crate::lifecycle;
use crate::workload_memory::WorkloadMemory;
use limpet_containerd::event_stream;
use limpet_core::allocation::NodeOffer;
use limpet_core::node_object::initial_labels;
use limpet_core::node_shutdown::ShutdownIntake;
use limpet_core::node_state::NodeState;
use limpet_core::pod_order::PodOrder;
use limpet_core::probe::ProbeGrid;
use limpet_host::{clock, machine};
use limpet_kinds::Controllers;
use limpet_model::node::{NodeFacts, architecture};
use limpet_node::capacity::Capacity;
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_telemetry::health::Heartbeat;
use limpet_watch::actors::Feed;
use limpet_worker::WorkerContext;
use limpet_worker::allocator::Allocator;
use limpet_worker::claimed_volumes::ClaimedVolumes;
use limpet_worker::executor::Executor;
use limpet_worker::merge_loop::{self, SnapshotObserver, Stages};
use limpet_worker::supervisor::{Intake, Supervisor};
use limpet_worker::trials::Trials;
use limpet_worker::watched_processes::WatchedProcesses;
use limpet_worker::workloads::Workloads;

/// How many lifecycle events may wait for the supervisor before containerd's stream is delayed.
pub const LIFECYCLE_INBOX: usize = 1_024;

/// The node's resources for its pods, none of which is allocated yet.
pub fn allocator(config: &Config, node: &NodeFacts, capacity: &Capacity, plugins: &Arc<DevicePlugins>) -> Allocator {
    let exclusive = config.plugins.devices.iter().filter(|(_, device)| device.exclusive);
    let offer = NodeOffer {
        node_name: node.name.clone(),
        max_pods: usize::try_from(config.node.most_pods(machine::processors())).ok(),
        allowed_unsafe_sysctls: config.workers.allowed_unsafe_sysctls.clone(),
        exclusive: exclusive.map(|(name, _)| name.clone()).collect(),
        allocatable: Some(capacity.offer()),
    };
    let labels = initial_labels(&node.name, architecture(), &config.cluster.labels);
    Allocator::new(offer, labels, Arc::clone(plugins))
}

/// What the core needs besides what all parts share.
pub(super) struct CoreInputs {
    /// Requests that check whether the supervisor is alive.
    pub(super) heartbeat: Heartbeat,
    /// The channel on which the manifest watch receives further feeds of events.
    pub(super) feeds: Option<mpsc::Sender<Feed>>,
    /// What the node is short of.
    pub(super) shortages: Shortages,
    /// The channel on which the supervisor learns of a shutdown of the node.
    pub(super) shutdown: ShutdownIntake,
    /// What users ask of pods.
    pub(super) user_orders: mpsc::Receiver<PodOrder>,
    /// The controllers of workloads, and the memory that they keep on disk.
    pub(super) workloads: (Controllers, Arc<WorkloadMemory>),
    /// The generations of sources; `None` if no source has any.
    pub(super) trials: Option<Trials>,
    /// The claims of the sources.
    pub(super) volumes: ClaimedVolumes,
}

/// Starts the core: merge, lifecycle, supervisor.
pub(super) fn supervise(
    shared: &SharedParts,
    executor: &Arc<ContainerdExecutor>,
    sources: &[Arc<Published>],
    inputs: CoreInputs,
) -> watch::Receiver<NodeState> {
    let CoreInputs { heartbeat, feeds, shortages, shutdown, user_orders, workloads, trials, volumes } = inputs;
    let (controllers, memory) = workloads;
    let Shortages { pressure, orders, evictions } = shortages;
    let followed: Arc<WatchedProcesses> = Arc::default();
    let (merging, merged) = mpsc::channel(1);
    let (lifecycle_events, lifecycle) = mpsc::channel(LIFECYCLE_INBOX);
    let stop = &shared.stop;
    shared.tasks.spawn(event_stream::run(shared.backends.client.clone(), lifecycle_events.clone(), stop.clone()));
    #[cfg(feature = "attribution")]
    shared.tasks.spawn(lifecycle::kernel::run(Arc::clone(&followed), lifecycle_events, feeds, stop.clone()));
    #[cfg(not(feature = "attribution"))]
    drop((lifecycle_events, feeds));
    shared.tasks.spawn(lifecycle::memory::release_after_bursts(Arc::clone(&followed), stop.clone()));
    let kinds: Vec<_> = sources.iter().map(|source| source.kind()).collect();
    let (network, images) = (shared.backends.network.subscribe(), executor.images.imported());
    let context = WorkerContext {
        executor: Arc::clone(executor) as Arc<dyn Executor>,
        reporter: Arc::clone(&executor.reporter),
        probe_grid: ProbeGrid {
            origin: Some(clock::now().mono),
            slack_percent: shared.config.workers.probe_timer_slack,
        },
        followed,
        allocator: Arc::clone(&shared.allocator),
        evictions: orders,
    };
    let node_network = shared.node_network.clone();
    let mut supervisor = Supervisor::new(context, kinds.clone(), stop.clone());
    let (observed, events) = (shared.observed.clone(), shared.events.clone());
    let workloads = Workloads::new(controllers, memory, observed, events, supervisor.adopted(), volumes);
    let (slots, desired) = (Arc::clone(&shared.slots), shared.desired.clone());
    let node_state = supervisor.node_state();
    let mut services = services::feed(shared, kinds, node_state.clone());
    let observer: SnapshotObserver = Box::new(move |snapshots| services.read(snapshots));
    let stages = Stages { trials, workloads: Some(workloads), observer: Some(observer) };
    shared.tasks.spawn(merge_loop::run_with(slots, desired, merging, stages, stop.clone()));
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
    shared.tasks.spawn(supervisor.run(intake));
    node_state
}
