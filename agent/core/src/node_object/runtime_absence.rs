//! How long the node counts as ready while its runtime is away. A restart of containerd must not evict pods, which
//! keep running.

use std::time::{Duration, Instant};

/// kubelet's `maxWaitForContainerRuntime`.
const ABSENCE_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// Since when the runtime has been away.
#[derive(Debug, Default)]
pub struct RuntimeAbsence {
    /// Whether it was there before, and does not count as gone yet.
    counts: bool,
    since: Option<Instant>,
}

impl RuntimeAbsence {
    /// Whether the runtime counts as ready at `now`, and when that ends unless the runtime is back.
    pub fn observe(&mut self, is_ready: bool, now: Instant) -> (bool, Option<Instant>) {
        if is_ready {
            *self = Self { counts: true, since: None };
            return (true, None);
        }
        let until = *self.since.get_or_insert(now) + ABSENCE_GRACE_PERIOD;
        self.counts &= now < until;
        (self.counts, self.counts.then_some(until))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_that_is_away_for_a_moment_counts_and_one_that_was_never_there_does_not() {
        let (begun, mut absence) = (Instant::now(), RuntimeAbsence::default());
        let at = |seconds| begun + Duration::from_secs(seconds);
        assert_eq!(absence.observe(false, begun), (false, None), "it has not come up yet");
        assert_eq!(absence.observe(true, at(100)), (true, None));
        assert_eq!(absence.observe(false, at(200)), (true, Some(at(230))));
        assert_eq!(absence.observe(false, at(229)), (true, Some(at(230))));
        assert_eq!(absence.observe(true, at(229)), (true, None));
        assert_eq!(absence.observe(false, at(300)), (true, Some(at(330))));
        assert_eq!(absence.observe(false, at(330)), (false, None));
        assert_eq!(absence.observe(false, at(331)), (false, None));
    }
}
