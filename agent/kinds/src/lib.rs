//! Controllers of the workloads that a node's own sources define: Deployments, ReplicaSets, DaemonSets.
//!
//! [`Controllers`] stands between the sources' snapshots and the merge. In: snapshots, observed pods, what it remembers,
//! the time. Out: the same snapshots with the pods that controllers want, what is to be remembered, and the next moment
//! at which something changes by itself. Pure: no I/O, no clock, no tasks. What differs is computed, so the cost grows with
//! the change; without a workload there is nothing to compute.
//!
//! Each kind has one pure function, which follows Kubernetes' controller of that kind. The merge loop of `limpet-worker`
//! drives them.

mod adoption;
mod controllers;
mod effective;
mod facts;
mod id;
mod memory;
mod pace;
mod pods;
mod replicated;
mod victims;

pub use adoption::has_workload;
pub use controllers::Controllers;
pub use id::WorkloadId;
pub use memory::{Memory, MemoryChange, Revision, WantedPod};
