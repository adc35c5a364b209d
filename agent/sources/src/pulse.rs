//! When a source last succeeded, when it retries, how it learns of changes, and whether its accepted manifests are
//! saved. It is published separately from the snapshots, because none of it changes a pod.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use arc_swap::ArcSwapOption;
use jiff::Timestamp;

/// The value for a time that there is not, because an atomic integer has no `None`.
const NEVER: i64 = i64::MIN;

/// Times are in milliseconds. Written by the source, read by the server.
#[derive(Debug)]
pub struct Pulse {
    succeeded: AtomicI64,
    retry: AtomicI64,
    persist_error: ArcSwapOption<String>,
    backend: ArcSwapOption<String>,
}

impl Default for Pulse {
    fn default() -> Self {
        Self {
            succeeded: AtomicI64::new(NEVER),
            retry: AtomicI64::new(NEVER),
            persist_error: ArcSwapOption::empty(),
            backend: ArcSwapOption::empty(),
        }
    }
}

impl Pulse {
    /// Records that the source read everything without errors at `at`.
    pub fn succeeded(&self, at: Timestamp) {
        self.succeeded.store(at.as_millisecond(), Ordering::Relaxed);
        self.retry.store(NEVER, Ordering::Relaxed);
    }

    /// Records that the source retries at `at` after a failure.
    pub fn retries(&self, at: Timestamp) {
        self.retry.store(at.as_millisecond(), Ordering::Relaxed);
    }

    /// Sets or clears the reason why accepted manifests cannot be saved to disk.
    pub fn set_persist_error(&self, error: Option<String>) {
        self.persist_error.store(error.map(Arc::new));
    }

    /// Why accepted manifests cannot be saved to disk.
    pub fn persist_error(&self) -> Option<Arc<String>> {
        self.persist_error.load_full()
    }

    /// Sets how the source learns of changes, as shown to users.
    pub fn set_backend(&self, backend: String) {
        if self.backend.load().as_deref() != Some(&backend) {
            self.backend.store(Some(Arc::new(backend)));
        }
    }

    /// How the source learns of changes.
    pub fn backend(&self) -> Option<Arc<String>> {
        self.backend.load_full()
    }

    /// When the source last read everything without errors, or when the manifests it restored were accepted.
    pub fn last_success(&self) -> Option<Timestamp> {
        time(&self.succeeded)
    }

    /// When it retries, while the last attempt failed.
    pub fn next_retry(&self) -> Option<Timestamp> {
        time(&self.retry)
    }
}

fn time(milliseconds: &AtomicI64) -> Option<Timestamp> {
    Timestamp::from_millisecond(milliseconds.load(Ordering::Relaxed)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_success_clears_the_next_retry() {
        let pulse = Pulse::default();
        assert_eq!((pulse.last_success(), pulse.next_retry()), (None, None));
        pulse.retries(Timestamp::constant(40, 0));
        assert_eq!(pulse.next_retry(), Some(Timestamp::constant(40, 0)));
        pulse.succeeded(Timestamp::constant(41, 0));
        assert_eq!((pulse.last_success(), pulse.next_retry()), (Some(Timestamp::constant(41, 0)), None));
    }
}
