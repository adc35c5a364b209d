//! Retries a watch or a connection that the kernel or another program has ended or refused.
//!
//! Nothing else reports that it would succeed now, so it is retried after a pause, as long as the agent runs.

use std::fmt::Display;
use std::time::Duration;

/// The pause for watches of the kernel. The watched object is also read then.
pub const WATCH_AGAIN: Duration = Duration::from_secs(60);

#[derive(Debug)]
pub struct Attempts {
    pause: Duration,
    reported: Option<String>,
}

impl Attempts {
    /// Attempts with this pause between them.
    pub fn new(pause: Duration) -> Self {
        Self { pause, reported: None }
    }

    /// Waits after an attempt that ended with `error`, which is passed to `report` unless it equals the previous one.
    /// Cancel safe.
    pub async fn failed<E: Display>(&mut self, error: &E, report: impl FnOnce(&E)) {
        let text = error.to_string();
        if self.reported.as_ref() != Some(&text) {
            report(error);
            self.reported = Some(text);
        }
        tokio::time::sleep(self.pause).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_attempt_follows_a_pause_and_an_error_is_reported_once() {
        let (began, mut reported) = (Instant::now(), Vec::new());
        let mut attempts = Attempts::new(WATCH_AGAIN);
        for error in ["full", "full", "gone", "full"] {
            attempts.failed(&error, |error| reported.push(*error)).await;
        }
        assert_eq!(reported, ["full", "gone", "full"]);
        assert_eq!(began.elapsed(), WATCH_AGAIN * 4);
    }
}
