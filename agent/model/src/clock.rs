//! The time that decisions are made with: a value, read from the clocks by `limpet_host::clock`.

use std::time::Instant;

use jiff::Timestamp;

/// One time on both clocks: monotonic for delays, wall for what people read.
#[derive(Debug, Clone, Copy)]
pub struct Now {
    /// For delays and deadlines; never jumps.
    pub mono: Instant,
    /// For people and for records; may jump.
    pub wall: Timestamp,
}
