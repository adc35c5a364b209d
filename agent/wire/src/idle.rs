//! Detects that a stream of `/exec`, `/attach` or `/portForward` has carried no data for too long: kubelet's
//! `streamingConnectionIdleTimeout`. Each stream has a timer, which runs only while the stream is open.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long a stream may be idle; `None` means any time.
pub type IdleTimeout = Option<Duration>;

/// The idle time of one stream.
#[derive(Debug)]
pub struct Idle {
    timeout: IdleTimeout,
    start: Instant,
    /// When the stream was last used, in milliseconds after `start`.
    used: AtomicU64,
}

impl Idle {
    /// The idle time of a stream that begins now.
    pub fn new(timeout: IdleTimeout) -> Self {
        Self { timeout, start: Instant::now(), used: AtomicU64::new(0) }
    }

    /// Records that the stream carries data now.
    pub fn reset(&self) {
        let elapsed = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.used.store(elapsed, Ordering::Relaxed);
    }

    /// Resolves once the stream has carried no data for the timeout.
    pub async fn expired(&self) {
        let Some(timeout) = self.timeout else { return std::future::pending().await };
        loop {
            let used = self.used.load(Ordering::Relaxed);
            // A deadline beyond the clock's range never comes.
            let Some(deadline) = self.start.checked_add(Duration::from_millis(used).saturating_add(timeout)) else {
                return std::future::pending().await;
            };
            sleep_until(deadline).await;
            if self.used.load(Ordering::Relaxed) == used {
                return tracing::debug!(?timeout, "a stream was idle for too long");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::{sleep, timeout};

    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[tokio::test(start_paused = true)]
    async fn a_stream_expires_a_timeout_after_its_last_use() {
        let idle = Idle::new(Some(MINUTE));
        let start = Instant::now();
        let work = async {
            for _ in 0..3 {
                sleep(MINUTE / 2).await;
                idle.reset();
            }
        };
        tokio::join!(work, idle.expired());
        assert_eq!(start.elapsed().as_secs(), 150);
    }

    #[tokio::test(start_paused = true)]
    async fn without_a_timeout_it_never_expires() {
        for none in [None, Some(Duration::MAX)] {
            let idle = Idle::new(none);
            assert!(timeout(1_000_000 * MINUTE, idle.expired()).await.is_err(), "{none:?}");
        }
    }
}
