//! Durations as Go writes them: `1m30s`, in configuration files, in what programs answer and in kubelet's messages.

use std::time::Duration;

/// The longest duration that Go can express, in seconds: 292 years. With a longer one no moment could be computed.
const MAX_SECONDS: f64 = i64::MAX as f64 / 1e9;

/// Parses a Go duration: `1m30s`, `1.5h`, `300ms`. `None` if it is invalid, negative, or longer than Go can express.
pub fn parse(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    let mut seconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(digits);
        let unit = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(unit);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return None,
        };
        seconds += number.parse::<f64>().ok()? * scale;
        rest = after;
    }
    Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds < MAX_SECONDS)
}

/// A duration as Go prints it, truncated to milliseconds: `250ms`, `1.5s`, `1m30s`, `1h0m5s`.
pub fn show(duration: Duration) -> String {
    let (seconds, milliseconds) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 {
        return if milliseconds == 0 { "0s".to_owned() } else { format!("{milliseconds}ms") };
    }
    let fraction = format!("{milliseconds:03}");
    let fraction = match fraction.trim_end_matches('0') {
        "" => String::new(),
        digits => format!(".{digits}"),
    };
    let (hours, minutes, rest) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    match (hours, minutes) {
        (0, 0) => format!("{rest}{fraction}s"),
        (0, _) => format!("{minutes}m{rest}{fraction}s"),
        _ => format!("{hours}h{minutes}m{rest}{fraction}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed_as_in_go() {
        let table = [
            ("20s", Some(20_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("300ms", Some(300)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("20", None),
            ("s", None),
            ("", None),
            ("-5s", None),
            ("5 s", None),
            ("1d", None),
            ("2562047h", Some(2_562_047 * 3_600_000)),
            ("2562048h", None),
            ("5124095576030431h", None),
        ];
        for (text, milliseconds) in table {
            assert_eq!(parse(text), milliseconds.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn durations_are_shown_as_in_go() {
        let table = [
            (0, "0s"),
            (7, "7ms"),
            (1_000, "1s"),
            (1_234, "1.234s"),
            (1_500, "1.5s"),
            (1_050, "1.05s"),
            (60_000, "1m0s"),
            (90_250, "1m30.25s"),
            (3_605_000, "1h0m5s"),
        ];
        for (milliseconds, text) in table {
            assert_eq!(show(Duration::from_millis(milliseconds)), text);
        }
        assert_eq!(show(Duration::from_micros(1_999_999)), "1.999s");
        assert_eq!(show(Duration::from_micros(999)), "0s");
    }
}
