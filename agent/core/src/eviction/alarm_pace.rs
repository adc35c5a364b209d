//! How soon memory is measured after the kernel has reported that processes wait for it.

use std::time::Duration;

use super::CHECK_INTERVALS;

/// The fraction by which the available memory has to differ to count as changed.
const CHANGE_FRACTION: u64 = 20;

/// The pace of the measurements that alarms cause. Processes of a container that uses all of its own limit also wait,
/// for as long as it runs and however much memory the node has. So while nothing changes, each pause is twice the one
/// before, up to kubelet's interval of 10 s, because another pod may begin to use up the node meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AlarmPace {
    left: Option<u64>,
    pause: Duration,
}

impl AlarmPace {
    /// The pace after a measurement that found `left` bytes above the first threshold, which last for at least
    /// `lasts`. `alarmed`: the kernel has reported waiting processes since the measurement before.
    #[must_use]
    pub fn after(self, left: Option<u64>, lasts: Duration, alarmed: bool) -> Self {
        let unchanged = |(before, now): (u64, u64)| now > 0 && before.abs_diff(now) <= before / CHANGE_FRACTION;
        let is_unchanged = alarmed && self.left.zip(left).is_some_and(unchanged);
        // It is compared with the measurement from which the pause has grown, so that a slow decrease adds up.
        let reference = if is_unchanged { self.left } else { left };
        let pause = if is_unchanged { self.pause.saturating_mul(2).max(lasts) } else { lasts };
        Self { left: reference, pause: pause.min(lasts.max(CHECK_INTERVALS.0)) }
    }

    /// The pause between the last measurement and one that an alarm causes.
    pub fn pause(self) -> Duration {
        self.pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LASTS: Duration = Duration::from_secs(4);

    fn pauses(measurements: &[(u64, bool)]) -> Vec<u64> {
        let next = |pace: &mut AlarmPace, (left, alarmed): &(u64, bool)| {
            *pace = pace.after(Some(*left), LASTS, *alarmed);
            Some(pace.pause().as_secs())
        };
        measurements.iter().scan(AlarmPace::default(), next).collect()
    }

    #[test]
    fn the_pause_grows_while_alarms_find_nothing_changed() {
        assert_eq!(pauses(&[(1_000, true); 4]), [4, 8, 10, 10]);
        assert_eq!(pauses(&[(1_000, true), (1_040, true), (960, true)]), [4, 8, 10]);
    }

    #[test]
    fn a_change_or_an_end_of_the_alarms_resets_the_pause() {
        assert_eq!(pauses(&[(1_000, true), (1_000, true), (900, true), (900, true)]), [4, 8, 4, 8]);
        assert_eq!(pauses(&[(1_000, true), (1_000, true), (1_000, false), (1_000, true)]), [4, 8, 4, 8]);
        // It decreases by 4 % each time.
        assert_eq!(pauses(&[(1_000, true), (960, true), (920, true), (880, true)]), [4, 8, 4, 8]);
    }

    #[test]
    fn the_pause_does_not_grow_under_a_threshold_or_unmeasured() {
        assert_eq!(pauses(&[(0, true); 3]), [4, 4, 4]);
        let unmeasured = AlarmPace::default().after(None, LASTS, true).after(None, LASTS, true);
        assert_eq!(unmeasured.pause(), LASTS);
    }
}
