//! The stop signal of a container: from its image, otherwise SIGTERM.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The least time between the stop signal and SIGKILL, however short the grace period is and whatever a `preStop`
/// hook or waiting for a sidecar's turn leaves of it. As in kubelet.
pub const MIN_GRACE_PERIOD: Duration = Duration::from_secs(2);

/// The signals by name, with the numbers that Linux gives them on every architecture containerd is built for.
const SIGNALS: [(&str, u32); 34] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("TRAP", 5),
    ("ABRT", 6),
    ("IOT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("STKFLT", 16),
    ("CHLD", 17),
    ("CLD", 17),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("TTIN", 21),
    ("TTOU", 22),
    ("URG", 23),
    ("XCPU", 24),
    ("XFSZ", 25),
    ("VTALRM", 26),
    ("PROF", 27),
    ("WINCH", 28),
    ("IO", 29),
    ("POLL", 29),
    ("PWR", 30),
    ("SYS", 31),
];
/// The first and the last real-time signal that the C library leaves to programs.
const REAL_TIME_SIGNALS: (u32, u32) = (34, 64);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct StopSignal(u32);

impl Default for StopSignal {
    fn default() -> Self {
        Self(15)
    }
}

impl StopSignal {
    /// A signal as images write it and containerd reads it: a number, or a name in any case, with or without `SIG`
    /// (`SIGQUIT`, `quit`, `3`, `SIGRTMIN+3`). `None`: the signal does not exist.
    pub fn parse(text: &str) -> Option<Self> {
        if let Ok(number) = text.parse() {
            return (1..=REAL_TIME_SIGNALS.1).contains(&number).then_some(Self(number));
        }
        let name = text.to_ascii_uppercase();
        let name = name.strip_prefix("SIG").unwrap_or(&name);
        let known = SIGNALS.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        known.or_else(|| real_time(name)).map(Self)
    }

    pub fn number(self) -> u32 {
        self.0
    }
}

/// `RTMIN`, `RTMIN+1` to `RTMIN+15`, `RTMAX-14` to `RTMAX-1`, `RTMAX`.
fn real_time(name: &str) -> Option<u32> {
    let (first, last) = REAL_TIME_SIGNALS;
    let offset = |text: &str, range: std::ops::RangeInclusive<u32>| {
        text.parse().ok().filter(|offset: &u32| range.contains(offset) && offset.to_string() == text)
    };
    match name {
        "RTMIN" => Some(first),
        "RTMAX" => Some(last),
        _ => match (name.strip_prefix("RTMIN+"), name.strip_prefix("RTMAX-")) {
            (Some(above), _) => offset(above, 1..=15).map(|offset| first + offset),
            (_, Some(below)) => offset(below, 1..=14).map(|offset| last - offset),
            _ => None,
        },
    }
}

impl fmt::Display for StopSignal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, last) = REAL_TIME_SIGNALS;
        match SIGNALS.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => write!(f, "SIG{name}"),
            None if self.0 == first => f.write_str("SIGRTMIN"),
            None if self.0 == last => f.write_str("SIGRTMAX"),
            None if (first..first + 16).contains(&self.0) => write!(f, "SIGRTMIN+{}", self.0 - first),
            None if (first..last).contains(&self.0) => write!(f, "SIGRTMAX-{}", last - self.0),
            None => write!(f, "signal {}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_are_read_as_containerd_reads_them() {
        let cases = [
            ("SIGQUIT", Some(3)),
            ("QUIT", Some(3)),
            ("sigquit", Some(3)),
            ("3", Some(3)),
            ("SIGWINCH", Some(28)),
            ("SIGCLD", Some(17)),
            ("SIGRTMIN", Some(34)),
            ("SIGRTMIN+3", Some(37)),
            ("rtmin+15", Some(49)),
            ("SIGRTMAX-14", Some(50)),
            ("RTMAX", Some(64)),
            ("64", Some(64)),
            ("", None),
            ("0", None),
            ("65", None),
            ("-1", None),
            ("SIG", None),
            ("SIGRTMIN+0", None),
            ("SIGRTMIN+03", None),
            ("SIGRTMIN+16", None),
            ("SIGRTMAX-15", None),
            ("SIGSIGQUIT", None),
            ("SIGNOTHING", None),
        ];
        for (text, number) in cases {
            assert_eq!(StopSignal::parse(text).map(StopSignal::number), number, "{text}");
        }
    }

    #[test]
    fn a_signal_is_shown_by_the_name_that_reads_back() {
        for signal in (1..=31).chain(34..=64).map(StopSignal) {
            assert_eq!(StopSignal::parse(&signal.to_string()), Some(signal), "{signal}");
        }
        assert_eq!(StopSignal::default().to_string(), "SIGTERM");
    }
}
