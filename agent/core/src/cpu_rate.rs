//! How fast a counter of CPU time grows.

use std::time::Duration;

/// Nanoseconds of CPU time in each second; `None`: the counter was reset, or there was no time between the readings.
pub fn rate(before: u64, after: u64, elapsed: Duration) -> Option<u64> {
    let used = u128::from(after.checked_sub(before)?);
    u64::try_from((used * 1_000_000_000).checked_div(elapsed.as_nanos())?).ok()
}
