//! What users ask of pods that run, by the local socket, on its way to the pod's worker: a container more, or a restart.

use limpet_model::pod::PodKey;
use tokio::sync::{mpsc, oneshot};

use crate::debug_order::DebugOrder;

/// How many orders may wait for the supervisor; then those who give them do.
const REQUEST_QUEUE_LEN: usize = 16;

/// An order for one pod.
#[derive(Debug)]
pub enum PodOrder {
    /// A container is to be added.
    Debug(DebugOrder),
    /// Containers are to be restarted.
    Restart(RestartOrder),
}

/// Containers of a pod are to be restarted, within their grace period and in their sandbox.
#[derive(Debug)]
pub struct RestartOrder {
    /// The pod's name.
    pub key: PodKey,
    /// The container; `None`: all that run, and all that wait for their next start.
    pub container: Option<String>,
    /// Sent with the names of the containers once their restart is decided, or why it is not; dropped if the pod ended
    /// meanwhile.
    pub done: oneshot::Sender<Result<Vec<String>, RestartError>>,
}

/// Why nothing is restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// There is no such pod, or it has no worker.
    #[error("pod {0} does not run on this node")]
    NoPod(PodKey),
    /// The pod ends, or has ended.
    #[error("pod {0} has ended or is ending: nothing of it can be restarted")]
    Over(PodKey),
    /// The pod has no such container.
    #[error("no container {1} in pod {0}")]
    NoContainer(PodKey, String),
    /// It is an init container or an ephemeral one.
    #[error("container {1} of pod {0} runs once: only containers and sidecars can be restarted")]
    RunsOnce(PodKey, String),
    /// Nothing runs, and nothing waits for its next start.
    #[error("no container of pod {0} that was asked for runs or waits for a restart")]
    NothingRuns(PodKey),
}

/// A channel for orders.
pub fn channel() -> (mpsc::Sender<PodOrder>, mpsc::Receiver<PodOrder>) {
    mpsc::channel(REQUEST_QUEUE_LEN)
}
