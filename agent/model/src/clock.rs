//! The time by which decisions are made: a value, read from the clocks by `limpet_host::clock`.

use std::time::Instant;

use jiff::Timestamp;

/// One time on both clocks.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// Monotonic, for delays and deadlines; never jumps.
    pub mono: Instant,
    /// Wall clock, for people and for records; may jump.
    pub wall: Timestamp,
}

/// The time of a build whose sources do not have one: 2026-11-01.
const UNKNOWN_BUILD: i64 = 1_793_491_200;

/// When the agent was built, which is earlier than any right clock shows.
pub fn built() -> Timestamp {
    let written = option_env!("SOURCE_DATE_EPOCH").and_then(|seconds| seconds.parse().ok());
    Timestamp::from_second(written.unwrap_or(UNKNOWN_BUILD)).unwrap_or(Timestamp::UNIX_EPOCH)
}
