//! The current time for decisions, and waiting for a point in time.

use jiff::Timestamp;
use limpet_model::clock::Now;
use tokio::time::Instant;

/// The current time. The monotonic part is tokio's clock, which tests pause.
pub fn now() -> Now {
    Now { mono: Instant::now().into_std(), wall: Timestamp::now() }
}

/// Resolves at `deadline`; never without one. Cancel safe.
pub async fn sleep_until_or_forever(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
