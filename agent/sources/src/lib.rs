//! The sources of pods. Each source publishes its whole state as one immutable snapshot and never waits for the
//! consumer: the latest snapshot wins, bursts coalesce.

pub mod api;
pub mod bundle;
pub mod file;
pub mod http;
mod persist;
pub mod pulse;
pub mod push;
pub mod settings;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod first_snapshot;

pub use pulse::Pulse;
