//! Builds the part that ends the pods when the node shuts down.

use tokio::sync::{mpsc, watch};

use super::SharedParts;
use limpet_core::node_shutdown::{ShutdownIntake, ShutdownProgress, channel};
use limpet_server::shutdown::ShutdownState;
use limpet_shutdown::NodeShutdown;
use limpet_shutdown::logind::Logind;

/// How many orders to end a pod may be queued.
const ORDER_QUEUE_LEN: usize = 64;

/// Starts the task. Returns the ends for the supervisor and the local socket.
pub(super) fn follow_shutdown(shared: &SharedParts) -> (ShutdownIntake, ShutdownState) {
    let config = &shared.config;
    let (requests, asked) = channel();
    let (shutting_down, announced) = watch::channel(false);
    let (orders, ordered) = mpsc::channel(ORDER_QUEUE_LEN);
    let (show, progress) = watch::channel(ShutdownProgress::default());
    let task = NodeShutdown {
        policy: config.shutdown.clone().unwrap_or_default(),
        logind: config.shutdown.as_ref().map(|policy| Logind::of_system(policy.period())),
        observed: shared.observed.clone(),
        requests: asked,
        shutting_down,
        orders,
        progress: show,
        record: config.root_dir.join("graceful_node_shutdown_state"),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
    };
    shared.tasks.spawn(task.run(shared.stop.clone()));
    (ShutdownIntake { shutting_down: announced, orders: ordered }, ShutdownState { requests, progress })
}
