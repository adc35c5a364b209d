//! The merge itself, pure: which keys differ since the last time, who wins them, what that means.
//!
//! Persistent maps share structure, so two snapshots are compared by pointer and only what changed is looked at.
//! Who runs follows from the snapshots alone, never from their order in time: of a key that several sources claim
//! the first source's pod, and of a UID that several such pods have the first source's, then the first key's.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use imbl::ordmap::DiffItem;

use super::reference_index::ReferenceIndex;
use super::{DesiredPods, Duplicate, PodChange};
use crate::source::Snapshots;
use crate::source::SourceSnapshot;
use limpet_model::object::ObjectKey;
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use limpet_model::source::SourceKind;

/// The merged state and the snapshots it was made of.
#[derive(Debug, Default)]
pub struct MergeTable {
    absorbed: Snapshots,
    desired: DesiredPods,
    /// The keys whose first claim has that UID: more than one only where manifests write UIDs. Unordered.
    holders: HashMap<PodUid, Vec<PodKey>>,
    references: ReferenceIndex,
}

/// What one merge brought.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Removed, Added, Updated, Deleting, Reconciled; by key within each.
    pub changes: Vec<PodChange>,
    /// Pods that refer to an object which came, changed or went.
    pub objects_changed: BTreeSet<PodKey>,
    /// A source spoke for the first time.
    pub readiness_changed: bool,
    /// Keys of which others lose, or do not any more, than before.
    pub contested: Vec<PodKey>,
}

impl Outcome {
    /// Whether the merged state is what it was.
    pub fn is_empty(&self) -> bool {
        let quiet = self.changes.is_empty() && self.contested.is_empty() && self.objects_changed.is_empty();
        quiet && !self.readiness_changed
    }
}

impl MergeTable {
    /// The merged state.
    pub fn desired(&self) -> &DesiredPods {
        &self.desired
    }

    /// Takes the sources' newest snapshots in and says what changed. Cost grows with what changed.
    pub fn absorb(&mut self, snapshots: Snapshots) -> Outcome {
        let mut touched = touched_keys(&self.absorbed, &snapshots);
        let objects = touched_objects(&self.absorbed, &snapshots);
        let ready = std::array::from_fn(|index| snapshots[index].ready);
        let readiness_changed = ready != self.desired.ready;
        self.desired.ready = ready;
        self.desired.objects = std::array::from_fn(|index| snapshots[index].objects.clone());
        let before = std::mem::replace(&mut self.absorbed, snapshots);
        self.hold(&before, &mut touched);

        let mut outcome = Outcome { readiness_changed, ..Outcome::default() };
        let mut changes: [Vec<PodChange>; 5] = Default::default();
        for key in touched {
            let claim = self.standing(&key);
            if self.settle_duplicates(&key, claim.duplicates) {
                outcome.contested.push(key.clone());
            }
            self.settle_pod(key, claim.winner, &mut |change| changes[rank(&change)].push(change));
        }
        outcome.changes.reserve_exact(changes.iter().map(Vec::len).sum());
        outcome.changes.extend(changes.into_iter().flatten());
        for (source, object) in objects {
            outcome.objects_changed.extend(self.references.pods(source, object).cloned());
        }
        outcome
    }

