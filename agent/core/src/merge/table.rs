//! The merge itself, pure: which keys changed since the last merge, which pod wins each, and the resulting changes.
//!
//! Only the entries that a snapshot reports as changed are visited, or after a missed snapshot those that differ
//! ([`crate::source::delta`]). Which pod runs depends only on the snapshots, never on their order in time: for a key
//! that several sources claim, it is the pod of the first source; for a UID that several such pods have, the pod of
//! the first source, then of the first key.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use super::{DesiredPods, Duplicate, PodChange};
use crate::source::{Snapshots, SourceSnapshot, delta};
use limpet_model::object::ObjectKey;
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use limpet_model::source::SourceKind;

/// The merged state and the snapshots it was merged from.
#[derive(Debug, Default)]
pub struct MergeTable {
    absorbed: Snapshots,
    desired: DesiredPods,
    /// The keys whose first claim has that UID; more than one only if manifests set UIDs. Unordered.
    holders: HashMap<PodUid, Vec<PodKey>>,
}

/// The result of one merge.
#[derive(Debug, Default)]
pub struct MergeDelta {
    /// Removed, Added, Updated, Deleting, Reconciled; by key within each.
    pub changes: Vec<PodChange>,
    /// Pods that refer to an object that was added, changed or removed.
    pub objects_changed: BTreeSet<PodKey>,
    /// A source reported for the first time.
    pub readiness_changed: bool,
    /// Keys whose losing pods changed.
    pub contested: Vec<PodKey>,
}

impl MergeDelta {
    /// Whether the merged state is unchanged.
    pub fn is_empty(&self) -> bool {
        let unchanged = self.changes.is_empty() && self.contested.is_empty() && self.objects_changed.is_empty();
        unchanged && !self.readiness_changed
    }
}

impl MergeTable {
    /// The merged state.
    pub fn desired(&self) -> &DesiredPods {
        &self.desired
    }

    /// Merges the sources' newest snapshots and returns what changed. The cost grows with the size of the change.
    pub fn absorb(&mut self, snapshots: Snapshots) -> MergeDelta {
        let (mut touched, objects) = touched(&self.absorbed, &snapshots);
        let ready = std::array::from_fn(|index| snapshots[index].ready);
        let readiness_changed = ready != self.desired.ready;
        self.desired.ready = ready;
        self.desired.objects = std::array::from_fn(|index| snapshots[index].objects.clone());
        self.desired.absent = std::array::from_fn(|index| snapshots[index].absent.clone());
        let before = std::mem::replace(&mut self.absorbed, snapshots);
        self.update_holders(&before, &mut touched);

        let mut delta = MergeDelta { readiness_changed, ..MergeDelta::default() };
        let mut changes: [Vec<PodChange>; 5] = Default::default();
        for key in touched {
            let claim = self.resolve(&key);
            if self.settle_duplicates(&key, claim.duplicates) {
                delta.contested.push(key.clone());
            }
            self.settle_pod(key, claim.winner, &mut |change| changes[rank(&change)].push(change));
        }
        delta.changes.reserve_exact(changes.iter().map(Vec::len).sum());
        delta.changes.extend(changes.into_iter().flatten());
        for (source, object) in objects {
            delta.objects_changed.extend(self.desired.references.pods(source, &object).cloned());
        }
        delta
    }

    /// Updates the holders of UIDs, and adds to `touched` the keys this affects.
    fn update_holders(&mut self, before: &Snapshots, touched: &mut Vec<PodKey>) {
        let mut affected = Vec::new();
        for key in &*touched {
            let (old, new) = (first_claim(before, key), first_claim(&self.absorbed, key));
            if let Some(old) = old
                && new.is_none_or(|new| new.uid != old.uid)
                && let Some(keys) = self.holders.get_mut(&old.uid)
            {
                keys.retain(|held| held != key);
                affected.extend_from_slice(keys);
                if keys.is_empty() {
                    self.holders.remove(&old.uid);
                }
            }
            let Some(new) = new else { continue };
            match self.holders.get_mut(&new.uid) {
                Some(keys) => {
                    if !keys.contains(key) {
                        keys.push(key.clone());
                    }
                    // An edit of one pod changes the duplicates of the others.
                    affected.extend(keys.iter().filter(|held| *held != key).cloned());
                }
                None => {
                    self.holders.insert(new.uid.clone(), vec![key.clone()]);
                }
            }
        }
        if !affected.is_empty() {
            touched.append(&mut affected);
            touched.sort_unstable();
            touched.dedup();
        }
    }

    /// Which pod runs under the key, and which pods of this key or UID do not.
    fn resolve(&self, key: &PodKey) -> Resolution {
        let mut claims = self.absorbed.iter().filter_map(|snapshot| Some((snapshot, snapshot.pods.get(key)?)));
        let Some((snapshot, first)) = claims.next() else { return Resolution::default() };
        let lost = |winner: &Arc<PodRecord>, loser: &Arc<PodRecord>| Duplicate {
            winner: Arc::clone(winner),
            loser: Arc::clone(loser),
        };
        let mut duplicates: Vec<Duplicate> = rivals(snapshot, key).map(|rival| lost(first, rival)).collect();
        for (snapshot, claim) in claims {
            duplicates.push(lost(first, claim));
            duplicates.extend(rivals(snapshot, key).map(|rival| lost(first, rival)));
        }
        let holders = self.holders.get(&first.uid).map_or(&[][..], Vec::as_slice);
        let mut winner = Some(Arc::clone(first));
        if holders.len() > 1 {
            let claims = holders.iter().filter_map(|held| first_claim(&self.absorbed, held));
            let mut same_uid: Vec<&Arc<PodRecord>> = claims.collect();
            same_uid.sort_unstable_by_key(|record| (record.source, &record.key));
            match same_uid.split_first() {
                Some((foremost, others)) if foremost.key == *key => {
                    duplicates.extend(others.iter().map(|other| lost(foremost, other)));
                }
                Some((foremost, _)) => {
                    duplicates.push(lost(foremost, first));
                    winner = None;
                }
                None => {}
            }
        }
        Resolution { winner, duplicates }
    }

