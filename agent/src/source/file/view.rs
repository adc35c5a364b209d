//! What the files make together: which version of each file counts, who owns a key that two claim, and the
//! snapshot of it. Pure: no file is opened here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::Manifest;
use crate::pod::{Fault, PodKey, PodRecord, Severity};
use crate::source::{Health, Rejection, SourceSnapshot};
use crate::store::Manifests;

/// One file as it counts now.
#[derive(Debug, Default)]
struct Entry {
    /// Its pods, last good versions of broken ones included.
    pods: BTreeMap<PodKey, Arc<PodRecord>>,
    /// Why it, or a document of it, was refused; empty for a good file.
    faults: Vec<Fault>,
    /// The pods of it that are last good versions.
    kept: Vec<PodKey>,
    /// Its name is gone from the directory, not yet confirmed: it yields its keys to files that are there.
    vanishing: bool,
}

/// All files together.
#[derive(Debug, Default)]
pub(super) struct View {
    files: BTreeMap<Arc<str>, Entry>,
    claims: BTreeMap<PodKey, BTreeSet<Arc<str>>>,
    snapshot: SourceSnapshot,
    /// Keys and files whose standing has to be judged again before the next snapshot.
    touched_keys: BTreeSet<PodKey>,
    touched_files: BTreeSet<Arc<str>>,
}

impl View {
    /// Takes what was read from the file `name`. Of a document that was refused, the pod it was before is kept, and of
    /// one that cannot be told, every pod that has no good version now; `restored` gives those of a file not seen since
    /// the start.
    pub(super) fn accept(&mut self, name: &Arc<str>, read: Manifest, restored: impl FnOnce() -> Vec<Arc<PodRecord>>) {
        let previous = match self.files.get(name) {
            Some(entry) => entry.pods.clone(),
            None => by_key(restored()),
        };
        let faults: Vec<Fault> = read.faults;
        let refused = faults.iter().any(|fault| fault.severity == Severity::Error);
        let mut pods = BTreeMap::new();
        for pod in read.pods {
            // The first of two in one file counts, and a record that is known already stays.
            let known = previous.get(&pod.key).filter(|before| same_version(before, &pod)).cloned();
            pods.entry(pod.key.clone()).or_insert_with(|| known.unwrap_or(pod));
        }
        // A document that is gone ends its pod even when another one is broken, unless it may be the broken one.
        let stays = |key: &PodKey| !pods.contains_key(key) && (read.unknown_refused || read.refused.contains(key));
        let stay: Vec<_> = previous.into_iter().filter(|(key, _)| stays(key)).collect();
        let kept = stay.iter().map(|(key, _)| key.clone()).collect();
        pods.extend(stay);
        let faults = if refused { faults } else { Vec::new() };
        self.replace(name, Some(Entry { pods, faults, kept, vanishing: false }));
    }

    /// Takes the last good version of a file that cannot be looked at.
    pub(super) fn restore(&mut self, name: &Arc<str>, pods: Vec<Arc<PodRecord>>) {
        self.replace(name, Some(Entry { pods: by_key(pods), ..Entry::default() }));
    }

    /// Marks a file whose name is gone, or is back.
    pub(super) fn set_vanishing(&mut self, name: &Arc<str>, vanishing: bool) {
        if let Some(entry) = self.files.get_mut(name).filter(|entry| entry.vanishing != vanishing) {
            entry.vanishing = vanishing;
            self.touched_keys.extend(entry.pods.keys().cloned());
        }
    }

    /// The file is gone for good.
    pub(super) fn remove(&mut self, name: &Arc<str>) {
        self.replace(name, None);
    }

