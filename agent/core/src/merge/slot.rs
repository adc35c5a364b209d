//! One slot per source: the newest snapshot, published and loaded without waiting.

use std::future::poll_fn;
use std::sync::Arc;

use super::exchange::Exchange;
use crate::source::{Snapshots, SourceSnapshot};
use limpet_model::source::SourceKind;

const SOURCES: usize = SourceKind::ALL.len();

/// All slots and the notification they share. Memory is bounded by what the sources hold, because a slot keeps only
/// one snapshot.
#[derive(Debug)]
pub struct Slots(Exchange<SOURCES>);

impl Default for Slots {
    fn default() -> Self {
        Self(Exchange::new())
    }
}

impl Slots {
    /// Replaces what `source` published before. Never blocks; the latest wins.
    pub fn publish(&self, source: SourceKind, snapshot: Arc<SourceSnapshot>) {
        self.0.publish(source.index(), snapshot);
    }

    /// Every source's newest snapshot.
    pub fn load(&self) -> Snapshots {
        self.0.load()
    }

    /// Resolves when something was published since the last call; never misses a publication. For one task only.
    pub async fn published(&self) {
        poll_fn(|context| self.0.poll_published(context)).await;
    }
}
