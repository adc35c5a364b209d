//! The merge itself, pure: which keys differ since the last time, who wins them, what that means.
//!
//! Persistent maps share structure, so two snapshots are compared by pointer and only what changed is looked at.

use std::collections::BTreeSet;
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use super::slot::Snapshots;
use super::{DesiredPods, Duplicate, PodChange};
use crate::pod::{PodKey, PodRecord};
use crate::source::SourceKind;

/// The merged state and the snapshots it was made of.
#[derive(Debug, Default)]
pub struct MergeTable {
    absorbed: Snapshots,
    desired: DesiredPods,
}

/// What one merge brought.
#[derive(Debug)]
pub struct Outcome {
    /// Removed, Added, Updated, Deleting, Reconciled.
    pub changes: Vec<PodChange>,
    /// A source spoke for the first time.
    pub readiness_changed: bool,
}

impl MergeTable {
    /// The merged state.
    pub fn desired(&self) -> &DesiredPods {
        &self.desired
    }

    /// Takes the sources' newest snapshots in and says what changed. Cost grows with what changed.
    pub fn absorb(&mut self, snapshots: Snapshots) -> Outcome {
        let touched = self.touched_keys(&snapshots);
        let ready = std::array::from_fn(|index| snapshots[index].ready);
        let readiness_changed = ready != self.desired.ready;
        self.desired.ready = ready;
        self.absorbed = snapshots;

        let mut changes: [Vec<PodChange>; 5] = Default::default();
        for key in touched {
            for change in self.settle(&key) {
                changes[rank(&change)].push(change);
            }
        }
        Outcome { changes: changes.into_iter().flatten().collect(), readiness_changed }
    }

    fn touched_keys(&self, snapshots: &Snapshots) -> BTreeSet<PodKey> {
        let mut touched = BTreeSet::new();
        for (old, new) in self.absorbed.iter().zip(snapshots) {
            for difference in old.pods.diff(&new.pods) {
                let key = match difference {
                    DiffItem::Add(key, _) | DiffItem::Remove(key, _) => key,
                    DiffItem::Update { new: (key, _), .. } => key,
                };
                touched.insert(key.clone());
            }
        }
        touched
    }

    /// Decides one key anew and returns the one or two changes that brings.
    fn settle(&mut self, key: &PodKey) -> Vec<PodChange> {
        let mut claims = self.absorbed.iter().filter_map(|snapshot| snapshot.pods.get(key));
        let winner = claims.next().cloned();
        let losers: Vec<Duplicate> = match &winner {
            Some(winner) => {
                claims.map(|loser| Duplicate { winner: Arc::clone(winner), loser: Arc::clone(loser) }).collect()
            }
            None => Vec::new(),
        };
        if losers.is_empty() {
            self.desired.duplicates.remove(key);
        } else {
            self.desired.duplicates.insert(key.clone(), losers);
        }
        let before = match &winner {
            Some(winner) => self.desired.pods.insert(key.clone(), Arc::clone(winner)),
            None => self.desired.pods.remove(key),
        };
        classify(before, winner)
    }
}

/// The change between two versions of one key (kubelet-semantics 1.2, O3 to O7 and O14).
fn classify(old: Option<Arc<PodRecord>>, new: Option<Arc<PodRecord>>) -> Vec<PodChange> {
    match (old, new) {
        (None, None) => Vec::new(),
        (None, Some(new)) => vec![PodChange::Added(new)],
        (Some(old), None) => vec![PodChange::Removed(old)],
        (Some(old), Some(new)) if !same_incarnation(&old, &new) => {
            vec![PodChange::Removed(old), PodChange::Added(new)]
        }
        (Some(old), Some(new)) => {
            if is_deleting(&new) && (!is_deleting(&old) || grace(&new) != grace(&old)) {
                vec![PodChange::Deleting(new)]
            } else if old.fingerprint != new.fingerprint || old.source != new.source || old.origin != new.origin {
                vec![PodChange::Updated { old, new }]
            } else if old.pod.status != new.pod.status {
                vec![PodChange::Reconciled(new)]
            } else {
                Vec::new()
            }
        }
    }
}

/// Whether `new` can be reached from `old` without ending the pod. A UID written in the manifest stays while the
/// pod does not, so the fingerprint decides as well.
pub fn same_incarnation(old: &PodRecord, new: &PodRecord) -> bool {
    old.uid == new.uid && old.immutable_fingerprint == new.immutable_fingerprint
}

fn is_deleting(record: &PodRecord) -> bool {
    record.pod.metadata.deletion_timestamp.is_some()
}

/// What its end may take.
fn grace(record: &PodRecord) -> Option<i64> {
    record.pod.metadata.deletion_grace_period_seconds
}

fn rank(change: &PodChange) -> usize {
    match change {
        PodChange::Removed(_) => 0,
        PodChange::Added(_) => 1,
        PodChange::Updated { .. } => 2,
        PodChange::Deleting(_) => 3,
        PodChange::Reconciled(_) => 4,
    }
}

impl SourceKind {
    /// The source's place in arrays of one entry per source, which is its precedence.
    pub fn index(self) -> usize {
        self as usize
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
