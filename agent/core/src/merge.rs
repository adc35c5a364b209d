//! Merges the sources into one desired state: slots, the merge, and the snapshots that readers load.
//!
//! Each source publishes into its own [`slot::Slots`]. One task owns the [`table::MergeTable`] and turns the
//! differences into [`PodChange`]s. All others load [`DesiredPods`]. Publishing and reading take no lock.

mod exchange;
mod reference_index;
pub mod slot;
mod sync;
pub mod table;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use imbl::{OrdMap, OrdSet};
use reference_index::ReferenceIndex;
use tokio::sync::watch;

use limpet_model::object::{ObjectKey, ObjectRecord, ObjectState, PodObjects};
use limpet_model::pod::{PodDiff, PodKey, PodRecord};
use limpet_model::source::SourceKind;

/// One difference between two desired states. It holds the records by `Arc`; nothing is copied.
#[derive(Debug, Clone)]
pub enum PodChange {
    /// The pod is no longer desired, or only as another incarnation.
    Removed(Arc<PodRecord>),
    /// A pod that was not desired before.
    Added(Arc<PodRecord>),
    /// The same incarnation, changed in place.
    Updated {
        /// The version before.
        old: Arc<PodRecord>,
        /// The desired version.
        new: Arc<PodRecord>,
    },
    /// Its source requests its graceful deletion (`deletionTimestamp`), or changed that request.
    Deleting {
        /// The version before.
        old: Arc<PodRecord>,
        /// The version that is deleted.
        new: Arc<PodRecord>,
    },
    /// Only the status at its source has changed.
    Reconciled {
        /// The version before.
        old: Arc<PodRecord>,
        /// The version with the new status.
        new: Arc<PodRecord>,
    },
}

impl PodChange {
    /// The pod the change is about, in its newest version.
    pub fn record(&self) -> &Arc<PodRecord> {
        match self {
            Self::Removed(record) | Self::Added(record) => record,
            Self::Updated { new, .. } | Self::Deleting { new, .. } | Self::Reconciled { new, .. } => new,
        }
    }

    /// The differences, for a pod that exists before and after.
    pub fn diff(&self) -> Option<PodDiff<'_>> {
        match self {
            Self::Removed(_) | Self::Added(_) => None,
            Self::Updated { old, new } | Self::Deleting { old, new } | Self::Reconciled { old, new } => {
                Some(PodDiff::between(old, new))
            }
        }
    }

    /// The verb in kubelet's log.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Removed(_) => "REMOVE",
            Self::Added(_) => "ADD",
            Self::Updated { .. } => "UPDATE",
            Self::Deleting { .. } => "DELETE",
            Self::Reconciled { .. } => "RECONCILE",
        }
    }
}

/// Two pods that claim one key or one UID: the one that runs, and the one that does not.
#[derive(Debug, Clone)]
pub struct Duplicate {
    /// The pod with precedence.
    pub winner: Arc<PodRecord>,
    /// The pod that does not run because of it.
    pub loser: Arc<PodRecord>,
}

impl Duplicate {
    /// The message for the pod that runs.
    pub fn winner_message(&self) -> String {
        let Self { winner, loser } = self;
        if winner.key == loser.key {
            format!(
                "{} {} also defines this pod; {} {} takes precedence",
                loser.source, loser.origin, winner.source, winner.origin
            )
        } else {
            format!("{} of {} {} has the same uid and does not run", loser.key, loser.source, loser.origin)
        }
    }

    /// The message for the pod that does not run.
    pub fn loser_message(&self) -> String {
        let Self { winner, loser } = self;
        if winner.key == loser.key {
            format!(
                "not run from {} {}: {} {} defines the pod and takes precedence",
                loser.source, loser.origin, winner.source, winner.origin
            )
        } else {
            format!(
                "not run: its uid {} is that of {}, from {} {}",
                loser.uid, winner.key, winner.source, winner.origin
            )
        }
    }
}

