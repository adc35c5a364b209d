//! Many sources, one desired state: slots, the merge, the snapshots readers see.
//!
//! Each source publishes into its own [`slot::Slots`]; one task owns the [`table::MergeTable`] and turns what
//! differs into [`PodChange`]s; everyone else loads [`DesiredPods`]. Publishing and reading take no lock.

pub mod slot;
pub mod table;

use std::sync::Arc;

use arc_swap::ArcSwap;
use imbl::OrdMap;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::pod::{PodKey, PodRecord};
use crate::source::SourceKind;
use slot::Slots;
use table::MergeTable;

/// One difference between two desired states. Holds the records by `Arc`; nothing is copied.
#[derive(Debug, Clone)]
pub enum PodChange {
    /// The pod is not wanted any more, or not as this incarnation.
    Removed(Arc<PodRecord>),
    /// A pod that was not wanted before.
    Added(Arc<PodRecord>),
    /// The same incarnation, changed in place.
    Updated {
        /// As it was.
        old: Arc<PodRecord>,
        /// As it is to be.
        new: Arc<PodRecord>,
    },
    /// Its source asks for its graceful end (`deletionTimestamp`).
    Deleting(Arc<PodRecord>),
    /// Only the status its source knows has changed.
    Reconciled(Arc<PodRecord>),
}

impl PodChange {
    /// The pod the change is about, in its newest version.
    pub fn record(&self) -> &Arc<PodRecord> {
        match self {
            Self::Removed(record) | Self::Added(record) | Self::Deleting(record) | Self::Reconciled(record) => record,
            Self::Updated { new, .. } => new,
        }
    }

    /// The word kubelet's log has for it.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Removed(_) => "REMOVE",
            Self::Added(_) => "ADD",
            Self::Updated { .. } => "UPDATE",
            Self::Deleting(_) => "DELETE",
            Self::Reconciled(_) => "RECONCILE",
        }
    }
}

/// Two sources that claim one key: who runs and who does not.
#[derive(Debug, Clone)]
pub struct Duplicate {
    /// The pod that runs.
    pub winner: Arc<PodRecord>,
    /// The pod of the same key that does not.
    pub loser: Arc<PodRecord>,
}

/// The merged desired state at one moment.
#[derive(Debug, Clone, Default)]
pub struct DesiredPods {
    /// Every pod that is to run.
    pub pods: OrdMap<PodKey, Arc<PodRecord>>,
    /// Keys claimed by more than one source.
    pub duplicates: OrdMap<PodKey, Vec<Duplicate>>,
    /// Which sources have spoken, in the order of [`SourceKind::ALL`].
    pub ready: [bool; SourceKind::ALL.len()],
}

impl DesiredPods {
    /// Whether `source` has spoken: only then is a pod of its that is not here to be ended.
    pub fn is_ready(&self, source: SourceKind) -> bool {
        self.ready[source.index()]
    }
}

/// What the supervisor is told: the changes of one merge, in the order they are to be acted on.
#[derive(Debug)]
pub struct Merged {
    /// Removed, Added, Updated, Deleting, Reconciled.
    pub changes: Vec<PodChange>,
    /// The state after them.
    pub desired: Arc<DesiredPods>,
}

/// The snapshot readers see. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Desired(Arc<ArcSwap<DesiredPods>>);

impl Desired {
    /// The desired state now.
    pub fn load(&self) -> Arc<DesiredPods> {
        self.0.load_full()
    }
}

/// Owns the merged state until `stop`: waits for a publication, merges, stores the snapshot, hands the changes on.
///
/// A burst coalesces: however often the sources publish while the supervisor is busy, one merge takes the newest.
pub async fn run(slots: Arc<Slots>, desired: Desired, changes: mpsc::Sender<Merged>, stop: CancellationToken) {
    let mut table = MergeTable::default();
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = slots.published() => {}
        }
        // The place is reserved first, so that what is published while waiting for it is part of this merge.
        let Ok(place) = changes.reserve().await else { return };
        let outcome = table.absorb(slots.load());
        if outcome.changes.is_empty() && !outcome.readiness_changed {
            continue;
        }
        let snapshot = Arc::new(table.desired().clone());
        desired.0.store(Arc::clone(&snapshot));
        place.send(Merged { changes: outcome.changes, desired: snapshot });
    }
}
