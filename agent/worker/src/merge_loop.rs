//! The merge task: waits until a source publishes, merges, and sends the changes to the supervisor.

use std::sync::Arc;

use limpet_core::merge::slot::Slots;
use limpet_core::merge::table::{MergeDelta, MergeTable};
use limpet_core::merge::{Desired, Merged};
use limpet_core::source::Snapshots;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::trials::Trials;
use crate::workloads::Workloads;

/// Owns the merged state until `stop`: waits for a snapshot, merges, stores the result, sends the changes.
///
/// Bursts coalesce: however often sources publish while the supervisor is busy, one merge takes the newest snapshots.
pub async fn run(slots: Arc<Slots>, desired: Desired, changes: mpsc::Sender<Merged>, stop: CancellationToken) {
    run_with(slots, desired, changes, Stages::default(), stop).await;
}

/// What stands between the sources' snapshots and the merge, in this order.
#[derive(Default)]
pub struct Stages {
    /// The generations of sources; `None`: no source has any.
    pub trials: Option<Trials>,
    /// The controllers of the sources' workloads.
    pub workloads: Option<Workloads>,
    /// Sees the snapshots that take effect, before pods are made of them.
    pub observer: Option<SnapshotObserver>,
}

/// Sees snapshots, and changes nothing of them.
pub type SnapshotObserver = Box<dyn FnMut(&Snapshots) + Send>;

impl Stages {
    /// Resolves when a stage may decide otherwise than before, although no source has published. Cancel safe.
    async fn woken(&mut self) {
        let Self { trials, workloads, .. } = self;
        let of_trials = async {
            match trials {
                Some(trials) => trials.woken().await,
                None => std::future::pending().await,
            }
        };
        let of_workloads = async {
            match workloads {
                Some(workloads) => workloads.woken().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = of_trials => {}
            () = of_workloads => {}
        }
    }

    /// The snapshots for the merge.
    fn expand(&mut self, mut snapshots: Snapshots) -> Snapshots {
        let Self { trials, workloads, observer } = self;
        if let Some(trials) = trials {
            snapshots = trials.expand(snapshots, |source, key| workloads.as_ref()?.progress(source, key));
        }
        if let Some(observer) = observer {
            observer(&snapshots);
        }
        match workloads {
            Some(workloads) => {
                let on_trial = trials.as_ref().map(Trials::on_trial).unwrap_or_default();
                workloads.expand(snapshots, &on_trial)
            }
            None => snapshots,
        }
    }
}

/// The same with these stages before the merge.
pub async fn run_with(
    slots: Arc<Slots>,
    desired: Desired,
    changes: mpsc::Sender<Merged>,
    mut stages: Stages,
    stop: CancellationToken,
) {
    let mut table = MergeTable::default();
    loop {
        // The channel slot is reserved before the sources are read, so that later snapshots become part of this
        // merge.
        let permit = async {
            tokio::select! {
                () = slots.published() => {}
                () = stages.woken() => {}
            }
            changes.reserve().await
        };
        let permit = tokio::select! {
            () = stop.cancelled() => return,
            permit = permit => permit,
        };
        let Ok(permit) = permit else { return };
        let started = Instant::now();
        let delta = table.absorb(stages.expand(slots.load()));
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

#[cfg(test)]
mod tests;
