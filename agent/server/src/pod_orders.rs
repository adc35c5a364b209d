//! Where the routes send what users ask of pods that run: to the supervisor, which passes it on to the pod's worker.

use limpet_core::pod_order::PodOrder;
use tokio::sync::mpsc;

/// What these routes need.
#[derive(Debug, Clone)]
pub struct PodOrdersState {
    /// Where orders go.
    pub orders: mpsc::Sender<PodOrder>,
}
