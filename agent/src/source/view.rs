//! What the files of a source make together: which version of each counts, who owns a key that two claim, and the
//! snapshot of it. Pure: no file is opened here. A URL's answer is one file, and so is each push.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::pod::{Fault, Manifest, PodKey, PodRecord, Severity};
use crate::source::{Health, Rejection, SourceSnapshot};
use crate::store::Manifests;

/// One file as it counts now.
#[derive(Debug, Default)]
struct Entry {
    /// Its pods, last good versions of broken ones included.
    pods: Vec<Arc<PodRecord>>,
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
    /// Takes what was read from the file `name`. Where it holds errors, the pods it had before and has no good
    /// version of now are kept; `restored` gives those of a file not seen since the start.
    pub(super) fn accept(&mut self, name: &Arc<str>, read: Manifest, restored: impl FnOnce() -> Vec<Arc<PodRecord>>) {
        let previous = self.files.get(name).map_or_else(restored, |entry| entry.pods.clone());
        let faults: Vec<Fault> = read.faults;
        let refused = faults.iter().any(|fault| fault.severity == Severity::Error);
        let mut keys = BTreeSet::new();
        let mut pods: Vec<Arc<PodRecord>> = Vec::with_capacity(read.pods.len());
        for pod in read.pods {
            if keys.insert(pod.key.clone()) {
                pods.push(previous.iter().find(|before| same_version(before, &pod)).map_or(pod, Arc::clone));
            }
        }
        let mut kept = Vec::new();
        if refused {
            for pod in previous.into_iter().filter(|pod| !keys.contains(&pod.key)) {
                kept.push(pod.key.clone());
                pods.push(pod);
            }
        }
        let faults = if refused { faults } else { Vec::new() };
        self.replace(name, Some(Entry { pods, faults, kept, vanishing: false }));
    }

    /// Takes the last good version of a file that cannot be looked at.
    pub(super) fn restore(&mut self, name: &Arc<str>, pods: Vec<Arc<PodRecord>>) {
        self.replace(name, Some(Entry { pods, ..Entry::default() }));
    }

    /// Marks a file whose name is gone, or is back.
    pub(super) fn set_vanishing(&mut self, name: &Arc<str>, vanishing: bool) {
        if let Some(entry) = self.files.get_mut(name).filter(|entry| entry.vanishing != vanishing) {
            entry.vanishing = vanishing;
            self.touched_keys.extend(entry.pods.iter().map(|pod| pod.key.clone()));
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
        (!pods.is_empty()).then(|| pods.iter().map(|pod| Arc::clone(&pod.manifest)).collect())
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
                for pod in &entry.pods {
                    self.claims.entry(pod.key.clone()).or_default().insert(Arc::clone(name));
                    self.touched_keys.insert(pod.key.clone());
                }
                self.files.insert(Arc::clone(name), entry)
            }
            None => self.files.remove(name),
        };
        for pod in old.into_iter().flat_map(|entry| entry.pods) {
            let still = self.files.get(name).is_some_and(|entry| entry.pods.iter().any(|now| now.key == pod.key));
            if !still && let Some(claimants) = self.claims.get_mut(&pod.key) {
                claimants.remove(name);
            }
            self.touched_keys.insert(pod.key.clone());
        }
    }

    /// The first in byte order of the file name, those that are there before those that vanish.
    fn owner(&self, key: &PodKey) -> Option<&Arc<str>> {
        let claimants = self.claims.get(key)?;
        claimants.iter().min_by_key(|name| (self.files.get(*name).is_none_or(|entry| entry.vanishing), *name))
    }

    fn settle_key(&mut self, key: PodKey) -> bool {
        let owner = self.owner(&key).and_then(|name| self.files.get(name));
        let record = owner.and_then(|entry| entry.pods.iter().find(|pod| pod.key == key)).map(Arc::clone);
        self.touched_files.extend(self.claims.get(&key).into_iter().flatten().cloned());
        match record {
            Some(record) => {
                if self.snapshot.pods.get(&key).is_some_and(|now| Arc::ptr_eq(now, &record)) {
                    return false;
                }
                self.snapshot.pods.insert(key, record);
                true
            }
            None => {
                self.claims.remove(&key);
                self.snapshot.pods.remove(&key).is_some()
            }
        }
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
        for pod in &entry.pods {
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

/// Equal as far as anyone downstream can tell: then the record that is known already stays, and nothing changes.
fn same_version(a: &PodRecord, b: &PodRecord) -> bool {
    a.key == b.key && a.uid == b.uid && a.fingerprint == b.fingerprint && a.origin == b.origin && a.pod == b.pod
}

#[cfg(test)]
mod tests;
