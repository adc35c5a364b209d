//! Which run of a schedule is due, and how many were missed (`mostRecentScheduleTime` in `pkg/controller/cronjob`).

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp};
use limpet_model::object::workload::cron_job::Schedule;

/// How many runs can have been missed without a warning.
const MANY: i64 = 100;

/// How many runs were missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Missed {
    None,
    Few,
    Many,
}

/// The last due time after `earliest`, and how many were missed. Without a time between two runs there is none.
pub(super) fn last_due(
    schedule: &Schedule,
    earliest: Timestamp,
    now: Timestamp,
    zone: &TimeZone,
) -> (Option<Timestamp>, Missed) {
    let Some(first) = schedule.next(earliest, zone).filter(|first| *first <= now) else {
        return (None, Missed::None);
    };
    let Some(second) = schedule.next(first, zone).filter(|second| *second <= now) else {
        return (Some(first), Missed::None);
    };
    let pause = second.duration_since(first).as_secs().max(1);
    let missed = now.duration_since(first).as_secs() / pause + 1;
    // Runs are not always equally spaced, so they are counted from the second last on.
    let begin = first.checked_add(SignedDuration::from_secs((missed - 2).max(0) * pause)).unwrap_or(second);
    let times = std::iter::successors(schedule.next(begin, zone), |time| schedule.next(*time, zone));
    let last = times.take_while(|time| *time <= now).last();
    (last, if missed > MANY { Missed::Many } else { Missed::Few })
}
