//! Sends users' orders about running pods to the supervisor, which passes each on to the pod's worker.

use limpet_core::pod_order::PodOrder;
use tokio::sync::mpsc;

#[derive(Debug, Clone)]
pub struct PodOrdersState {
    pub orders: mpsc::Sender<PodOrder>,
}
