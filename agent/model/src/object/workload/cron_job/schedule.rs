//! Schedules as Kubernetes reads them (`robfig/cron` v3): five fields, or a macro. No maintained crate reads these
//! without a second library of dates, or with the same numbers for weekdays.

use std::ops::RangeInclusive;

use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _, Zoned};

const MONTHS: [&str; 12] = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
const WEEKDAYS: [&str; 7] = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"];
const MACROS: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];
/// A schedule without a time within so many years has none, such as the 31st of February.
const MAX_YEARS: i16 = 5;
/// The longest schedule that makes sense, with every number of every field.
const MAX_LENGTH: usize = 1_024;

/// When something is due.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Schedule {
    /// At times of the calendar.
    Calendar(Calendar),
    /// Periodically, after so many seconds.
    Every(SignedDuration),
}

/// Times of the calendar: sets of numbers, as bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Calendar {
    minutes: u64,
    hours: u64,
    days: u64,
    months: u64,
    weekdays: u64,
    /// Whether both the day of the month and the day of the week have to match, because one of them is `*`.
    both_days: bool,
}

/// One field: its numbers, and whether it is `*`.
#[derive(Debug, Clone, Copy)]
struct Field {
    numbers: u64,
    is_any: bool,
}

impl Schedule {
    /// Reads a schedule.
    ///
    /// # Errors
    /// What is wrong with it, in Kubernetes' words.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MAX_LENGTH {
            return Err(format!("longer than {MAX_LENGTH} characters"));
        }
        if let Some(duration) = text.strip_prefix("@every ") {
            let every = duration.trim().parse::<SignedDuration>();
            let every = every.map_err(|_| format!("failed to parse duration {text}"))?;
            return Ok(Self::Every(SignedDuration::from_secs(every.as_secs().max(1))));
        }
        let fields = match MACROS.iter().find(|(name, _)| *name == text) {
            Some((_, fields)) => fields,
            None if text.starts_with('@') => return Err(format!("unrecognized descriptor: {text}")),
            None => text,
        };
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let [minutes, hours, days, months, weekdays] = fields[..] else {
            return Err(format!("expected exactly 5 fields, found {}: [{}]", fields.len(), fields.join(" ")));
        };
        let (days, weekdays) = (field(days, 1..=31, &[])?, field(weekdays, 0..=6, &WEEKDAYS)?);
        Ok(Self::Calendar(Calendar {
            minutes: field(minutes, 0..=59, &[])?.numbers,
            hours: field(hours, 0..=23, &[])?.numbers,
            days: days.numbers,
            months: field(months, 1..=12, &MONTHS)?.numbers,
            weekdays: weekdays.numbers,
            both_days: days.is_any || weekdays.is_any,
        }))
    }

    /// The first time after `time`; `None` if there is none.
    pub fn next(&self, time: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let whole = Timestamp::from_second(time.as_second()).ok()?;
        match self {
            Self::Every(every) => whole.checked_add(*every).ok(),
            Self::Calendar(calendar) => {
                let first = whole.checked_add(SignedDuration::from_secs(1)).ok()?;
                calendar.first(first.to_zoned(zone.clone()))
            }
        }
    }
}

impl Calendar {
    /// The first time that is not before `time`.
    fn first(&self, mut time: Zoned) -> Option<Timestamp> {
        let last_year = time.year().saturating_add(MAX_YEARS);
        while time.year() <= last_year {
            let (hour, minute, second) = (time.hour(), time.minute(), time.second());
            let past_minute = SignedDuration::from_secs(i64::from(second));
            time = if !has(self.months, time.month()) {
                time.first_of_month().ok()?.checked_add(1.month()).ok()?.start_of_day().ok()?
            } else if !self.has_day(&time) {
                time.tomorrow().ok()?.start_of_day().ok()?
            } else if !has(self.hours, hour) {
                let past_hour = SignedDuration::from_mins(i64::from(minute)) + past_minute;
                time.checked_add(SignedDuration::from_hours(1) - past_hour).ok()?
            } else if !has(self.minutes, minute) || second != 0 {
                time.checked_add(SignedDuration::from_mins(1) - past_minute).ok()?
            } else {
                return Some(time.timestamp());
            };
        }
        None
    }

    fn has_day(&self, time: &Zoned) -> bool {
        let (day, weekday) = (has(self.days, time.day()), has(self.weekdays, time.weekday().to_sunday_zero_offset()));
        if self.both_days { day && weekday } else { day || weekday }
    }
}

fn has(numbers: u64, number: i8) -> bool {
    u32::try_from(number).ok().and_then(|number| numbers.checked_shr(number)).is_some_and(|bits| bits & 1 == 1)
}

fn field(text: &str, bounds: RangeInclusive<u32>, names: &[&str]) -> Result<Field, String> {
    let mut field = Field { numbers: 0, is_any: false };
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let part = range(part, &bounds, names)?;
        field.numbers |= part.numbers;
        field.is_any |= part.is_any;
    }
    Ok(field)
}

/// `*`, `5`, `mon-fri`, each perhaps with `/step`.
fn range(text: &str, bounds: &RangeInclusive<u32>, names: &[&str]) -> Result<Field, String> {
    let (span, step) = match text.split('/').collect::<Vec<_>>()[..] {
        [span] => (span, None),
        [span, step] => (span, Some(number(step)?)),
        _ => return Err(format!("too many slashes: {text}")),
    };
    let is_star = |part: &str| part == "*" || part == "?";
    let (first, last, is_any) = match span.split('-').collect::<Vec<_>>()[..] {
        [star] if is_star(star) => (*bounds.start(), *bounds.end(), step.is_none_or(|step| step <= 1)),
        // With a step the range continues to the end.
        [number] => {
            let first = number_of(number, bounds, names)?;
            (first, if step.is_some() { *bounds.end() } else { first }, false)
        }
        [first, last] => (number_of(first, bounds, names)?, number_of(last, bounds, names)?, false),
        _ => return Err(format!("too many hyphens: {text}")),
    };
    if first < *bounds.start() {
        return Err(format!("beginning of range ({first}) below minimum ({}): {text}", bounds.start()));
    }
    if last > *bounds.end() {
        return Err(format!("end of range ({last}) above maximum ({}): {text}", bounds.end()));
    }
    if first > last {
        return Err(format!("beginning of range ({first}) beyond end of range ({last}): {text}"));
    }
    let step = match step {
        Some(0) => return Err(format!("step of range should be a positive number: {text}")),
        Some(step) => usize::try_from(step).unwrap_or(usize::MAX),
        None => 1,
    };
    let numbers = (first..=last).step_by(step).fold(0, |numbers, number| numbers | 1 << number);
    Ok(Field { numbers, is_any })
}

/// A number, or a name. The first name stands for the lowest number.
fn number_of(text: &str, bounds: &RangeInclusive<u32>, names: &[&str]) -> Result<u32, String> {
    let name = text.to_ascii_lowercase();
    match (bounds.clone()).zip(names).find(|(_, known)| **known == name) {
        Some((number, _)) => Ok(number),
        None => number(text),
    }
}

fn number(text: &str) -> Result<u32, String> {
    match text.parse::<i64>() {
        Ok(number) if number < 0 => Err(format!("negative number ({number}) not allowed: {text}")),
        Ok(number) => u32::try_from(number).map_err(|_| format!("failed to parse int from {text}: out of range")),
        Err(_) => Err(format!("failed to parse int from {text}: invalid syntax")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
