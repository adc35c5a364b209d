//! The current time for decisions, and waiting for a point in time.

use std::time::Duration;

use jiff::Timestamp;
use limpet_model::clock::Now;
use tokio::time::Instant;

/// The current time. The monotonic part is tokio's clock, which tests pause.
pub fn now() -> Now {
    Now { mono: Instant::now().into_std(), wall: Timestamp::now() }
}

/// The time since the start of the kernel, without that in which the machine was suspended.
pub fn uptime() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Neither is negative on this clock.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Resolves at `deadline`; never without one. Cancel safe.
pub async fn sleep_until_or_forever(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
