//! Windows of time: they begin by a schedule and last for a while. Pure: the clocks are arguments.
//!
//! A node whose clock has not been set yet, since it has no battery and no network, does not know when a window begins. There
//! a window opens periodically by the time since the node's start, so that updates from a stick do not wait for ever.

use std::time::Duration;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use limpet_model::object::workload::cron_job::Schedule;

/// How many starts of a window, and how many windows that overlap, are followed for an end. Windows that stay open for
/// longer are looked at again at the end that was found. Each start costs a search through the calendar, and a schedule
/// of every minute has thousands.
const MAX_FOLLOWED: usize = 100;

/// A window: when it begins, and how long it lasts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    pub start: Schedule,
    /// The start as it is configured.
    pub written: String,
    pub duration: Duration,
}

/// This moment, by both clocks of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    pub wall: Timestamp,
    /// Since the start of the kernel.
    pub uptime: Duration,
}

/// When something that depends on windows changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// When the node's clock shows this time.
    At(Timestamp),
    /// After so much time, or when the clock is set.
    After(Duration),
    Never,
}

/// Whether a window is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WindowState {
    /// A window is open until then.
    Open(When),
    /// No window is open; the next one opens then.
    Closed(When),
}

/// The windows of one phase.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    /// The windows; if there are none, the phase is always open.
    pub all: &'a [Window],
    pub zone: &'a TimeZone,
    /// So often a window opens while the clock is not set.
    pub without_clock: Duration,
    /// A clock that shows an earlier time has not been set.
    pub earliest: Timestamp,
}

impl Windows<'_> {
    /// The default of `withoutClock`: a day, which is the period of most schedules.
    pub const DEFAULT_WITHOUT_CLOCK: Duration = Duration::from_secs(86_400);

    /// Whether one is open now.
    pub fn state(&self, now: Moment) -> WindowState {
        if self.all.is_empty() {
            return WindowState::Open(When::Never);
        }
        if now.wall < self.earliest {
            return self.by_uptime(now.uptime);
        }
        match self.end(now.wall) {
            Some(end) => WindowState::Open(When::At(end)),
            None => {
                let starts = self.all.iter().filter_map(|window| window.start.next(now.wall, self.zone));
                WindowState::Closed(starts.min().map_or(When::Never, When::At))
            }
        }
    }

    /// The end of the windows that are open at that time, and of those that begin before these have ended.
    fn end(&self, at: Timestamp) -> Option<Timestamp> {
        let mut end = self.end_of_open(at)?;
        for _ in 0..MAX_FOLLOWED {
            match self.end_of_open(end) {
                Some(further) => end = further,
                None => break,
            }
        }
        Some(end)
    }

    /// The latest end of a window that has begun at that time, or before, and has not ended.
    fn end_of_open(&self, at: Timestamp) -> Option<Timestamp> {
        let ends = self.all.iter().filter_map(|window| {
            let duration = SignedDuration::try_from(window.duration).ok()?;
            // The first one that has not ended at that time.
            let begun = window.start.next(at.checked_sub(duration).ok()?, self.zone)?;
            let last = last_start(window, begun, at, self.zone)?;
            last.checked_add(duration).ok()
        });
        ends.max()
    }

    /// The longest window opens each time so much time has passed since the start of the node.
    fn by_uptime(&self, uptime: Duration) -> WindowState {
        let period = self.without_clock.max(Duration::from_secs(1));
        let longest = self.all.iter().map(|window| window.duration).max().unwrap_or_default().min(period);
        let passed = Duration::from_secs(uptime.as_secs() % period.as_secs());
        let has_begun = uptime >= period && passed < longest;
        match has_begun {
            true => WindowState::Open(When::After(longest - passed)),
            false => WindowState::Closed(When::After(period - passed)),
        }
    }
}

