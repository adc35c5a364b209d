//! CPU usage between two requests. Each group's last reading is kept until a request no longer finds the group.

use std::collections::BTreeMap;
use std::time::Duration;

use super::NodeUsage;
use limpet_core::cpu_rate::rate;
use limpet_host::cgroup::usage::GroupUsage;

/// Closer readings count as one, because the kernel's counters are not exact to the millisecond.
const MIN_READING_INTERVAL: Duration = Duration::from_millis(250);

/// Nanoseconds of CPU time per second, on all cores, by the group's path.
pub type NanoCores = BTreeMap<String, u64>;

/// The last readings.
#[derive(Debug, Default)]
pub struct Rates {
    last: BTreeMap<String, Sample>,
}

#[derive(Debug, Clone, Copy)]
struct Sample {
    uptime: Duration,
    /// Nanoseconds.
    total: u64,
    /// The rate of the previous interval.
    rate: Option<u64>,
}

impl Rates {
    /// Adds a reading. Returns the CPU usage since the previous one; new groups have none.
    pub fn advance(&mut self, usage: &NodeUsage) -> NanoCores {
        let sample = |group: &GroupUsage| {
            let total = group.cpu.as_ref()?.total;
            let now = next(self.last.get(&group.path), group.taken.uptime, total);
            Some((group.path.clone(), now))
        };
        self.last = usage.groups().filter_map(sample).collect();
        self.last.iter().filter_map(|(path, sample)| Some((path.clone(), sample.rate?))).collect()
    }
}

fn next(last: Option<&Sample>, uptime: Duration, total: u64) -> Sample {
    let Some(last) = last else { return Sample { uptime, total, rate: None } };
    let elapsed = uptime.saturating_sub(last.uptime);
    if elapsed < MIN_READING_INTERVAL {
        return *last;
    }
    Sample { uptime, total, rate: rate(last.total, total, elapsed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use limpet_host::cgroup::usage::{CpuUsage, SampleTime};

    fn reading(groups: &[(&str, u64)], uptime: u64) -> NodeUsage {
        let group = |(path, total): &(&str, u64)| GroupUsage {
            path: (*path).to_owned(),
            taken: SampleTime { uptime: Duration::from_millis(uptime), ..SampleTime::default() },
            cpu: Some(CpuUsage { total: *total, ..CpuUsage::default() }),
            ..GroupUsage::default()
        };
        NodeUsage { levels: groups.iter().map(group).collect(), ..NodeUsage::default() }
    }

    fn shown(rates: &NanoCores) -> Vec<(&str, u64)> {
        rates.iter().map(|(path, rate)| (path.as_str(), *rate)).collect()
    }

    #[test]
    fn use_is_what_was_spent_since_the_last_request() {
        let mut rates = Rates::default();
        assert_eq!(shown(&rates.advance(&reading(&[("/a", 100)], 1_000))), [], "one reading says nothing");
        let second = rates.advance(&reading(&[("/a", 1_000_000_100), ("/b", 5)], 3_000));
        assert_eq!(shown(&second), [("/a", 500_000_000)], "half a core for two seconds; /b is new");
        let soon = rates.advance(&reading(&[("/a", 1_000_000_200), ("/b", 6)], 3_100));
        assert_eq!(shown(&soon), [("/a", 500_000_000)], "too soon for another figure");
        let third = rates.advance(&reading(&[("/a", 1_000_000_100), ("/b", 1_000_005)], 4_000));
        assert_eq!(shown(&third), [("/a", 0), ("/b", 1_000_000)]);
    }

    #[test]
    fn a_group_that_is_gone_is_forgotten_and_a_reset_one_has_no_figure() {
        let mut rates = Rates::default();
        rates.advance(&reading(&[("/a", 100), ("/b", 100)], 1_000));
        assert_eq!(shown(&rates.advance(&reading(&[("/b", 50)], 2_000))), []);
        assert_eq!(rates.last.keys().collect::<Vec<_>>(), ["/b"]);
        assert_eq!(shown(&rates.advance(&reading(&[("/a", 500), ("/b", 50)], 3_000))), [("/b", 0)]);
    }

    #[test]
    fn no_time_between_readings_is_no_rate() {
        assert_eq!(rate(1, 2, Duration::ZERO), None);
        assert_eq!(rate(0, u64::MAX, Duration::from_nanos(1)), None);
    }
}
