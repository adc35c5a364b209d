//! What the agent reports to people and machines, besides the statuses that `limpet-core` decides: events, metrics,
//! health, usage, rejected manifests, and the publishing of statuses.
//!
//! The parts that report (workers, executor, sources, cluster) and those that show it (server, command line) meet here,
//! and know nothing of each other.

pub mod event;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod health;
pub mod metrics;
pub mod rejection;
pub mod reporter;
pub mod usage;
