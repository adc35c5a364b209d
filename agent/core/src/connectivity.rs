//! Whether there is a connection to the apiserver, and if not, why; and when to try again. Pure: time and random
//! numbers are arguments.
//!
//! There are no keep-alive requests. The regular requests show the state of the connection: the watch of the node's
//! own object, and the renewals of its lease.

use std::fmt;
use std::time::Duration;

use jiff::Timestamp;

use crate::certificate::Validity;
use crate::jitter;

/// The first pause after a failure.
const INITIAL_DELAY: Duration = Duration::from_millis(500);
/// The longest delay, unless the server requests a longer one.
pub const MAX_RECONNECT_DELAY: Duration = Duration::from_secs(10);
/// The longest delay while nothing answers. It bounds how late the return of a server is noticed that comes without a
/// change of the node's links.
const MAX_DELAY_IF_UNREACHABLE: Duration = Duration::from_secs(2);
/// After this number of failures, about an hour, attempts become less frequent. It is not a time, because the clock
/// may be set.
const LONG_OUTAGE_FAILURES: u32 = 2_400;
/// The longest delay that a server can request.
pub const MAX_REQUESTED_DELAY: Duration = Duration::from_secs(300);
/// A bound on doubling, far beyond every other limit.
const MAX_DOUBLINGS: u32 = 16;

/// Why the connection is missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// There is no answer: no route, no name, a closed port, or a link that drops packets.
    Unreachable,
    /// One side does not trust the other's certificate.
    Certificate,
    /// The node's certificate, or the server's, has expired.
    CertificateExpired,
    /// By the node's clock, a certificate is not valid yet, so the clock is behind.
    ClockSkew,
    /// The server does not know the client.
    Unauthorized,
    /// The server knows the client, but does not let this node read its own object.
    Forbidden,
    /// The node's own credentials cannot be read.
    Credentials,
    /// The server answers that it cannot serve.
    ServerError,
}

impl Cause {
    /// The word for machines.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Unreachable => "unreachable",
            Self::Certificate => "certificate",
            Self::CertificateExpired => "certificate expired",
            Self::ClockSkew => "clock skew",
            Self::Unauthorized => "unauthorized",
            Self::Forbidden => "forbidden",
            Self::Credentials => "credentials",
            Self::ServerError => "server error",
        }
    }
}

