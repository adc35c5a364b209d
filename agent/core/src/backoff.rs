//! kubelet's two back-offs, crash loop and image pull: 10 s doubling to 300 s.

use std::time::Duration;

/// The first back-off.
pub const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
/// The longest back-off.
pub const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// A container that ran longer than this starts over without back-off. It is twice the longest back-off.
pub const RESET_AFTER: Duration = Duration::from_secs(600);

/// The back-off that follows `pause`; zero means there was none yet.
pub fn next(pause: Duration) -> Duration {
    if pause.is_zero() { INITIAL_BACKOFF } else { (pause * 2).min(MAX_BACKOFF) }
}

/// The back-off after the exit of a container that ran for `ran` and was started with the back-off `pause`.
pub fn after_exit(pause: Duration, ran: Duration) -> Duration {
    if ran > RESET_AFTER { Duration::ZERO } else { pause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_restart_is_immediate_then_ten_seconds_doubling_to_five_minutes() {
        let mut pause = Duration::ZERO;
        let mut pauses = Vec::new();
        for _ in 0..8 {
            pauses.push(pause.as_secs());
            pause = next(pause);
        }
        assert_eq!(pauses, [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn a_long_run_resets_the_back_off() {
        assert_eq!(after_exit(MAX_BACKOFF, Duration::from_secs(601)), Duration::ZERO);
        assert_eq!(after_exit(MAX_BACKOFF, Duration::from_secs(600)), MAX_BACKOFF);
    }
}
