//! Ages in kubectl's format: short, and coarser for older ones.

use jiff::Timestamp;

/// The time from `then` to `now`: `45s`, `5m30s`, `3d4h`.
pub(super) fn since(then: Timestamp, now: Timestamp) -> String {
    human(now.as_second() - then.as_second())
}

/// kubectl's HumanDuration (k8s.io/apimachinery, duration): at most two units, the finer one only for small values.
fn human(seconds: i64) -> String {
    if seconds < -1 {
        // The clock was set back, or this machine boots without one.
        return "<invalid>".to_owned();
    }
    let seconds = seconds.max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    match () {
        () if seconds < 120 => format!("{seconds}s"),
        () if minutes < 10 => two(minutes, "m", seconds % 60, "s"),
        () if minutes < 180 => format!("{minutes}m"),
        () if hours < 8 => two(hours, "h", minutes % 60, "m"),
        () if hours < 48 => format!("{hours}h"),
        () if days < 8 => two(days, "d", hours % 24, "h"),
        () if days < 365 * 2 => format!("{days}d"),
        () if days < 365 * 8 => two(days / 365, "y", days % 365, "d"),
        () => format!("{}y", days / 365),
    }
}

fn two(coarse: i64, unit: &str, fine: i64, fine_unit: &str) -> String {
    if fine == 0 { format!("{coarse}{unit}") } else { format!("{coarse}{unit}{fine}{fine_unit}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectls() {
        const HOUR: i64 = 3600;
        const DAY: i64 = 24 * HOUR;
        for (seconds, expected) in [
            (-2, "<invalid>"),
            (-1, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (599, "9m59s"),
            (600, "10m"),
            (179 * 60, "179m"),
            (3 * HOUR, "3h"),
            (3 * HOUR + 5 * 60, "3h5m"),
            (8 * HOUR + 59 * 60, "8h"),
            (47 * HOUR, "47h"),
            (2 * DAY, "2d"),
            (3 * DAY + 4 * HOUR, "3d4h"),
            (8 * DAY + HOUR, "8d"),
            (729 * DAY, "729d"),
            (730 * DAY, "2y"),
            (800 * DAY, "2y70d"),
            (3000 * DAY, "8y"),
        ] {
            assert_eq!(human(seconds), expected, "{seconds}");
        }
    }
}
