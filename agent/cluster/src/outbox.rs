//! What is not sent to the apiserver yet, for people on the node. Nothing is queued: each task compares what
//! there is with what the server has, and says here how much differs.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

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
    /// Without those of events.
    differing: watch::Sender<Unsent>,
    /// By the name of an event: the count that was posted.
    posted: Mutex<BTreeMap<String, u32>>,
}

impl Outbox {
    /// So many pods of the apiserver differ.
    pub(super) fn set_statuses(&self, count: usize) {
        self.differing.send_if_modified(|unsent| std::mem::replace(&mut unsent.statuses, count) != count);
    }

    /// So many mirrors differ.
    pub(super) fn set_mirrors(&self, count: usize) {
        self.differing.send_if_modified(|unsent| std::mem::replace(&mut unsent.mirrors, count) != count);
    }

    /// Resolves once no pod and no mirror differs.
    pub(super) async fn nothing_differs(&self) {
        // The sender lives as long as this does.
        let _ = self.differing.subscribe().wait_for(|unsent| *unsent == Unsent::default()).await;
    }

    /// The events that were posted. Not to be held over an await.
    pub(super) fn posted(&self) -> MutexGuard<'_, BTreeMap<String, u32>> {
        self.posted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of it; `events`: how many are not posted.
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
