//! One task per pod: decide what to do next, have it done, wait for the next event.
//!
//! [`merge_loop`] says what is desired, [`pod_worker`] is the task of a pod, [`supervisor`] the owner of all such tasks. What to do is decided by
//! [`limpet_core::plan`], and done by an [`executor::Executor`].

pub mod adoption;
pub mod allocator;
pub mod executor;
#[cfg(any(test, feature = "fixtures"))]
pub mod fake;
mod hook_jobs;
pub mod inbox;
mod jobs;
pub mod merge_loop;
pub mod pod_worker;
pub mod process_watch;
pub mod settings;
pub mod supervisor;
pub mod watched_processes;
pub mod workloads;

use std::sync::Arc;

use crate::allocator::Allocator;
use crate::executor::Executor;
use crate::watched_processes::WatchedProcesses;
use inbox::EvictionOrder;
use limpet_core::probe::ProbeGrid;
use limpet_telemetry::reporter::Reporter;
use tokio::sync::mpsc;

/// What every worker works with. Clones share it.
#[derive(Debug, Clone)]
pub struct WorkerContext {
    /// Has things done.
    pub executor: Arc<dyn Executor>,
    /// Reports what happens.
    pub reporter: Arc<Reporter>,
    /// The moments at which probes run.
    pub probe_grid: ProbeGrid,
    /// The processes that BPF programs report on.
    pub followed: Arc<WatchedProcesses>,
    /// Which pod has what of the node.
    pub allocator: Arc<Allocator>,
    /// To the supervisor: pods that have to end so that another one can start.
    pub evictions: mpsc::Sender<EvictionOrder>,
}
