//! Containers that `limpet debug` adds to running pods: the order, on its way from the local socket to the pod's
//! worker.

use k8s_openapi::api::core::v1::EphemeralContainer;
use limpet_model::pod::{Fault, PodKey};
use tokio::sync::oneshot;

/// An order to add a container to a pod.
#[derive(Debug)]
pub struct DebugOrder {
    pub key: PodKey,
    /// The container, with its defaults.
    pub container: Box<EphemeralContainer>,
    /// Sent once the pod has it, or with the reason why not; dropped if the pod ended meanwhile.
    pub done: oneshot::Sender<Result<(), DebugError>>,
}

/// Why a pod does not get the container.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DebugError {
    /// There is no such pod, or it has no worker.
    #[error("pod {0} does not run on this node")]
    NoPod(PodKey),
    /// The pod is ending, or has ended.
    #[error("pod {0} has ended or is ending: nothing can be added to it")]
    Over(PodKey),
    #[error("{}", list(.0))]
    Invalid(Vec<Fault>),
}

fn list(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
