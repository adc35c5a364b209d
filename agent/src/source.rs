//! Where pods come from. Each source publishes its whole view as one immutable snapshot and never waits for
//! the consumer: the latest snapshot wins, bursts coalesce.

pub mod file;
pub mod http;
mod keep;
pub mod pulse;
pub mod push;

pub use pulse::Pulse;