impl Cause {
    /// The actual cause, if the node's own certificate explains it: a server that rejects an expired one answers that
    /// the client is unknown. `certificate` is the validity of that certificate, if the node uses one.
    pub fn explained(self, certificate: Option<Validity>, now: Timestamp) -> Self {
        match (self, certificate) {
            (Self::Unauthorized | Self::Certificate, Some(certificate)) if now > certificate.not_after => {
                Self::CertificateExpired
            }
            (Self::Unauthorized | Self::Certificate, Some(certificate)) if now < certificate.not_before => {
                Self::ClockSkew
            }
            _ => self,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The state of the connection to the apiserver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Connectivity {
    /// The agent has started, and nothing has been answered or has failed yet.
    Connecting,
    /// The server answers.
    Online {
        /// Since when.
        since: Timestamp,
    },
    /// The server does not answer.
    Offline {
        /// Since when.
        since: Timestamp,
        cause: Cause,
        /// The newest failure, as text.
        message: String,
    },
}

impl Connectivity {
    /// Whether the server answers.
    pub fn is_online(&self) -> bool {
        matches!(self, Self::Online { .. })
    }

    /// The state after an answer.
    pub fn succeeded(&self, now: Timestamp) -> Self {
        match self {
            Self::Online { since } => Self::Online { since: *since },
            Self::Connecting | Self::Offline { .. } => Self::Online { since: now },
        }
    }

    /// The state after a failure. Another failure, of any cause, does not restart the time.
    pub fn failed(&self, cause: Cause, message: String, now: Timestamp) -> Self {
        match self {
            Self::Offline { since, .. } => Self::Offline { since: *since, cause, message },
            Self::Connecting | Self::Online { .. } => Self::Offline { since: now, cause, message },
        }
    }

    /// The longest pause after the `failures`th failure in a row. `runs_program`: each attempt runs a program for the
    /// credentials.
    pub fn longest_pause(&self, failures: u32, runs_program: bool) -> Duration {
        match self {
            Self::Offline { cause: Cause::Unreachable, .. } if failures < LONG_OUTAGE_FAILURES && !runs_program => {
                MAX_DELAY_IF_UNREACHABLE
            }
            _ => MAX_RECONNECT_DELAY,
        }
    }

    /// Whether the change from `before` is reported. A different message alone is not.
    pub fn differs(&self, before: &Self) -> bool {
        match (self, before) {
            (Self::Offline { cause, .. }, Self::Offline { cause: known, .. }) => cause != known,
            (Self::Online { .. }, Self::Online { .. }) | (Self::Connecting, Self::Connecting) => false,
            _ => true,
        }
    }
}

/// The pause after the `failures`th failure in a row. It doubles each time up to `longest`, and is spread over half
/// of it, so that the nodes of a site do not all come back at once. It is never shorter than the server requested.
pub fn pause(failures: u32, asked: Option<Duration>, longest: Duration, dice: u64) -> Duration {
    let doubled = INITIAL_DELAY.saturating_mul(1 << failures.saturating_sub(1).min(MAX_DOUBLINGS)).min(longest);
    match asked.map(|asked| asked.min(MAX_REQUESTED_DELAY)) {
        Some(asked) if asked >= doubled => jitter::above(asked, 500, dice),
        _ => jitter::below(doubled, 500, dice),
    }
}

/// The rest of a pause after an attempt that lasted `took`. While nothing answers, attempts begin equally often
/// whether they time out or fail at once: their duration is subtracted, down to a quarter of the pause, which keeps
/// nodes spread. Other pauses are not shortened, because a server that is slow, or that requests a pause, must get
/// it.
pub fn rest_of_pause(pause: Duration, longest: Duration, asked: Option<Duration>, took: Duration) -> Duration {
    if asked.is_some() || longest > MAX_DELAY_IF_UNREACHABLE {
        pause
    } else {
        pause.saturating_sub(took).max(pause / 4)
    }
}

/// The pause after the `failures`th refusal in a row by the server's rules. Only a change of the rules helps, or of
/// the manifest, which ends the pause.
pub fn refusal_pause(failures: u32, dice: u64) -> Duration {
    const INITIAL_PAUSE: Duration = Duration::from_secs(5);
    const MAX_PAUSE: Duration = Duration::from_secs(300);
    let doubled = INITIAL_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_PAUSE);
    jitter::around(doubled, 100, dice)
}

/// The pause before a missing namespace is looked up again. It is short at first, when the namespace is probably
/// about to be created, and grows with time: at most 2 s for ten minutes, and 10 s after an hour.
pub fn namespace_pause(missing_for: Duration, dice: u64) -> Duration {
    const MIN_PAUSE: Duration = Duration::from_millis(1_600);
    const MAX_PAUSE: Duration = Duration::from_secs(10);
    let pause = (missing_for / 360).clamp(MIN_PAUSE, MAX_PAUSE);
    jitter::around(pause, 100, dice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_keeps_its_time_and_a_change_of_the_cause_is_one_to_report() {
        let at = |second| Timestamp::constant(second, 0);
        let fails = |from: &Connectivity, cause, second| from.failed(cause, "no".to_owned(), at(second));
        let offline = fails(&Connectivity::Connecting, Cause::Unreachable, 1);
        assert_eq!(
            offline,
            Connectivity::Offline { since: at(1), cause: Cause::Unreachable, message: "no".to_owned() }
        );
        let again = offline.failed(Cause::Unreachable, "still no".to_owned(), at(2));
        assert!(again != offline && !again.differs(&offline), "a newer message is kept and not reported");
        let other = fails(&again, Cause::Certificate, 3);
        assert!(other.differs(&again));
        assert_eq!(other, fails(&offline, Cause::Certificate, 9), "since the first failure");
        let online = other.succeeded(at(4));
        assert_eq!((online.clone(), online.is_online()), (Connectivity::Online { since: at(4) }, true));
        assert_eq!(online.succeeded(at(5)), online);
        assert!(online.differs(&other) && other.differs(&online) && !online.differs(&online));
        assert!(offline.differs(&Connectivity::Connecting) && online.differs(&Connectivity::Connecting));
        assert_eq!(fails(&online, Cause::Unauthorized, 6), fails(&Connectivity::Connecting, Cause::Unauthorized, 6));
    }

    #[test]
    fn a_certificate_of_another_time_explains_why_the_node_is_not_known() {
        let at = |second| Timestamp::constant(second, 0);
        let certificate = Some(Validity { not_before: at(10), not_after: at(20) });
        let table = [
            (Cause::Unauthorized, certificate, 21, Cause::CertificateExpired),
            (Cause::Unauthorized, certificate, 9, Cause::ClockSkew),
            (Cause::Unauthorized, certificate, 15, Cause::Unauthorized),
            (Cause::Unauthorized, None, 21, Cause::Unauthorized),
            (Cause::Certificate, certificate, 21, Cause::CertificateExpired),
            (Cause::Unreachable, certificate, 21, Cause::Unreachable),
        ];
        for (cause, certificate, now, expected) in table {
            assert_eq!(cause.explained(certificate, at(now)), expected, "{cause} {now}");
        }
    }

    #[test]
    fn pauses_double_are_spread_and_never_shorter_than_asked() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let table = [
            (1, None, 500, ms(500)),
            (1, None, 0, ms(250)),
            (2, None, 500, s(1)),
            (4, None, 500, s(4)),
            (6, None, 500, s(10)),
            (u32::MAX, None, 500, s(10)),
            (u32::MAX, None, 501, s(5)),
            (1, Some(s(30)), 0, s(30)),
            (1, Some(s(30)), 500, s(45)),
            (1, Some(ms(1)), 500, ms(500)),
            (3, Some(s(86_400)), 0, s(300)),
        ];
        for (failures, asked, dice, expected) in table {
            assert_eq!(pause(failures, asked, MAX_RECONNECT_DELAY, dice), expected, "{failures} {asked:?} {dice}");
        }
        assert_eq!([1, 2, 9].map(|failures| pause(failures, None, s(2), 500)), [ms(500), s(1), s(2)]);
        assert_eq!(pause(9, Some(s(30)), s(2), 0), s(30));
    }

    #[test]
    fn a_try_that_took_long_shortens_the_pause_where_nothing_answers() {
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let table = [
            (s(2), s(2), None, ms(500), ms(1_500)),
            (s(2), s(2), None, s(10), ms(500)),
            (s(1), s(2), None, s(10), ms(250)),
            (s(30), s(2), Some(s(30)), s(10), s(30)),
            (s(8), s(10), None, s(10), s(8)),
        ];
        for (pause, longest, asked, took, expected) in table {
            assert_eq!(
                rest_of_pause(pause, longest, asked, took),
                expected,
                "{pause:?} {longest:?} {asked:?} {took:?}"
            );
        }
    }

    #[test]
    fn a_server_that_nothing_reaches_is_tried_every_two_seconds_for_an_hour() {
        let since = Timestamp::constant(100, 0);
        let offline = |cause| Connectivity::Offline { since, cause, message: String::new() };
        let table = [
            (offline(Cause::Unreachable), 1, false, 2),
            (offline(Cause::Unreachable), 2_399, false, 2),
            (offline(Cause::Unreachable), 2_400, false, 10),
            (offline(Cause::Unreachable), 1, true, 10),
            (offline(Cause::ServerError), 1, false, 10),
            (Connectivity::Online { since }, 1, false, 10),
        ];
        for (state, failures, program, seconds) in table {
            let longest = state.longest_pause(failures, program);
            assert_eq!(longest, Duration::from_secs(seconds), "{state:?} {failures} {program}");
        }
    }

    #[test]
    fn refusals_are_tried_again_seldom() {
        let seconds: Vec<u64> = [1, 2, 3, 7, u32::MAX].map(|failures| refusal_pause(failures, 100).as_secs()).to_vec();
        assert_eq!(seconds, [5, 10, 20, 300, 300]);
        assert_eq!(refusal_pause(1, 0), Duration::from_millis(4_500));
    }

    #[test]
    fn a_missing_namespace_is_asked_for_every_two_seconds_at_first() {
        let seconds = |minutes: u64| namespace_pause(Duration::from_secs(60 * minutes), 200).as_secs_f64();
        assert!(seconds(0) < 2.0 && seconds(10) < 2.0, "{} {}", seconds(0), seconds(10));
        assert!((3.0..4.0).contains(&seconds(20)) && seconds(10_000) <= 11.0, "{} {}", seconds(20), seconds(10_000));
    }
}
