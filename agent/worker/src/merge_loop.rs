//! The merge task: waits until a source publishes, merges, and sends the changes to the supervisor.

use std::sync::Arc;

use limpet_core::merge::slot::Slots;
use limpet_core::merge::table::{MergeDelta, MergeTable};
use limpet_core::merge::{Desired, Merged};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::workloads::Workloads;

/// Owns the merged state until `stop`: waits for a snapshot, merges, stores the result, sends the changes.
///
/// Bursts coalesce: however often sources publish while the supervisor is busy, one merge takes the newest snapshots.
pub async fn run(slots: Arc<Slots>, desired: Desired, changes: mpsc::Sender<Merged>, stop: CancellationToken) {
    run_with(slots, desired, changes, None, stop).await;
}

/// The same, including pods that controllers create from the sources' workloads.
pub async fn run_with(
    slots: Arc<Slots>,
    desired: Desired,
    changes: mpsc::Sender<Merged>,
    mut workloads: Option<Workloads>,
    stop: CancellationToken,
) {
    let mut table = MergeTable::default();
    loop {
        // The channel slot is reserved before the sources are read, so that later snapshots become part of this
        // merge.
        let permit = async {
            tokio::select! {
                () = slots.published() => {}
                () = woken(workloads.as_mut()) => {}
            }
            changes.reserve().await
        };
        let permit = tokio::select! {
            () = stop.cancelled() => return,
            permit = permit => permit,
        };
        let Ok(permit) = permit else { return };
        let started = Instant::now();
        let snapshots = match &mut workloads {
            Some(workloads) => workloads.expand(slots.load()),
            None => slots.load(),
        };
        let delta = table.absorb(snapshots);
        let snapshot = Arc::new(table.desired().clone());
        // Stored even without a change to send, so that a Secret to which no pod refers is dropped.
        desired.store(Arc::clone(&snapshot));
        if delta.is_empty() {
            continue;
        }
        let MergeDelta { changes, contested, objects_changed, .. } = delta;
        let took = started.elapsed();
        permit.send(Merged { changes, contested, objects_changed, desired: snapshot, took });
    }
}

async fn woken(workloads: Option<&mut Workloads>) {
    match workloads {
        Some(workloads) => workloads.woken().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
