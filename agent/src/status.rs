//! What is observed: phases, conditions, container statuses, events, metrics.

pub mod event;
pub mod metrics;
pub mod rejection;
