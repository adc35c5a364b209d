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
