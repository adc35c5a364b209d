//! The task that merges: waits until a source publishes, merges, and hands the changes to the supervisor.

use std::sync::Arc;

use limpet_core::merge::slot::Slots;
use limpet_core::merge::table::{MergeDelta, MergeTable};
use limpet_core::merge::{Desired, Merged};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Owns the merged state until `stop`: waits for a publication, merges, stores the snapshot, hands the changes on.
///
/// A burst coalesces: however often the sources publish while the supervisor is busy, one merge takes the newest.
pub async fn run(slots: Arc<Slots>, desired: Desired, changes: mpsc::Sender<Merged>, stop: CancellationToken) {
    let mut table = MergeTable::default();
    loop {
        // The place is reserved before the slots are read, so that what is published meanwhile is part of this merge.
        let place = async {
            slots.published().await;
            changes.reserve().await
        };
        let place = tokio::select! {
            () = stop.cancelled() => return,
            place = place => place,
        };
        let Ok(place) = place else { return };
        let begun = Instant::now();
        let delta = table.absorb(slots.load());
        let snapshot = Arc::new(table.desired().clone());
        // Also when nobody is to be told: a Secret that no pod refers to is let go of.
        desired.store(Arc::clone(&snapshot));
        if delta.is_empty() {
            continue;
        }
        let MergeDelta { changes, contested, objects_changed, .. } = delta;
        let took = begun.elapsed();
        place.send(Merged { changes, contested, objects_changed, desired: snapshot, took });
    }
}

#[cfg(test)]
mod tests;
