//! Timestamps in the format of log lines and file names, without allocation and without a time zone database.

use std::time::{SystemTime, UNIX_EPOCH};

/// Length of `2026-01-02T03:04:05.678901234Z`.
pub(crate) const STAMP_LENGTH: usize = 30;

/// The last second of the year 9999, because later ones have no RFC 3339 form.
pub(super) const LAST_SECOND: i64 = 253_402_300_799;

/// A timestamp in the format of log lines.
#[derive(Debug, Clone)]
pub(super) struct Stamp {
    seconds: i64,
    nanoseconds: u32,
    text: [u8; STAMP_LENGTH],
}

impl Stamp {
    /// The current wall-clock time.
    pub(super) fn now() -> Self {
        // Times before 1970 are not supported and become the epoch.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self::new(i64::try_from(now.as_secs()).unwrap_or(LAST_SECOND), now.subsec_nanos())
    }

    /// The time `seconds` and `nanoseconds` after the epoch. Seconds outside 1970 to 9999 are clamped.
    pub(super) fn new(seconds: i64, nanoseconds: u32) -> Self {
        let seconds = seconds.clamp(0, LAST_SECOND);
        let (year, month, day) = civil(seconds / 86_400);
        let time = seconds % 86_400;
        let mut text = *b"0000-00-00T00:00:00.000000000Z";
        digits(&mut text[0..4], year);
        digits(&mut text[5..7], month);
        digits(&mut text[8..10], day);
        digits(&mut text[11..13], time / 3_600);
        digits(&mut text[14..16], time / 60 % 60);
        digits(&mut text[17..19], time % 60);
        digits(&mut text[20..29], i64::from(nanoseconds));
        Self { seconds, nanoseconds, text }
    }

    /// Advances by one nanosecond, because log collectors treat two equal lines with the same time as duplicates.
    pub(super) fn advance(&mut self) {
        if self.nanoseconds >= 999_999_999 {
            *self = Self::new(self.seconds + 1, 0);
            return;
        }
        self.nanoseconds += 1;
        for digit in self.text[20..29].iter_mut().rev() {
            if *digit < b'9' {
                *digit += 1;
                return;
            }
            *digit = b'0';
        }
    }

    /// `2026-01-02T03:04:05.678901234Z`.
    pub(super) fn text(&self) -> &[u8; STAMP_LENGTH] {
        &self.text
    }

    /// The second after the epoch.
    pub(super) fn second(&self) -> i64 {
        self.seconds
    }

    /// `20260102-150405`, kubelet's suffix of a rotated file.
    pub(super) fn file_suffix(&self) -> [u8; 15] {
        let mut suffix = *b"00000000-000000";
        for (to, from) in
            [(0..4, 0..4), (4..6, 5..7), (6..8, 8..10), (9..11, 11..13), (11..13, 14..16), (13..15, 17..19)]
        {
            suffix[to].copy_from_slice(&self.text[from]);
        }
        suffix
    }
}

/// The second of a file's suffix; `None` if it is not a [`Stamp::file_suffix`].
pub(super) fn second_of_suffix(suffix: &[u8; 15]) -> Option<i64> {
    let number =
        |range: std::ops::Range<usize>| -> Option<i64> { std::str::from_utf8(&suffix[range]).ok()?.parse().ok() };
    let (year, month, day) = (number(0..4)?, number(4..6)?, number(6..8)?);
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, year_of_era) = (shifted_year.div_euclid(400), shifted_year.rem_euclid(400));
    let day_of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468;
    let seconds = days * 86_400 + number(9..11)? * 3_600 + number(11..13)? * 60 + number(13..15)?;
    // An invalid date, such as the 31st of February, yields another one.
    (Stamp::new(seconds, 0).file_suffix() == *suffix).then_some(seconds)
}

/// Writes `value` into all of `buffer`, with leading zeros.
pub(super) fn digits(buffer: &mut [u8], mut value: i64) {
    for digit in buffer.iter_mut().rev() {
        *digit = b'0' + (value % 10) as u8;
        value /= 10;
    }
}

/// Year, month and day of a day after 1970-01-01 (the usual era arithmetic, years beginning in March).
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    (era * 400 + year_of_era + i64::from(month <= 2), month, day)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_rfc_3339() {
        for (seconds, nanoseconds, text) in [
            (0, 0, "1970-01-01T00:00:00.000000000Z"),
            (951_782_400, 5, "2000-02-29T00:00:00.000000005Z"),
            (1_767_323_045, 678_901_234, "2026-01-02T03:04:05.678901234Z"),
            (4_107_542_399, 999_999_999, "2100-02-28T23:59:59.999999999Z"),
            (LAST_SECOND + 5, 0, "9999-12-31T23:59:59.000000000Z"),
            (-1, 0, "1970-01-01T00:00:00.000000000Z"),
        ] {
            assert_eq!(std::str::from_utf8(Stamp::new(seconds, nanoseconds).text()).unwrap(), text);
        }
    }

    #[test]
    fn every_day_agrees_with_the_time_library() {
        for day in 0..60_000 {
            let ours = Stamp::new(day * 86_400 + 61, 0);
            let theirs = jiff::Timestamp::from_second(day * 86_400 + 61).unwrap();
            assert_eq!(std::str::from_utf8(ours.text()).unwrap(), format!("{theirs:.9}"));
        }
    }

    #[test]
    fn advance_carries_into_the_next_second() {
        let mut stamp = Stamp::new(59, 999_999_998);
        stamp.advance();
        assert_eq!(stamp.text(), b"1970-01-01T00:00:59.999999999Z");
        stamp.advance();
        assert_eq!(stamp.text(), b"1970-01-01T00:01:00.000000000Z");
        let mut carry = Stamp::new(0, 99);
        carry.advance();
        assert_eq!(carry.text(), b"1970-01-01T00:00:00.000000100Z");
    }

    #[test]
    fn a_suffix_has_its_second() {
        for day in (0..60_000).step_by(7) {
            let second = day * 86_400 + 86_399;
            assert_eq!(second_of_suffix(&Stamp::new(second, 0).file_suffix()), Some(second));
        }
        for other in
            [b"20260231-000000", b"20261301-000000", b"20260101-250000", b"20260101_000000", b"+0260101-000000"]
        {
            assert_eq!(second_of_suffix(other), None, "{}", String::from_utf8_lossy(other));
        }
    }

    #[test]
    fn file_suffix_is_kubelets() {
        assert_eq!(&Stamp::new(1_767_323_045, 9).file_suffix(), b"20260102-030405");
    }
}