    /// Names of all files that count.
    pub(super) fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.files.keys()
    }

    /// Whether the file counts.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// What has to survive of the file; `None`: nothing.
    pub(super) fn manifests(&self, name: &str) -> Option<Manifests> {
        let pods = &self.files.get(name)?.pods;
        (!pods.is_empty()).then(|| pods.values().map(|pod| Arc::clone(&pod.manifest)).collect())
    }

    /// How many pods there are now.
    pub(super) fn pods(&self) -> usize {
        self.claims.len()
    }

    /// The snapshot after all that was taken; `None` when it is the same as before.
    pub(super) fn settle(&mut self, ready: bool, health: Health) -> Option<Arc<SourceSnapshot>> {
        let mut changed = self.snapshot.ready != ready || self.snapshot.health != health;
        self.snapshot.ready = ready;
        self.snapshot.health = health;
        for key in std::mem::take(&mut self.touched_keys) {
            changed |= self.settle_key(key);
        }
        for name in std::mem::take(&mut self.touched_files) {
            changed |= self.settle_file(name);
        }
        changed.then(|| Arc::new(self.snapshot.clone()))
    }

    fn replace(&mut self, name: &Arc<str>, entry: Option<Entry>) {
        self.touched_files.insert(Arc::clone(name));
        let old = match entry {
            Some(entry) => {
                for key in entry.pods.keys() {
                    self.claims.entry(key.clone()).or_default().insert(Arc::clone(name));
                    self.touched_keys.insert(key.clone());
                }
                self.files.insert(Arc::clone(name), entry)
            }
            None => self.files.remove(name),
        };
        for key in old.into_iter().flat_map(|entry| entry.pods.into_keys()) {
            let still = self.files.get(name).is_some_and(|entry| entry.pods.contains_key(&key));
            if !still && let Some(claimants) = self.claims.get_mut(&key) {
                claimants.remove(name);
            }
            self.touched_keys.insert(key);
        }
    }

    /// The first in byte order of the file name, those that are there before those that vanish.
    fn owner(&self, key: &PodKey) -> Option<&Arc<str>> {
        let claimants = self.claims.get(key)?;
        claimants.iter().min_by_key(|name| (self.is_vanishing(name), *name))
    }

    fn settle_key(&mut self, key: PodKey) -> bool {
        let owner = self.owner(&key);
        let record = owner.and_then(|name| self.claim(name, &key)).map(Arc::clone);
        let claimants = self.claims.get(&key).into_iter().flatten();
        let rivals = claimants.clone().filter(|name| Some(*name) != owner && !self.is_vanishing(name));
        let rivals: Vec<Arc<PodRecord>> = rivals.filter_map(|name| self.claim(name, &key)).map(Arc::clone).collect();
        self.touched_files.extend(claimants.cloned());
        let contested = self.settle_rivals(&key, rivals);
        match record {
            Some(record) => {
                if self.snapshot.pods.get(&key).is_some_and(|now| Arc::ptr_eq(now, &record)) {
                    return contested;
                }
                self.snapshot.pods.insert(key, record);
                true
            }
            None => {
                self.claims.remove(&key);
                self.snapshot.pods.remove(&key).is_some() || contested
            }
        }
    }

    fn settle_rivals(&mut self, key: &PodKey, rivals: Vec<Arc<PodRecord>>) -> bool {
        let known = &mut self.snapshot.rivals;
        if rivals.is_empty() {
            return known.remove(key).is_some();
        }
        let same =
            |now: &Arc<[_]>| now.len() == rivals.len() && now.iter().zip(&rivals).all(|(a, b)| Arc::ptr_eq(a, b));
        if known.get(key).is_some_and(same) {
            return false;
        }
        known.insert(key.clone(), rivals.into());
        true
    }

    /// What the file says of the key.
    fn claim(&self, name: &str, key: &PodKey) -> Option<&Arc<PodRecord>> {
        self.files.get(name)?.pods.get(key)
    }

    fn is_vanishing(&self, name: &str) -> bool {
        self.files.get(name).is_none_or(|entry| entry.vanishing)
    }

    fn settle_file(&mut self, name: Arc<str>) -> bool {
        let rejection = self.files.get(&name).and_then(|entry| self.rejection(&name, entry));
        match rejection {
            Some(rejection) => {
                if self.snapshot.rejected.get(&name).is_some_and(|now| **now == rejection) {
                    return false;
                }
                self.snapshot.rejected.insert(name, Arc::new(rejection));
                true
            }
            None => self.snapshot.rejected.remove(&name).is_some(),
        }
    }

    fn rejection(&self, name: &Arc<str>, entry: &Entry) -> Option<Rejection> {
        let mut faults = entry.faults.clone();
        for pod in entry.pods.values() {
            if let Some(owner) = self.owner(&pod.key).filter(|owner| *owner != name && !entry.vanishing) {
                let message = format!("pod {} is defined in {owner} already, which comes first", pod.key);
                let mut fault = Fault::error("metadata.name", message).with_remedy("rename or remove one of them");
                fault.origin = Arc::clone(name);
                faults.push(fault);
            }
        }
        (!faults.is_empty()).then(|| Rejection { origin: Arc::clone(name), faults, kept: entry.kept.clone() })
    }
}

fn by_key(pods: Vec<Arc<PodRecord>>) -> BTreeMap<PodKey, Arc<PodRecord>> {
    pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect()
}

/// Equal as far as anyone downstream can tell: then the record that is known already stays, and nothing changes.
fn same_version(a: &PodRecord, b: &PodRecord) -> bool {
    a.key == b.key && a.uid == b.uid && a.fingerprint == b.fingerprint && a.origin == b.origin && a.pod == b.pod
}

#[cfg(test)]
mod tests;
