//! The operations that pod workers and the supervisor need from the runtime: on containers, sandboxes, images and
//! volumes.
//!
//! [`Executor`] is independent of any runtime. The agent implements it with containerd and the host; [`crate::fake`],
//! in memory, is for tests and the simulator. An executor has no policy: an action comes with the state from which it
//! was planned, and its result is returned as an [`Outcome`].

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

/// Receives a description of what happened to a container's logger.
pub type LoggerReport = Box<dyn Fn(String) + Send + Sync>;

/// The operations of pod workers and of the supervisor. Every method may be called again after a failure or a lost
/// answer: it adopts what was already done, and does nothing twice.
pub trait Executor: fmt::Debug + Send + Sync {
    /// The current time for decisions.
    fn now(&self) -> Now;

    /// The seed for container ids of one incarnation of a pod: it differs with each call, and on each node.
    fn id_seed(&self) -> u64;

    /// Whether the node's policy of processors is `static`: a container that runs keeps those that it has.
    fn has_static_cpus(&self) -> bool;

    /// Performs `action`, which was planned from `pod`.
    fn perform(self: Arc<Self>, pod: PodState, action: Action) -> BoxFuture<'static, Outcome>;

    /// Collects the details of an exit that was just observed, and records them on the container.
    fn record_exit(
        self: Arc<Self>,
        pod: PodState,
        index: usize,
        instance: Instance,
        exit: Exit,
    ) -> BoxFuture<'static, Exit>;

    /// Removes a container that was created and never started.
    fn discard(self: Arc<Self>, index: usize, id: ContainerId) -> BoxFuture<'static, Outcome>;

    /// The runtime's view of one task; `None` if there is none.
    fn task(self: Arc<Self>, id: ContainerId) -> BoxFuture<'static, Result<Option<Task>, ExecutorError>>;

    /// Keeps a logger running for the container whose first process is `pid`, while this is polled. Each killed
    /// logger is passed to `report`.
    fn keep_logger(self: Arc<Self>, id: ContainerId, pid: u32, report: LoggerReport) -> BoxFuture<'static, ()>;

    /// How many processes of a container the OOM killer has killed, as far as the kernel counts them.
    fn oom_kills(&self, record: &PodRecord, id: &ContainerId) -> u64;

    /// Registers a pod that was found running: counts its OOM kills from now on, and its part of all pods' resources.
    fn adopt_pod(&self, record: &PodRecord);

    /// The processes of the host.
    fn processes(&self) -> &dyn Processes;

    /// Lists every container of this node. The first call after the agent's start removes remains of interrupted
    /// starts by an earlier agent; later calls remove leases whose deletion failed.
    fn list(self: Arc<Self>, first: bool) -> BoxFuture<'static, Result<Vec<FoundContainer>, ExecutorError>>;

    /// The sandbox of a pod that was found running; `None` if it is gone or incomplete. An error means that this is
    /// unknown.
    fn find_sandbox(
        self: Arc<Self>,
        record: Arc<PodRecord>,
    ) -> BoxFuture<'static, Result<Option<Arc<PodSandbox>>, Failure>>;

    /// Every pod with files on disk or kernel resources.
    fn pods_with_traces(self: Arc<Self>) -> BoxFuture<'static, HashSet<PodUid>>;

    /// Removes everything that a deleted pod left. Returns whether that succeeded completely.
    fn remove_orphan(self: Arc<Self>, uid: PodUid) -> BoxFuture<'static, bool>;

    /// Changes when a volume driver registers or unregisters.
    fn volume_drivers(&self) -> watch::Receiver<u64>;

    /// Whether a pull was interrupted or still runs.
    fn has_unfinished_pulls(&self) -> bool;

    /// Releases what interrupted pulls left of images that no pod needs. Returns whether that succeeded completely.
    fn forget_pulls(self: Arc<Self>, wanted: HashSet<String>) -> BoxFuture<'static, bool>;
}
