//! Whether the node's clock can be right.

use jiff::{SignedDuration, Timestamp};

/// The time at which a decision is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Clock {
    /// The time that the node's clock shows.
    pub(crate) now: Timestamp,
    /// A clock that shows an earlier time has not been set yet.
    pub(crate) earliest: Timestamp,
}

impl Clock {
    /// Whether the clock may be right.
    pub(crate) fn is_set(&self) -> bool {
        self.now >= self.earliest
    }

    /// The time since when something lasts. One that was recorded before the clock was set is not known, so time
    /// counts from the setting on. One in the future, because the clock was set back, counts as past.
    pub(crate) fn since(&self, noted: Timestamp) -> Timestamp {
        if self.is_set() && noted < self.earliest { self.now } else { noted.min(self.now) }
    }

    /// The moment so many seconds later.
    pub(crate) fn after(time: Timestamp, seconds: u64) -> Timestamp {
        let pause = SignedDuration::from_secs(i64::try_from(seconds).unwrap_or(i64::MAX));
        time.checked_add(pause).unwrap_or(Timestamp::MAX)
    }
}

/// The earlier of two optional times.
pub(crate) fn earlier(first: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    first.into_iter().chain(other).min()
}