/// The last start from `first` on that is not after `at`; `None`: `first` is.
fn last_start(window: &Window, first: Timestamp, at: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
    let starts = std::iter::successors(Some(first), |start| window.start.next(*start, zone));
    starts.take_while(|start| *start <= at).take(MAX_FOLLOWED).last()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn window(start: &str, hours: u64) -> Window {
        Window {
            start: Schedule::parse(start).unwrap(),
            written: start.to_owned(),
            duration: Duration::from_secs(3_600 * hours),
        }
    }

    fn state(all: &[Window], zone: &TimeZone, wall: &str, uptime: u64) -> WindowState {
        let windows = Windows {
            all,
            zone,
            without_clock: Windows::DEFAULT_WITHOUT_CLOCK,
            earliest: "2026-01-01T00:00:00Z".parse().unwrap(),
        };
        windows.state(Moment { wall: wall.parse().unwrap(), uptime: Duration::from_secs(uptime) })
    }

    fn open(until: &str) -> WindowState {
        WindowState::Open(When::At(until.parse().unwrap()))
    }

    fn closed(until: &str) -> WindowState {
        WindowState::Closed(When::At(until.parse().unwrap()))
    }

    #[test]
    fn a_window_is_open_from_its_start_for_its_duration() {
        let night = [window("0 2 * * *", 3)];
        for (now, expected) in [
            ("2026-03-02T01:59:59Z", closed("2026-03-02T02:00:00Z")),
            ("2026-03-02T02:00:00Z", open("2026-03-02T05:00:00Z")),
            ("2026-03-02T04:59:59Z", open("2026-03-02T05:00:00Z")),
            ("2026-03-02T05:00:00Z", closed("2026-03-03T02:00:00Z")),
        ] {
            assert_eq!(state(&night, &TimeZone::UTC, now, 0), expected, "{now}");
        }
        assert_eq!(state(&[], &TimeZone::UTC, "2026-03-02T05:00:00Z", 0), WindowState::Open(When::Never));
    }

    #[test]
    fn windows_that_overlap_or_touch_are_one() {
        let all = [window("0 22 * * fri", 4), window("0 1 * * sat", 3), window("0 4 * * sat", 1)];
        // The sixth of March is a Friday.
        for now in ["2026-03-06T22:00:00Z", "2026-03-07T01:30:00Z", "2026-03-07T04:59:00Z"] {
            assert_eq!(state(&all, &TimeZone::UTC, now, 0), open("2026-03-07T05:00:00Z"), "{now}");
        }
        let hourly = [window("0 * * * *", 2)];
        let WindowState::Open(When::At(end)) = state(&hourly, &TimeZone::UTC, "2026-03-06T22:00:00Z", 0) else {
            panic!("always open")
        };
        assert!(end > "2026-03-14T00:00:00Z".parse().unwrap(), "{end}");
    }

    #[test]
    fn a_window_that_is_always_open_is_followed_for_days_and_not_for_years() {
        let always = [window("* * * * *", 24)];
        let WindowState::Open(When::At(end)) = state(&always, &TimeZone::UTC, "2026-03-06T22:00:00Z", 0) else {
            panic!("always open")
        };
        let bounds = ["2026-03-07T00:00:00Z", "2026-04-06T00:00:00Z"].map(|at| at.parse::<Timestamp>().unwrap());
        assert!(bounds[0] < end && end < bounds[1], "{end}");
    }

    #[test]
    fn a_window_is_of_its_time_zone_also_when_clocks_change() {
        let Ok(zone) = TimeZone::get("Europe/Berlin") else { return println!("skipped: no zones on this machine") };
        let night = [window("0 3 * * *", 1)];
        for (now, expected) in [
            ("2026-03-28T01:59:00Z", closed("2026-03-28T02:00:00Z")),
            ("2026-03-29T01:30:00Z", open("2026-03-29T02:00:00Z")),
        ] {
            assert_eq!(state(&night, &zone, now, 0), expected, "{now}");
        }
    }

    #[test]
    fn without_a_clock_a_window_opens_after_each_day_of_running() {
        let night = [window("0 2 * * *", 3), window("0 2 * * *", 1)];
        let (hour, day) = (3_600, 86_400);
        let after = |seconds| When::After(Duration::from_secs(seconds));
        for (uptime, expected) in [
            (0, WindowState::Closed(after(day))),
            (hour, WindowState::Closed(after(day - hour))),
            (day, WindowState::Open(after(3 * hour))),
            (day + 2 * hour, WindowState::Open(after(hour))),
            (day + 3 * hour, WindowState::Closed(after(day - 3 * hour))),
            (5 * day, WindowState::Open(after(3 * hour))),
        ] {
            assert_eq!(state(&night, &TimeZone::UTC, "1970-01-01T00:00:00Z", uptime), expected, "{uptime}");
        }
    }

    #[test]
    fn a_schedule_without_a_time_never_opens() {
        let never = [window("0 0 31 2 *", 3)];
        assert_eq!(state(&never, &TimeZone::UTC, "2026-03-02T05:00:00Z", 0), WindowState::Closed(When::Never));
    }
}
