//! limpet: a node agent for Kubernetes Pods on constrained edge hardware.
//!
//! Data flows in one direction: sources publish pods, `merge` combines them into one desired state, a worker per pod
//! drives containerd towards it, and `status` publishes what is observed. `ARCHITECTURE.md` shows the whole; each
//! module below is one part.

pub mod app;
pub mod claim_disk;
pub mod cli;
pub mod config;
pub mod fuzz;

pub mod eviction;
pub mod executor;
pub mod generations;
pub mod image_gc;
pub mod lifecycle;
pub mod manifest_guard;
pub mod node_report;
pub mod pull_records;
pub mod workload_memory;
