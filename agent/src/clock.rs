//! The time that decisions are given.

use jiff::Timestamp;
use limpet_core::state::Now;
use tokio::time::Instant;

/// This moment. The monotonic part is tokio's clock, which tests pause.
pub fn now() -> Now {
    Now { mono: Instant::now().into_std(), wall: Timestamp::now() }
}
