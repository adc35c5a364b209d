//! Builds the part that watches the node's memory and disks.

use std::sync::Arc;

use tokio::sync::{mpsc, watch};

use super::SharedParts;
use super::published::Published;
use crate::eviction::Evictor;
use crate::eviction::meter::NodeMeter;
use crate::executor::containerd::ContainerdExecutor;
use limpet_core::known_pods::KnownPods;
use limpet_core::node_state::NodePressure;
use limpet_model::node::Pressure;
use limpet_node::allocatable::Enforcement;
use limpet_worker::inbox::EvictionOrder;

/// How many orders to end a pod may be queued.
const EVICTION_QUEUE_LEN: usize = 64;

/// The shortages of the node on which the supervisor acts.
pub(super) struct Shortages {
    pub(super) pressure: watch::Receiver<NodePressure>,
    /// The channel for the workers, whose pods may require that other pods end.
    pub(super) orders: mpsc::Sender<EvictionOrder>,
    pub(super) evictions: mpsc::Receiver<EvictionOrder>,
}

/// Limits all pods together to what is not reserved on the node, and the node's own processes to what is.
pub(super) fn enforce_allocatable(shared: &SharedParts, executor: &ContainerdExecutor) {
    let (cgroups, events, stop) = (executor.cgroups.clone(), shared.events.clone(), shared.stop.clone());
    let enforcement = Enforcement { cgroups, events, stop };
    shared.tasks.spawn(enforcement.clone().limit_all_pods(shared.capacity.clone()));
    shared.tasks.spawn(enforcement.limit_reserved(shared.config.node.reserved.clone()));
    if let Some(cpus) = &executor.cpus {
        shared.tasks.spawn(Arc::clone(cpus).follow(executor.containers.clone(), shared.stop.clone()));
    }
}

/// The task that watches the node's memory and disks, and its reports for the supervisor.
pub(super) fn evictor(
    shared: &SharedParts,
    executor: &Arc<ContainerdExecutor>,
    sources: &[Arc<Published>],
) -> (Evictor, Shortages) {
    let (pressure, conditions) = watch::channel(NodePressure::UNKNOWN);
    let (orders, evictions) = mpsc::channel(EVICTION_QUEUE_LEN);
    let pods = KnownPods {
        desired: shared.desired.clone(),
        slots: Arc::clone(&shared.slots),
        observed: shared.observed.clone(),
        sources: sources.iter().map(|source| source.kind()).collect(),
        kept: shared.kept_images.clone(),
    };
    let meter = NodeMeter {
        root: shared.config.root_dir.clone(),
        images: executor.images.clone(),
        image_dir: None,
        cgroups: executor.cgroups.clone(),
        memory: executor.node.memory_capacity,
        memory_of_all_pods: shared.capacity.all_pods().memory,
        disks: shared.config.eviction.watches(Pressure::Disk),
    };
    let policy = shared.config.eviction.clone();
    let evictor = Evictor {
        policy: if shared.config.node.limit_all_pods { policy.with_allocatable_memory() } else { policy },
        meter,
        executor: Arc::clone(executor),
        pods: Arc::new(pods),
        pressure,
        orders: orders.clone(),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
    };
    (evictor, Shortages { pressure: conditions, orders, evictions })
}
