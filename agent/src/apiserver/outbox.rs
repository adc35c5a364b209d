//! What is not sent to the apiserver yet, for those who look at the node. Nothing is queued: each task compares what
//! there is with what the server has, and says here how much differs.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What is unsent, by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsent {
    /// Pods of the apiserver whose newest status, or whose end, it does not know.
    pub statuses: usize,
    /// Pods of the node's own sources whose mirror is to be made, replaced, removed or reported on.
    pub mirrors: usize,
    /// Events that it does not have, or not with their count.
    pub events: usize,
}

impl Unsent {
    /// Each kind with its name.
    pub fn by_kind(&self) -> [(&'static str, usize); 3] {
        [("status", self.statuses), ("mirror", self.mirrors), ("event", self.events)]
    }
}

/// The figures that the tasks keep.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    statuses: AtomicUsize,
    mirrors: AtomicUsize,
    /// By the name of an event: the count that was posted.
    posted: Mutex<BTreeMap<String, u32>>,
}

impl Outbox {
    /// So many pods of the apiserver differ.
    pub(super) fn set_statuses(&self, count: usize) {
        self.statuses.store(count, Ordering::Relaxed);
    }

    /// So many mirrors differ.
    pub(super) fn set_mirrors(&self, count: usize) {
        self.mirrors.store(count, Ordering::Relaxed);
    }

    /// The events that were posted. Not to be held over an await.
    pub(super) fn posted(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it; `events`: how many are not posted.
    pub(super) fn unsent(&self, events: usize) -> Unsent {
        let load = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        Unsent { statuses: load(&self.statuses), mirrors: load(&self.mirrors), events }
    }
}
