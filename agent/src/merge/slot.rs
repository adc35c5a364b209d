//! One slot per source: the newest snapshot, published and loaded without waiting.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio::sync::Notify;

use crate::source::{SourceKind, SourceSnapshot};

/// All slots and the one bell they ring.
#[derive(Debug, Default)]
pub struct Slots {
    slots: [ArcSwap<SourceSnapshot>; SourceKind::ALL.len()],
    bell: Notify,
}

/// One snapshot per source, in the order of [`SourceKind::ALL`].
pub type Snapshots = [Arc<SourceSnapshot>; SourceKind::ALL.len()];

impl Slots {
    /// Replaces what `source` published before. Never blocks; the latest wins.
    pub fn publish(&self, source: SourceKind, snapshot: Arc<SourceSnapshot>) {
        self.slots[source.index()].store(snapshot);
        self.bell.notify_one();
    }

    /// Every source's newest snapshot.
    pub fn load(&self) -> Snapshots {
        std::array::from_fn(|index| self.slots[index].load_full())
    }

    /// Resolves when something was published since the last time; never misses one (`notify_one` keeps a permit).
    pub async fn published(&self) {
        self.bell.notified().await;
    }
}
