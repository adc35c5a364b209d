//! When a source last succeeded, when it tries again, what tells it of changes, and whether the disk takes what it
//! accepts. Told beside the snapshots, because none of it changes a pod.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;

/// A moment that has not come.
const NEVER: i64 = i64::MIN;

/// The moments are in milliseconds. The source writes, whoever shows them reads.
#[derive(Debug)]
pub struct Pulse {
    succeeded: AtomicI64,
    retry: AtomicI64,
    unkept: ArcSwapOption<String>,
    backend: ArcSwapOption<String>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            succeeded: AtomicI64::new(NEVER),
            retry: AtomicI64::new(NEVER),
            unkept: ArcSwapOption::empty(),
            backend: ArcSwapOption::empty(),
        }
    }
}

impl Pulse {
    /// The source read its place in full and without trouble at `at`.
    pub fn succeeded(&self, at: Timestamp) {
        self.succeeded.store(at.as_millisecond(), Ordering::Relaxed);
        self.retry.store(NEVER, Ordering::Relaxed);
    }

    /// After a failure, the source tries again at `at`.
    pub fn retries(&self, at: Timestamp) {
        self.retry.store(at.as_millisecond(), Ordering::Relaxed);
    }

    /// What was accepted is on the disk, or is not, for this reason.
    pub fn kept(&self, failure: Option<String>) {
        self.unkept.store(failure.map(Arc::new));
    }

    /// Why the disk does not take what the source accepts.
    pub fn unkept(&self) -> Option<Arc<String>> {
        self.unkept.load_full()
    }

    /// What tells the source of changes, for people.
    pub fn set_backend(&self, backend: String) {
        if self.backend.load().as_deref() != Some(&backend) {
            self.backend.store(Some(Arc::new(backend)));
        }
    }

    /// What tells the source of changes.
    pub fn backend(&self) -> Option<Arc<String>> {
        self.backend.load_full()
    }

    /// When the source last read its place in full and without trouble, or what it restored was accepted.
    pub fn last_success(&self) -> Option<Timestamp> {
        moment(&self.succeeded)
    }

    /// When it tries again, while the last try failed.
    pub fn next_retry(&self) -> Option<Timestamp> {
        moment(&self.retry)
    }
}

fn moment(of: &AtomicI64) -> Option<Timestamp> {
    Timestamp::from_millisecond(of.load(Ordering::Relaxed)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_ends_the_wait_for_the_next_try() {
        let pulse = Pulse::default();
        assert_eq!((pulse.last_success(), pulse.next_retry()), (None, None));
        pulse.retries(Timestamp::constant(40, 0));
        assert_eq!(pulse.next_retry(), Some(Timestamp::constant(40, 0)));
        pulse.succeeded(Timestamp::constant(41, 0));
        assert_eq!((pulse.last_success(), pulse.next_retry()), (Some(Timestamp::constant(41, 0)), None));
    }
}
