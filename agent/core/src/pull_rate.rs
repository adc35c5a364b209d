//! How often pulls of images may begin (`registryPullQPS`, `registryBurst`). Pure: time is an argument.

use std::time::{Duration, Instant};

/// How often pulls may begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PullRate {
    /// Pulls per second on average; more than 0.
    pub per_second: u32,
    /// Pulls at once after a while without any; more than 0.
    pub burst: u32,
}

impl PullRate {
    /// kubelet's default.
    pub const DEFAULT: Self = Self { per_second: 5, burst: 10 };
}

/// Gives each pull the time at which it may begin.
#[derive(Debug)]
pub struct PullPace {
    /// The time of one pull at that rate.
    interval: Duration,
    /// How far ahead of the rate pulls may be.
    ahead: Duration,
    /// The time at which as many pulls as have begun would have begun at the rate, one after another.
    due: Option<Instant>,
}

impl PullPace {
    /// Nothing has been pulled yet.
    pub fn new(rate: PullRate) -> Self {
        let interval = Duration::from_secs(1) / rate.per_second.max(1);
        Self { interval, ahead: interval.saturating_mul(rate.burst.saturating_sub(1)), due: None }
    }

    /// When the next pull may begin: `now`, or later. It is assumed to begin then.
    pub fn next(&mut self, now: Instant) -> Instant {
        let due = self.due.map_or(now, |due| due.max(now));
        self.due = due.checked_add(self.interval);
        due.checked_sub(self.ahead).map_or(now, |begin| begin.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_begins_at_once_and_the_rest_at_the_rate() {
        let began = Instant::now();
        let mut pace = PullPace::new(PullRate { per_second: 5, burst: 3 });
        let mut after = |at: u64| {
            let now = began + Duration::from_millis(at);
            u64::try_from((pace.next(now) - began).as_millis()).unwrap_or(u64::MAX)
        };
        let begun: Vec<u64> = [0, 0, 0, 0, 0].into_iter().map(&mut after).collect();
        assert_eq!(begun, [0, 0, 0, 200, 400]);
        // Two intervals without a pull allow two pulls at once; more than the burst is not saved up.
        assert_eq!([1_000, 1_000, 1_000].map(&mut after), [1_000, 1_000, 1_000]);
        assert_eq!(after(1_000), 1_200);
        assert_eq!([100_000; 4].map(&mut after), [100_000, 100_000, 100_000, 100_200]);
    }
}
