//! Observed state published to users: events, metrics, and rejected manifests.

pub mod event;
pub mod metrics;
pub mod rejection;
