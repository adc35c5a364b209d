//! What users order for running pods through the local socket, on its way to the pod's worker: another container, or
//! a restart.

use limpet_model::pod::PodKey;
use tokio::sync::{mpsc, oneshot};

use crate::debug_order::DebugOrder;

/// How many orders may wait for the supervisor. Beyond that, their senders wait.
const REQUEST_QUEUE_LEN: usize = 16;

/// An order for one pod.
#[derive(Debug)]
pub enum PodOrder {
    /// Add a container.
    Debug(DebugOrder),
    /// Restart containers.
    Restart(RestartOrder),
}

/// An order to restart containers of a pod, within their grace period and in their sandbox.
#[derive(Debug)]
pub struct RestartOrder {
    pub key: PodKey,
    /// The container; `None` for all that run or wait for their next start.
    pub container: Option<String>,
    /// Sent with the names of the containers once their restart is decided, or with the reason why it is not; dropped
    /// if the pod ended meanwhile.
    pub done: oneshot::Sender<Result<Vec<String>, RestartError>>,
}

/// Why nothing is restarted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestartError {
    /// There is no such pod, or it has no worker.
    #[error("pod {0} does not run on this node")]
    NoPod(PodKey),
    /// The pod is ending, or has ended.
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
