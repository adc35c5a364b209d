//! Tables of the times that schedules have, and of texts that are not schedules.

use super::*;

fn zone(name: &str) -> TimeZone {
    // The rules of the zones that the tests need, so that they need no database.
    let rules = match name {
        "Berlin" => "CET-1CEST,M3.5.0,M10.5.0/3",
        "Beirut" => "EET-2EEST,M3.5.0/0,M10.5.0/0",
        _ => "UTC0",
    };
    TimeZone::posix(rules).unwrap()
}

/// The times after `from` that the schedule has in the zone.
fn times(schedule: &str, from: &str, name: &str, count: usize) -> Vec<String> {
    let (schedule, zone) = (Schedule::parse(schedule).unwrap(), zone(name));
    let mut time: Timestamp = from.parse().unwrap();
    let mut times = Vec::new();
    while let Some(next) = schedule.next(time, &zone).filter(|_| times.len() < count) {
        times.push(next.to_zoned(zone.clone()).strftime("%m-%dT%H:%M").to_string());
        time = next;
    }
    times
}

#[test]
fn schedules_have_the_times_of_kubernetes() {
    // This is a Sunday.
    let from = "2026-11-29T10:17:30Z";
    for (schedule, expected) in [
        ("* * * * *", vec!["11-29T10:18", "11-29T10:19"]),
        ("*/15 * * * *", vec!["11-29T10:30", "11-29T10:45", "11-29T11:00"]),
        (
            "7/20 9-11 * * *",
            vec!["11-29T10:27", "11-29T10:47", "11-29T11:07", "11-29T11:27", "11-29T11:47", "11-30T09:07"],
        ),
        ("0 0 31 * *", vec!["12-31T00:00", "01-31T00:00", "03-31T00:00"]),
        ("30 6 * * MON-fri", vec!["11-30T06:30", "12-01T06:30"]),
        ("0 12 1,15 * 3", vec!["12-01T12:00", "12-02T12:00", "12-09T12:00", "12-15T12:00"]),
        ("0 12 1 * *", vec!["12-01T12:00", "01-01T12:00"]),
        ("0 12 ? * 0", vec!["11-29T12:00", "12-06T12:00"]),
        // With a step it is no longer a `*`, so either day matches.
        ("0 0 */30 * 1", vec!["11-30T00:00", "12-01T00:00", "12-07T00:00"]),
        ("@hourly", vec!["11-29T11:00"]),
        ("@daily", vec!["11-30T00:00"]),
        ("@weekly", vec!["12-06T00:00"]),
        ("@monthly", vec!["12-01T00:00"]),
        ("@yearly", vec!["01-01T00:00"]),
        ("@every 1h30m", vec!["11-29T11:47", "11-29T13:17"]),
        ("0 0 29 feb *", vec!["02-29T00:00"]),
        ("59 23 31 2 *", vec![]),
    ] {
        let count = expected.len().max(1);
        assert_eq!(times(schedule, from, "UTC", count), expected, "{schedule}");
    }
}

#[test]
fn the_clock_of_the_zone_counts_where_it_is_put_forward_or_back() {
    assert_eq!(
        times("30 1,3 * * *", "2026-03-28T12:00:00Z", "Berlin", 3),
        ["03-29T01:30", "03-29T03:30", "03-30T01:30"]
    );
    // 02:30 is skipped on that day.
    assert_eq!(times("30 2 * * *", "2026-03-28T12:00:00Z", "Berlin", 2), ["03-30T02:30", "03-31T02:30"]);
    // It occurs twice on that day.
    assert_eq!(times("30 2 * * *", "2026-10-24T12:00:00Z", "Berlin", 3), ["10-25T02:30", "10-25T02:30", "10-26T02:30"]);
    // On this day the clock begins at 01:00.
    assert_eq!(times("0 * 29 3 *", "2026-03-28T12:00:00Z", "Beirut", 2), ["03-29T01:00", "03-29T02:00"]);
}

#[test]
fn what_is_no_schedule_says_why() {
    for (text, error) in [
        ("* * * *", "expected exactly 5 fields, found 4: [* * * *]"),
        ("60 * * * *", "end of range (60) above maximum (59): 60"),
        ("* * 0 * *", "beginning of range (0) below minimum (1): 0"),
        ("* * * * 7", "end of range (7) above maximum (6): 7"),
        ("5-1 * * * *", "beginning of range (5) beyond end of range (1): 5-1"),
        ("1-2-3 * * * *", "too many hyphens: 1-2-3"),
        ("1/2/3 * * * *", "too many slashes: 1/2/3"),
        ("*/0 * * * *", "step of range should be a positive number: */0"),
        ("x * * * *", "failed to parse int from x: invalid syntax"),
        ("* * * foo *", "failed to parse int from foo: invalid syntax"),
        ("@often", "unrecognized descriptor: @often"),
        ("@every soon", "failed to parse duration @every soon"),
    ] {
        assert_eq!(Schedule::parse(text).unwrap_err(), error, "{text}");
    }
}
