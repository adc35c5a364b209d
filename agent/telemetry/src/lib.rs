//! What the agent reports to people and machines, except the statuses that `limpet-core` decides: events, metrics,
//! health, usage, rejected manifests, and the publishing of statuses.
//!
//! The parts that report (workers, executor, sources, cluster) and those that show reports (server, command line)
//! meet here, and do not depend on each other.

pub mod event;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
pub mod health;
pub mod metrics;
pub mod rejection;
pub mod reporter;
pub mod usage;
