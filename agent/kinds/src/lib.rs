//! Controllers of the workloads that a node's own sources define: Deployments, ReplicaSets, DaemonSets, StatefulSets,
//! Jobs, CronJobs.
//!
//! [`Controllers`] stands between the sources' snapshots and the merge. Input: snapshots, observed pods, what it
//! remembers, and the time. Output: the same snapshots with the pods that controllers want, what has to be
//! remembered, and the next time at which something changes by itself. Pure: no I/O, no clock, no tasks. Only
//! differences are computed, so the cost grows with the change; without a workload there is nothing to compute.
//!
//! Each kind has one pure function, which follows Kubernetes' controller of that kind. The merge loop of
//! `limpet-worker` drives them.

mod adoption;
mod claims;
mod clock;
mod controllers;
mod cron_job;
mod effective;
mod facts;
mod id;
mod job;
mod memory;
mod notice;
mod pace;
mod pods;
mod progress;
mod replicated;
mod situation;
mod stateful_set;
mod victims;

pub use adoption::has_workload;
pub use controllers::{Controllers, Zones};
pub use id::WorkloadId;
pub use memory::{
    CronMemory, End, Failures, IndexFailures, JobMemory, MadeJob, Memory, MemoryChange, Revision, Task, Verdict,
    WantedPod,
};
pub use notice::Notice;
pub use progress::Progress;