    /// Stores the key's duplicates. Returns whether they changed.
    fn settle_duplicates(&mut self, key: &PodKey, duplicates: Vec<Duplicate>) -> bool {
        let before = self.desired.duplicates.get(key).map_or(&[][..], |before| &**before);
        let same =
            |(a, b): (&Duplicate, &Duplicate)| Arc::ptr_eq(&a.winner, &b.winner) && Arc::ptr_eq(&a.loser, &b.loser);
        if before.len() == duplicates.len() && before.iter().zip(&duplicates).all(same) {
            return false;
        }
        if duplicates.is_empty() {
            self.desired.duplicates.remove(key);
        } else {
            self.desired.duplicates.insert(key.clone(), duplicates.into());
        }
        true
    }

    /// Sets the winner of the key and emits the resulting changes, one or two.
    fn settle_pod(&mut self, key: PodKey, winner: Option<Arc<PodRecord>>, emit: &mut impl FnMut(PodChange)) {
        let before = match &winner {
            Some(winner) if self.desired.pods.get(&key).is_some_and(|now| Arc::ptr_eq(now, winner)) => return,
            Some(winner) => self.desired.pods.insert(key, Arc::clone(winner)),
            None => self.desired.pods.remove(&key),
        };
        self.desired.references.replace(before.as_deref(), winner.as_deref());
        classify(before, winner, emit);
    }
}

/// The claims of one key, resolved.
#[derive(Debug, Default)]
struct Resolution {
    winner: Option<Arc<PodRecord>>,
    duplicates: Vec<Duplicate>,
}

/// The keys that changed in any source, in order, and every object that was added, changed or removed.
fn touched(before: &Snapshots, after: &Snapshots) -> (Vec<PodKey>, Vec<(SourceKind, ObjectKey)>) {
    let (mut pods, mut objects) = (Vec::new(), Vec::new());
    for ((source, old), new) in SourceKind::ALL.into_iter().zip(before).zip(after) {
        if Arc::ptr_eq(old, new) {
            continue;
        }
        match delta::between(old, new) {
            Cow::Borrowed(delta) => {
                pods.reserve_exact(delta.pods.len());
                pods.extend_from_slice(&delta.pods);
                objects.extend(delta.objects.iter().map(|key| (source, key.clone())));
            }
            Cow::Owned(delta) => {
                pods.extend(delta.pods);
                objects.extend(delta.objects.into_iter().map(|key| (source, key)));
            }
        }
    }
    pods.sort_unstable();
    pods.dedup();
    (pods, objects)
}

/// The pod of the first source that claims the key.
fn first_claim<'a>(snapshots: &'a Snapshots, key: &PodKey) -> Option<&'a Arc<PodRecord>> {
    snapshots.iter().find_map(|snapshot| snapshot.pods.get(key))
}

/// The pods of one source that lose the key within it.
fn rivals<'a>(snapshot: &'a SourceSnapshot, key: &PodKey) -> impl Iterator<Item = &'a Arc<PodRecord>> {
    snapshot.rivals.get(key).into_iter().flat_map(|rivals| rivals.iter())
}

/// The change between two versions of one key, as in kubelet's `pkg/kubelet/config/config.go`.
fn classify(old: Option<Arc<PodRecord>>, new: Option<Arc<PodRecord>>, emit: &mut impl FnMut(PodChange)) {
    match (old, new) {
        (None, None) => {}
        (None, Some(new)) => emit(PodChange::Added(new)),
        (Some(old), None) => emit(PodChange::Removed(old)),
        (Some(old), Some(new)) if !old.is_same_incarnation(&new) => {
            emit(PodChange::Removed(old));
            emit(PodChange::Added(new));
        }
        (Some(old), Some(new)) if is_edited(&old, &new) => {
            let deleting = new.is_deleting();
            emit(if deleting { PodChange::Deleting { old, new } } else { PodChange::Updated { old, new } });
        }
        (Some(old), Some(new)) if old.pod.status != new.pod.status => emit(PodChange::Reconciled { old, new }),
        (Some(_), Some(_)) => {}
    }
}

/// Whether more than the status differs.
fn is_edited(old: &PodRecord, new: &PodRecord) -> bool {
    old.fingerprint != new.fingerprint
        || old.source != new.source
        || old.origin != new.origin
        || old.deletion() != new.deletion()
}

fn rank(change: &PodChange) -> usize {
    match change {
        PodChange::Removed(_) => 0,
        PodChange::Added(_) => 1,
        PodChange::Updated { .. } => 2,
        PodChange::Deleting { .. } => 3,
        PodChange::Reconciled { .. } => 4,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod properties;
