//! One task per pod: it decides what to do next, has it done, and waits for the next event.
//!
//! [`merge_loop`] determines the desired pods, [`pod_worker`] is the task of a pod, and [`supervisor`] owns all of
//! these tasks. [`limpet_core::plan`] decides, and an [`executor::Executor`] acts.

pub mod adoption;
pub mod allocator;
pub mod claimed_volumes;
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
pub mod trials;
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

/// What every worker needs. Clones share it.
#[derive(Debug, Clone)]
pub struct WorkerContext {
    pub executor: Arc<dyn Executor>,
    pub reporter: Arc<Reporter>,
    /// The times at which probes run.
    pub probe_grid: ProbeGrid,
    /// The processes about which BPF programs report.
    pub followed: Arc<WatchedProcesses>,
    pub allocator: Arc<Allocator>,
    /// Sends pods to the supervisor that have to end so that another one can start.
    pub evictions: mpsc::Sender<EvictionOrder>,
}
