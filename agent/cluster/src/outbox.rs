//! Counts what has not been sent to the apiserver yet, for users on the node. Nothing is queued: each task compares
//! its state with the server's and records here how much differs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// Unsent items by kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Unsent {
    /// The apiserver's pods whose newest status, or whose end, it does not know.
    pub statuses: usize,
    /// Pods of the node's own sources whose mirror is to be created, replaced, removed or updated.
    pub mirrors: usize,
    /// Events that the apiserver lacks, or has with an older count.
    pub events: usize,
}

impl Unsent {
    pub fn by_kind(&self) -> [(&'static str, usize); 3] {
        [("status", self.statuses), ("mirror", self.mirrors), ("event", self.events)]
    }
}

/// The counts that tasks record.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// The counts without events.
    differing: watch::Sender<Unsent>,
    /// The count that was posted for each event, by the event's name.
    posted: Mutex<BTreeMap<String, u32>>,
}

impl Outbox {
    pub(super) fn set_statuses(&self, count: usize) {
        self.differing.send_if_modified(|unsent| std::mem::replace(&mut unsent.statuses, count) != count);
    }

    pub(super) fn set_mirrors(&self, count: usize) {
        self.differing.send_if_modified(|unsent| std::mem::replace(&mut unsent.mirrors, count) != count);
    }

    /// Resolves once no pod and no mirror differs.
    pub(super) async fn nothing_differs(&self) {
        // The sender lives as long as `self`.
        let _ = self.differing.subscribe().wait_for(|unsent| *unsent == Unsent::default()).await;
    }

    /// The posted events. The guard must not be held across an await.
    pub(super) fn posted(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All counts; `events` is the number of unposted events.
    pub(super) fn unsent(&self, events: usize) -> Unsent {
        Unsent { events, ..*self.differing.borrow() }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn it_is_empty_once_neither_pods_nor_mirrors_differ() {
        let outbox = Outbox::default();
        assert!(outbox.nothing_differs().now_or_never().is_some());
        outbox.set_statuses(2);
        outbox.set_mirrors(1);
        assert_eq!(outbox.unsent(3), Unsent { statuses: 2, mirrors: 1, events: 3 });
        let mut empty = Box::pin(outbox.nothing_differs());
        assert!(empty.as_mut().now_or_never().is_none());
        outbox.set_statuses(0);
        assert!(empty.as_mut().now_or_never().is_none());
        outbox.set_mirrors(0);
        assert!(empty.now_or_never().is_some());
    }
}
