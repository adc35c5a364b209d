//! When the URL is asked again: pure, the dice and the moment come as arguments.
//!
//! While all is well, every `httpCheckFrequency`, within a tenth of it, so that a fleet does not ask at once. A server
//! that cannot be reached is tried again after a second, then ever more rarely: a network that comes up late is found
//! soon. A server that answers and cannot give what it should is not pressed: the back-off begins at the frequency. When
//! it says how long to wait (`Retry-After`), it is not asked before.

use std::time::Duration;

use jiff::Timestamp;

/// The first pause after a server was not reached.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause of the back-off, unless the frequency is longer.
const LONGEST: Duration = Duration::from_secs(300);
/// The longest pause a server can ask for.
pub(super) const LONGEST_ASKED: Duration = Duration::from_secs(3_600);
/// Where doubling ends: far beyond every limit.
const MAX_DOUBLINGS: u32 = 16;

/// How the last exchange ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The manifests are known to be what the server has.
    Well,
    /// There was no answer, or it broke off.
    Unreached,
    /// An answer that is of no use; the server may have said how long to wait.
    Refused { retry_after: Option<Duration> },
}

/// How long to wait after an exchange that ended so. `failures` counts those in a row, this one included; `dice` is
/// any number.
pub(super) fn pause(ended: Ended, failures: u32, frequency: Duration, dice: u64) -> Duration {
    let doubled = |first: Duration| {
        let longest = LONGEST.max(frequency);
        first.saturating_mul(1 << failures.saturating_sub(1).min(MAX_DOUBLINGS)).min(longest)
    };
    // A thousandth of 0 to 200.
    let jitter = u32::try_from(dice % 201).unwrap_or(100);
    match ended {
        Ended::Well => frequency * (900 + jitter) / 1_000,
        Ended::Unreached => doubled(FIRST) * (900 + jitter) / 1_000,
        Ended::Refused { retry_after: None } => doubled(frequency) * (900 + jitter) / 1_000,
        // Never earlier than asked for.
        Ended::Refused { retry_after: Some(asked) } => {
            doubled(frequency).max(asked.min(LONGEST_ASKED)) * (1_000 + jitter) / 1_000
        }
    }
}

/// What `Retry-After` asks for: seconds, or a date, taken from the server's own `Date`, because this node's clock may
/// be anything. `None` when it is neither.
pub(super) fn retry_after(value: &str, server_date: Option<&str>, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds).min(LONGEST_ASKED));
    }
    let until = date(value)?;
    let from = server_date.and_then(date).unwrap_or(now);
    let pause = Duration::try_from(until.duration_since(from)).unwrap_or(Duration::ZERO);
    Some(pause.min(LONGEST_ASKED))
}

/// An HTTP date in the form that servers have to send.
fn date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().relaxed_weekday(true).parse_timestamp(text.trim()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn pauses() {
        let every = S(20);
        let refused = |seconds: Option<u64>| Ended::Refused { retry_after: seconds.map(S) };
        // The dice in the middle: no jitter.
        let table = [
            (Ended::Well, 0, every, S(20)),
            (Ended::Unreached, 1, every, S(1)),
            (Ended::Unreached, 2, every, S(2)),
            (Ended::Unreached, 6, every, S(32)),
            (Ended::Unreached, 9, every, S(256)),
            (Ended::Unreached, 10, every, S(300)),
            (Ended::Unreached, u32::MAX, every, S(300)),
            (Ended::Unreached, u32::MAX, S(900), S(900)),
            (refused(None), 1, every, S(20)),
            (refused(None), 2, every, S(40)),
            (refused(None), 5, every, S(300)),
            (refused(None), 3, S(900), S(900)),
            (refused(Some(120)), 1, every, S(132)),
            (refused(Some(5)), 1, every, S(22)),
            (refused(Some(1)), 9, every, S(330)),
            (refused(Some(u64::MAX)), 1, every, S(3_960)),
        ];
        for (ended, failures, frequency, expected) in table {
            assert_eq!(pause(ended, failures, frequency, 100), expected, "{ended:?} {failures} {frequency:?}");
        }
    }

    #[test]
    fn jitter_stays_within_its_bounds() {
        for dice in [0, 1, 57, 100, 200, 201, 1 << 40, u64::MAX] {
            let well = pause(Ended::Well, 0, S(20), dice);
            assert!(well >= S(18) && well <= S(22), "{dice}: {well:?}");
            let asked = pause(Ended::Refused { retry_after: Some(S(60)) }, 1, S(20), dice);
            assert!(asked >= S(60) && asked <= S(72), "{dice}: {asked:?}");
        }
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_and_bounded() {
        let now = Timestamp::constant(784_111_777, 0); // Sun, 06 Nov 1994 08:49:37 GMT
        let table = [
            ("120", None, Some(S(120))),
            (" 7 ", None, Some(S(7))),
            ("0", None, Some(S(0))),
            ("99999999999", None, Some(S(3_600))),
            ("Sun, 06 Nov 1994 08:50:37 GMT", None, Some(S(60))),
            ("Sun, 06 Nov 1994 08:49:07 GMT", None, Some(S(0))),
            ("Sun, 06 Nov 2094 08:49:07 GMT", None, Some(S(3_600))),
            // By the server's clock, whatever ours says.
            ("Sat, 21 Nov 2026 10:00:30 GMT", Some("Sat, 21 Nov 2026 10:00:00 GMT"), Some(S(30))),
            ("Sat, 21 Nov 2026 10:00:30 GMT", Some("yesterday"), Some(S(3_600))),
            ("soon", None, None),
            ("-5", None, None),
            ("", None, None),
        ];
        for (value, server_date, expected) in table {
            assert_eq!(retry_after(value, server_date, now), expected, "{value} {server_date:?}");
        }
    }
}
