//! The HTTP header `Retry-After`: how long a server wants no requests.

use std::time::Duration;

use jiff::Timestamp;

/// The delay in `Retry-After`: seconds, or a date relative to the server's own `Date`, because this node's clock may
/// be wrong. `None` if it is neither.
pub fn retry_after(value: &str, server_date: Option<&str>, now: Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let until = date(value)?;
    let from = server_date.and_then(date).unwrap_or(now);
    Some(Duration::try_from(until.duration_since(from)).unwrap_or(Duration::ZERO))
}

/// An HTTP date in the format that servers must send.
fn date(text: &str) -> Option<Timestamp> {
    jiff::fmt::rfc2822::DateTimeParser::new().relaxed_weekday(true).parse_timestamp(text.trim()).ok()
}
