//! What differs between two snapshots of a source, either known from the source or found by comparison.
//!
//! A source records each key that it edits in [`Edits`], and its snapshot lists them. A reader that has the snapshot
//! before needs no comparison ([`between`]). One that missed a snapshot, because a slot keeps only the newest,
//! compares the two. Persistent maps share structure, so this too costs as much as what differs and not as much as
//! there is.

use std::borrow::Cow;
use std::sync::Arc;

use imbl::OrdSet;
use imbl::ordmap::DiffItem;

use super::SourceSnapshot;
use limpet_model::object::ObjectKey;
use limpet_model::pod::PodKey;

/// How many keys a snapshot lists, about 32 KiB. Beyond that, readers compare.
const MAX_KEYS: usize = 1_024;

/// What differs from the snapshot before. A key may be listed although its entry is equal to the one before.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Delta {
    /// Keys of pods, and of pods that lose within the source.
    pub pods: Vec<PodKey>,
    /// Keys of ConfigMaps and Secrets.
    pub objects: Vec<ObjectKey>,
    /// Files and URLs whose rejection is new, changed or over.
    pub rejected: Vec<Arc<str>>,
}

/// The place of a snapshot in the sequence of its source, and what it changed.
#[derive(Debug, Clone)]
pub struct Revision {
    /// Identifies the source. A source that starts again has another one.
    lineage: Arc<()>,
    number: u64,
    delta: Arc<Delta>,
}

impl Revision {
    fn follows(&self, before: &Self) -> bool {
        Arc::ptr_eq(&self.lineage, &before.lineage) && self.number == before.number + 1
    }
}

/// Collects what a source edits until its next snapshot.
#[derive(Debug, Default)]
pub struct Edits {
    lineage: Arc<()>,
    number: u64,
    delta: Delta,
}

impl Edits {
    /// Records that a pod, or the pods that lose its key, changed.
    pub fn pod(&mut self, key: PodKey) {
        // Usually only one pod changes. The slot then has room for one key, instead of the four of a growing list.
        if self.delta.pods.is_empty() {
            self.delta.pods.reserve_exact(1);
        }
        self.delta.pods.push(key);
    }

    /// Records that an object changed.
    pub fn object(&mut self, key: ObjectKey) {
        self.delta.objects.push(key);
    }

    /// Records that a rejection changed.
    pub fn rejection(&mut self, origin: Arc<str>) {
        self.delta.rejected.push(origin);
    }

    /// The revision of the next snapshot, which has all edits recorded since the last one. `None` if they are too
    /// many to list.
    pub fn next_revision(&mut self) -> Option<Revision> {
        self.number += 1;
        let delta = std::mem::take(&mut self.delta);
        let Delta { pods, objects, rejected } = &delta;
        let named = pods.len() + objects.len() + rejected.len() <= MAX_KEYS;
        let lineage = Arc::clone(&self.lineage);
        named.then(|| Revision { lineage, number: self.number, delta: Arc::new(delta) })
    }
}

/// What differs between two snapshots of one source.
pub fn between<'a>(before: &SourceSnapshot, after: &'a SourceSnapshot) -> Cow<'a, Delta> {
    match (&before.revision, &after.revision) {
        (Some(before), Some(after)) if after.follows(before) => Cow::Borrowed(&after.delta),
        _ => Cow::Owned(compare(before, after)),
    }
}

/// The same by comparison, in the order of the keys.
pub fn compare(before: &SourceSnapshot, after: &SourceSnapshot) -> Delta {
    let mut pods: Vec<PodKey> = before.pods.diff(&after.pods).map(|item| key_of(&item).clone()).collect();
    let only_pods = pods.len();
    pods.extend(before.rivals.diff(&after.rivals).map(|item| key_of(&item).clone()));
    if pods.len() > only_pods {
        pods.sort_unstable();
        pods.dedup();
    }
    let mut objects: Vec<ObjectKey> = before.objects.diff(&after.objects).map(|item| key_of(&item).clone()).collect();
    let (none, mut absent) = (OrdSet::new(), [&before.absent, &after.absent].map(Option::as_ref));
    let [was, is] = absent.each_mut().map(|set| set.unwrap_or(&none));
    objects.extend(was.iter().filter(|key| !is.contains(*key)).cloned());
    objects.extend(is.iter().filter(|key| !was.contains(*key)).cloned());
    objects.extend(after.incarnations.replaced(&before.incarnations).cloned());
    let rejected = before.rejected.diff(&after.rejected).map(|item| key_of(&item).clone());
    Delta { pods, objects, rejected: rejected.collect() }
}

fn key_of<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> &'a K {
    match item {
        DiffItem::Add(key, _) | DiffItem::Remove(key, _) | DiffItem::Update { new: (key, _), .. } => key,
    }
}

#[cfg(test)]
mod tests;
