//! The operations that pod workers and the supervisor need from the runtime: on containers, sandboxes, images and
//! volumes.
//!
//! [`Executor`] names the verbs and no runtime. The agent implements it on containerd and the host; [`crate::fake`], in
//! memory, is for tests and the simulator. An executor has no policy: an action comes with the state it was planned
//! from, and its result goes back as an [`Outcome`].

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::plan::Action;
use limpet_core::state::{Instance, Now, PodSandbox, PodState};
use limpet_model::container::{ContainerId, Exit, FoundContainer, Task};
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::process::Processes;
use tokio::sync::watch;

/// Why the runtime did not answer a question.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct ExecutorError(pub String);

/// Takes what became of a container's logger, in words.
pub type LoggerReport = Box<dyn Fn(String) + Send + Sync>;

/// The verbs of pod workers and of the supervisor. Every method may be called again after a failure or a lost answer:
/// what was done already is found and taken over, never done twice.
pub trait Executor: fmt::Debug + Send + Sync {
    /// This moment, as decisions are given it.
    fn now(&self) -> Now;

    /// What the ids of the containers of one incarnation of a pod are made from: another number with each call, and on each
    /// node.
    fn id_seed(&self) -> u64;

    /// Does `action`, planned from `pod`.
    fn perform(self: Arc<Self>, pod: PodState, action: Action) -> BoxFuture<'static, Outcome>;

    /// Gathers what is known of an exit that was just seen, and records it on the container at once.
    fn record_exit(
        self: Arc<Self>,
        pod: PodState,
        index: usize,
        instance: Instance,
        exit: Exit,
    ) -> BoxFuture<'static, Exit>;

    /// Removes a container that was created and never started.
    fn discard(self: Arc<Self>, index: usize, id: ContainerId) -> BoxFuture<'static, Outcome>;

    /// The runtime's view of one task; `None`: there is none.
    fn task(self: Arc<Self>, id: ContainerId) -> BoxFuture<'static, Result<Option<Task>, ExecutorError>>;

    /// Keeps a logger running for the container whose first process is `pid`, for as long as this is polled. Each logger
    /// that is killed goes to `report`.
    fn keep_logger(self: Arc<Self>, id: ContainerId, pid: u32, report: LoggerReport) -> BoxFuture<'static, ()>;

    /// How many processes of a container the OOM killer has killed, as far as the kernel counts them.
    fn oom_kills(&self, record: &PodRecord, id: &ContainerId) -> u64;

    /// Counts a pod that was found running: its OOM kills from now on, and its part of what all pods have.
    fn adopt_pod(&self, record: &PodRecord);

    /// The processes of the host.
    fn processes(&self) -> &dyn Processes;

    /// Every container of this node. Before that, the first call after the agent's start removes what interrupted starts of an
    /// earlier agent left, and later calls the leases whose deletion failed.
    fn list(self: Arc<Self>, first: bool) -> BoxFuture<'static, Result<Vec<FoundContainer>, ExecutorError>>;

    /// The sandbox of a pod that was found running; `None`: it is gone, or is not whole. An error: that is unknown.
    fn find_sandbox(
        self: Arc<Self>,
        record: Arc<PodRecord>,
    ) -> BoxFuture<'static, Result<Option<Arc<PodSandbox>>, Failure>>;

    /// Every pod that has something on disk or in the kernel.
    fn pods_with_traces(self: Arc<Self>) -> BoxFuture<'static, HashSet<PodUid>>;

    /// Removes what a pod that does not exist any more left. Returns whether that is all of it.
    fn remove_orphan(self: Arc<Self>, uid: PodUid) -> BoxFuture<'static, bool>;

    /// Changes when a driver of volumes registers, or goes.
    fn volume_drivers(&self) -> watch::Receiver<u64>;

    /// Whether a pull was broken off or still runs.
    fn has_unfinished_pulls(&self) -> bool;

    /// Releases what interrupted pulls of images that no pod needs left; returns whether that is all of it.
    fn forget_pulls(self: Arc<Self>, wanted: HashSet<String>) -> BoxFuture<'static, bool>;
}