/// The merged desired state at one moment.
#[derive(Debug, Clone, Default)]
pub struct DesiredPods {
    /// Every pod that should run.
    pub pods: OrdMap<PodKey, Arc<PodRecord>>,
    /// The claims that each key's pod won, and those it lost.
    pub duplicates: OrdMap<PodKey, Arc<[Duplicate]>>,
    /// The ConfigMaps and Secrets of each source, for its own pods, in the order of [`SourceKind::ALL`].
    pub objects: [OrdMap<ObjectKey, Arc<ObjectRecord>>; SourceKind::ALL.len()],
    /// The objects that are known not to exist, for a source that fetches them ([`SourceSnapshot::absent`]), in the
    /// same order.
    ///
    /// [`SourceSnapshot::absent`]: crate::source::SourceSnapshot::absent
    pub absent: [Option<OrdSet<ObjectKey>>; SourceKind::ALL.len()],
    /// Which sources have reported, in the order of [`SourceKind::ALL`].
    pub ready: [bool; SourceKind::ALL.len()],
    /// Which pods refer to which object.
    pub(crate) references: ReferenceIndex,
}

impl DesiredPods {
    /// Whether `source` has reported. Only then may its pods that are not desired be terminated.
    pub fn is_ready(&self, source: SourceKind) -> bool {
        self.ready[source.index()]
    }

    /// The objects that `record` refers to, those of its own source.
    pub fn objects_of(&self, record: &PodRecord) -> PodObjects {
        PodObjects::collect(record, |key| self.object(record.source, key))
    }

    /// What `source` has of that object.
    pub fn object(&self, source: SourceKind, key: &ObjectKey) -> ObjectState {
        let (objects, absent) = (&self.objects[source.index()], &self.absent[source.index()]);
        match (objects.get(key), absent) {
            (Some(object), _) => ObjectState::Known(Arc::clone(object)),
            (None, Some(absent)) if !absent.contains(key) => ObjectState::Unknown,
            (None, _) => ObjectState::Absent,
        }
    }

    /// The objects of `source` that its pods refer to, existing or not, each with these pods. The source has to
    /// provide them. Equal snapshots share the map.
    pub fn demand(&self, source: SourceKind) -> &OrdMap<ObjectKey, OrdSet<PodKey>> {
        self.references.of_source(source)
    }

    /// The objects that pods of `source` refer to and that do not exist there, each with these pods.
    pub fn missing_objects(&self, source: SourceKind) -> impl Iterator<Item = (&ObjectKey, &OrdSet<PodKey>)> {
        self.demand(source).iter().filter(move |(key, _)| matches!(self.object(source, key), ObjectState::Absent))
    }
}

/// The changes of one merge for the supervisor, in the order in which to act on them.
#[derive(Debug)]
pub struct Merged {
    /// Removed, Added, Updated, Deleting, Reconciled.
    pub changes: Vec<PodChange>,
    /// Keys whose duplicates changed.
    pub contested: Vec<PodKey>,
    /// Pods that refer to an object that was added, changed or removed.
    pub objects_changed: BTreeSet<PodKey>,
    /// The desired state after the changes.
    pub desired: Arc<DesiredPods>,
    /// How long the merge took.
    pub took: Duration,
}

/// The handle to the newest [`DesiredPods`]. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Desired(Arc<SharedDesired>);

#[derive(Debug, Default)]
struct SharedDesired {
    pods: ArcSwap<DesiredPods>,
    version: watch::Sender<u64>,
}

impl Desired {
    /// The newest snapshot.
    pub fn load(&self) -> Arc<DesiredPods> {
        self.0.pods.load_full()
    }

    /// Replaces the snapshot; snapshots that readers hold do not change.
    pub fn store(&self, desired: Arc<DesiredPods>) {
        self.0.pods.store(desired);
        self.0.version.send_modify(|version| *version = version.wrapping_add(1));
    }

    /// Notifies of every snapshot from now on; several may be seen as one.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.version.subscribe()
    }
}
