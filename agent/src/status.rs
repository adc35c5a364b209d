//! What is observed: phases, conditions, container statuses, events, metrics.

pub mod event;
pub mod generate;
pub mod metrics;
pub mod observed;
pub mod rejection;