    /// Brings the holders of UIDs up to date, and adds to `touched` the keys that gain or lose by it.
    fn hold(&mut self, before: &Snapshots, touched: &mut Vec<PodKey>) {
        let mut drawn_in = Vec::new();
        for key in &*touched {
            let (old, new) = (first_claim(before, key), first_claim(&self.absorbed, key));
            if let Some(old) = old
                && new.is_none_or(|new| new.uid != old.uid)
                && let Some(keys) = self.holders.get_mut(&old.uid)
            {
                keys.retain(|held| held != key);
                drawn_in.extend_from_slice(keys);
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
                    // An edit of one changes what is said of the others.
                    drawn_in.extend(keys.iter().filter(|held| *held != key).cloned());
                }
                None => {
                    self.holders.insert(new.uid.clone(), vec![key.clone()]);
                }
            }
        }
        if !drawn_in.is_empty() {
            touched.append(&mut drawn_in);
            touched.sort_unstable();
            touched.dedup();
        }
    }

    /// Who runs under the key, and who of this key or UID does not.
    fn standing(&self, key: &PodKey) -> Standing {
        let mut claims = self.absorbed.iter().filter_map(|snapshot| Some((snapshot, snapshot.pods.get(key)?)));
        let Some((snapshot, first)) = claims.next() else { return Standing::default() };
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
        Standing { winner, duplicates }
    }

    /// Whether others lose than before.
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

    /// Puts the winner in its place and tells the one or two changes that brings.
    fn settle_pod(&mut self, key: PodKey, winner: Option<Arc<PodRecord>>, tell: &mut impl FnMut(PodChange)) {
        let before = match &winner {
            Some(winner) if self.desired.pods.get(&key).is_some_and(|now| Arc::ptr_eq(now, winner)) => return,
            Some(winner) => self.desired.pods.insert(key, Arc::clone(winner)),
            None => self.desired.pods.remove(&key),
        };
        self.references.replace(before.as_deref(), winner.as_deref());
        classify(before, winner, tell);
    }
}

/// What the snapshots say of one key.
#[derive(Debug, Default)]
struct Standing {
    winner: Option<Arc<PodRecord>>,
    duplicates: Vec<Duplicate>,
}

/// Every object that came, changed or went, by source.
fn touched_objects(before: &Snapshots, after: &Snapshots) -> Vec<(SourceKind, ObjectKey)> {
    let mut touched = Vec::new();
    for ((source, before), after) in SourceKind::ALL.into_iter().zip(before).zip(after) {
        let keys = before.objects.diff(&after.objects).map(|difference| match difference {
            DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => key,
        });
        touched.extend(keys.map(|key| (source, key.clone())));
    }
    touched
}

/// The keys of which any source says something else than before, in order.
fn touched_keys(before: &Snapshots, after: &Snapshots) -> Vec<PodKey> {
    let mut touched = Vec::new();
    for (old, new) in before.iter().zip(after) {
        if Arc::ptr_eq(old, new) {
            continue;
        }
        touched.extend(old.pods.diff(&new.pods).map(|item| key_of(&item).clone()));
        touched.extend(old.rivals.diff(&new.rivals).map(|item| key_of(&item).clone()));
    }
    touched.sort_unstable();
    touched.dedup();
    touched
}

fn key_of<'a, V>(item: &DiffItem<'a, 'a, PodKey, V>) -> &'a PodKey {
    match item {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => key,
    }
}

/// The pod of the first source that claims the key.
fn first_claim<'a>(snapshots: &'a Snapshots, key: &PodKey) -> Option<&'a Arc<PodRecord>> {
    snapshots.iter().find_map(|snapshot| snapshot.pods.get(key))
}

/// The pods of one source that lose the key within it.
fn rivals<'a>(snapshot: &'a SourceSnapshot, key: &PodKey) -> impl Iterator<Item = &'a Arc<PodRecord>> {
    snapshot.rivals.get(key).into_iter().flat_map(|rivals| rivals.iter())
}

/// The change between two versions of one key (kubelet-semantics 1.2, O3 to O7 and O14).
fn classify(old: Option<Arc<PodRecord>>, new: Option<Arc<PodRecord>>, tell: &mut impl FnMut(PodChange)) {
    match (old, new) {
        (None, None) => {}
        (None, Some(new)) => tell(PodChange::Added(new)),
        (Some(old), None) => tell(PodChange::Removed(old)),
        (Some(old), Some(new)) if !old.is_same_incarnation(&new) => {
            tell(PodChange::Removed(old));
            tell(PodChange::Added(new));
        }
        (Some(old), Some(new)) if is_edited(&old, &new) => {
            let deleting = new.is_deleting();
            tell(if deleting { PodChange::Deleting { old, new } } else { PodChange::Updated { old, new } });
        }
        (Some(old), Some(new)) if old.pod.status != new.pod.status => tell(PodChange::Reconciled { old, new }),
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
#[path = "table_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "table_properties.rs"]
mod properties;
