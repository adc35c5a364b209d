//! When the URL is requested again. Pure: the random number and the time are arguments.
//!
//! While all is well, that is every `httpCheckFrequency`, with a jitter of a tenth, so that a fleet does not send its
//! requests at the same time. An unreachable server is retried after a second, then with exponential backoff, which a
//! change of the node's network restarts, so that a network that comes up late is noticed soon. A server with
//! unusable responses is not flooded, because its backoff starts at the frequency. `Retry-After` is the earliest time
//! of the next request.

use std::time::Duration;

use jiff::Timestamp;

use crate::jitter;
use crate::node_place::NodePlace;

/// The first delay after a server was unreachable.
const MIN_BACKOFF: Duration = Duration::from_secs(1);
/// The longest backoff, unless the frequency is longer.
const MAX_BACKOFF: Duration = Duration::from_secs(300);
/// The longest delay a server can request.
pub const LONGEST_ASKED: Duration = Duration::from_secs(3_600);
/// A bound on doubling, far beyond every other limit.
const MAX_DOUBLINGS: u32 = 16;

/// The result of the last exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangeResult {
    /// The manifests are the server's current ones.
    Success,
    /// There was no complete response.
    Unreachable,
    /// An unusable response; the server may have requested a delay.
    BadResponse {
        /// The requested delay.
        retry_after: Option<Duration>,
    },
}

/// The delay after an exchange. `failures` counts consecutive failures including this one; `dice` is a random number.
pub fn pause(result: ExchangeResult, failures: u32, frequency: Duration, dice: u64) -> Duration {
    let doubled = |first: Duration| {
        let longest = MAX_BACKOFF.max(frequency);
        first.saturating_mul(1 << failures.saturating_sub(1).min(MAX_DOUBLINGS)).min(longest)
    };
    match result {
        ExchangeResult::Success => jitter::around(frequency, 100, dice),
        ExchangeResult::Unreachable => jitter::around(doubled(MIN_BACKOFF), 100, dice),
        ExchangeResult::BadResponse { retry_after: None } => jitter::around(doubled(frequency), 100, dice),
        // Never earlier than the server requested.
        ExchangeResult::BadResponse { retry_after: Some(asked) } => {
            jitter::above(doubled(frequency).max(asked.min(LONGEST_ASKED)), 200, dice)
        }
    }
}

/// The delay before the first exchange after a start, for what the node has already: a part of the frequency that depends on
/// the node's name, so that the nodes of a fleet ask one after another.
pub fn first_pause(node_name: &str, frequency: Duration) -> Duration {
    let parts = u32::from(NodePlace::new(node_name).permyriad());
    frequency.min(MAX_BACKOFF) * parts / 10_000
}

/// The delay in `Retry-After`, bounded.
pub fn retry_after(value: &str, server_date: Option<&str>, now: Timestamp) -> Option<Duration> {
    limpet_model::retry_after::retry_after(value, server_date, now).map(|asked| asked.min(LONGEST_ASKED))
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn pauses() {
        let every = S(20);
        let bad_response = |seconds: Option<u64>| ExchangeResult::BadResponse { retry_after: seconds.map(S) };
        // The middle of the range: no jitter.
        let table = [
            (ExchangeResult::Success, 0, every, S(20)),
            (ExchangeResult::Unreachable, 1, every, S(1)),
            (ExchangeResult::Unreachable, 2, every, S(2)),
            (ExchangeResult::Unreachable, 6, every, S(32)),
            (ExchangeResult::Unreachable, 9, every, S(256)),
            (ExchangeResult::Unreachable, 10, every, S(300)),
            (ExchangeResult::Unreachable, u32::MAX, every, S(300)),
            (ExchangeResult::Unreachable, u32::MAX, S(900), S(900)),
            (bad_response(None), 1, every, S(20)),
            (bad_response(None), 2, every, S(40)),
            (bad_response(None), 5, every, S(300)),
            (bad_response(None), 3, S(900), S(900)),
            (bad_response(Some(120)), 1, every, S(132)),
            (bad_response(Some(5)), 1, every, S(22)),
            (bad_response(Some(1)), 9, every, S(330)),
            (bad_response(Some(u64::MAX)), 1, every, S(3_960)),
        ];
        for (result, failures, frequency, expected) in table {
            assert_eq!(pause(result, failures, frequency, 100), expected, "{result:?} {failures} {frequency:?}");
        }
    }

    #[test]
    fn nodes_ask_for_the_first_time_at_moments_of_their_own() {
        let pauses: Vec<Duration> = (0..100).map(|number| first_pause(&format!("edge{number}"), S(300))).collect();
        assert!(pauses.iter().all(|pause| *pause < S(300)));
        let early = pauses.iter().filter(|pause| **pause < S(30)).count();
        assert!((3..=20).contains(&early), "{early} of 100 in the first tenth");
        assert_eq!(pauses[7], first_pause("edge7", S(300)));
    }

    #[test]
    fn jitter_stays_within_its_bounds() {
        for dice in [0, 1, 57, 100, 200, 201, 1 << 40, u64::MAX] {
            let well = pause(ExchangeResult::Success, 0, S(20), dice);
            assert!(well >= S(18) && well <= S(22), "{dice}: {well:?}");
            let asked = pause(ExchangeResult::BadResponse { retry_after: Some(S(60)) }, 1, S(20), dice);
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
