//! Combines the files of a source into its snapshot: which version of each file is in effect, and which file owns a
//! key that two claim. Pure: no file is opened here. A URL's response counts as one file, and so does each push.

mod claim;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdMap;

use self::claim::{Claim, Claims};
use super::delta::Edits;
use crate::last_good::Manifests;
use crate::source::{Health, Rejection, SourceSnapshot};
use limpet_model::manifest::Manifest;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{Fault, FaultList, PodKey, PodRecord, Severity};

/// The pods and objects of a file, including last good versions.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    pub pods: BTreeMap<PodKey, Arc<PodRecord>>,
    /// Its ConfigMaps and Secrets.
    pub objects: BTreeMap<ObjectKey, Arc<ObjectRecord>>,
}

impl Contents {
    fn claims(&self) -> impl Iterator<Item = Claim> {
        let objects = self.objects.keys().cloned().map(Claim::Object);
        self.pods.keys().cloned().map(Claim::Pod).chain(objects)
    }

    /// Its manifests, to store as last good.
    pub fn manifests(&self) -> Manifests {
        let pods = self.pods.values().map(|pod| Arc::clone(&pod.manifest));
        pods.chain(self.objects.values().map(|object| object.manifest())).collect()
    }

    /// Whether there is neither a pod nor an object.
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.objects.is_empty()
    }

    /// Adds what `further` has and `self` lacks.
    pub fn add(&mut self, further: Self) {
        for (key, pod) in further.pods {
            self.pods.entry(key).or_insert(pod);
        }
        for (key, object) in further.objects {
            self.objects.entry(key).or_insert(object);
        }
    }

    fn contains(&self, claim: &Claim) -> bool {
        match claim {
            Claim::Pod(key) => self.pods.contains_key(key),
            Claim::Object(key) => self.objects.contains_key(key),
        }
    }
}

/// The effective state of one file.
#[derive(Debug, Default)]
struct FileEntry {
    /// Its contents, with the last good versions of broken documents. They are shared with the code that saves them.
    contents: Arc<Contents>,
    /// Why it, or a document of it, was rejected; empty for a good file.
    faults: Vec<Fault>,
    /// Its pods that are last good versions.
    kept: Vec<PodKey>,
    /// Whether its name is missing from the directory, which is not yet confirmed. It yields its keys to existing
    /// files.
    vanishing: bool,
}

/// All files of one source.
#[derive(Debug, Default)]
pub struct View {
    files: BTreeMap<Arc<str>, FileEntry>,
    claims: Claims,
    snapshot: SourceSnapshot,
    /// What differs from the last settled snapshot.
    edits: Edits,
    /// Keys and files to re-evaluate before the next snapshot.
    touched_keys: BTreeSet<Claim>,
    touched_files: BTreeSet<Arc<str>>,
}

impl View {
    /// Applies what was read from the file `name`. A rejected document keeps its previous version. If it cannot be
    /// identified, everything that has no good version now is kept. `restored` returns the last good version of a
    /// file that was not seen since the start.
    pub fn accept(&mut self, name: &Arc<str>, read: Manifest, restored: impl FnOnce() -> Contents) {
        let is_known = self.files.contains_key(name);
        let previous = self.files.get(name).map_or_else(restored, |entry| Contents::clone(&entry.contents));
        let held: Vec<Claim> = if is_known { Vec::new() } else { previous.claims().collect() };
        let mut faults: Vec<Fault> = read.faults;
        let mut contents = Contents::default();
        for object in read.objects {
            let settled = unless_immutable(object, &previous, name, &mut faults);
            contents.objects.insert(settled.key.clone(), settled);
        }
        for pod in read.pods {
            // The first of two pods with one key wins, and an unchanged record is reused.
            let known = previous.pods.get(&pod.key).filter(|before| same_version(before, &pod)).cloned();
            contents.pods.entry(pod.key.clone()).or_insert_with(|| known.unwrap_or(pod));
        }
        let refused = faults.iter().any(|fault| fault.severity == Severity::Error);
        // A missing document removes its pod even if another one is broken, unless it may be the broken one.
        let mut kept = Vec::new();
        for (key, pod) in previous.pods {
            if read.unknown_pod_refused || read.refused.contains(&key) {
                contents.pods.entry(key).or_insert_with_key(|key| {
                    kept.push(key.clone());
                    pod
                });
            }
        }
        for (key, object) in previous.objects {
            if read.unknown_object_refused || read.refused_objects.contains(&key) {
                contents.objects.entry(key).or_insert(object);
            }
        }
        let faults = if refused { faults } else { Vec::new() };
        self.replace(name, Some(FileEntry { contents: Arc::new(contents), faults, kept, vanishing: false }));
        self.claims.hold(name, held);
    }

    /// Rebuilds the view that published `snapshot`, as far as possible.
    pub fn from_snapshot(snapshot: &SourceSnapshot) -> Self {
        let mut files: BTreeMap<Arc<str>, Contents> = BTreeMap::new();
        for pod in snapshot.pods.values().chain(snapshot.rivals.values().flat_map(|rivals| rivals.iter())) {
            let contents = files.entry(Arc::clone(&pod.origin)).or_default();
            contents.pods.insert(pod.key.clone(), Arc::clone(pod));
        }
        for object in snapshot.objects.values() {
            let contents = files.entry(Arc::clone(&object.origin)).or_default();
            contents.objects.insert(object.key.clone(), Arc::clone(object));
        }
        let mut view = Self::default();
        view.snapshot.incarnations = snapshot.incarnations.clone();
        for (name, contents) in files {
            view.restore(&name, Arc::new(contents));
        }
        for pod in snapshot.pods.values() {
            view.claims.settle(&Claim::Pod(pod.key.clone()), Some(&pod.origin));
        }
        for object in snapshot.objects.values() {
            view.claims.settle(&Claim::Object(object.key.clone()), Some(&object.origin));
        }
        view
    }

    /// Removes what `read` names, accepted or rejected, from the files that have it, and returns it.
    pub fn take_out(&mut self, read: &Manifest) -> Contents {
        let pods: BTreeSet<&PodKey> = read.pods.iter().map(|pod| &pod.key).chain(&read.refused).collect();
        let objects = read.objects.iter().map(|object| &object.key).chain(&read.refused_objects);
        let objects: BTreeSet<&ObjectKey> = objects.collect();
        let mut taken = Contents::default();
        for name in self.files.keys().cloned().collect::<Vec<_>>() {
            let mut contents = Contents::clone(&self.files[&name].contents);
            let out = Contents {
                pods: contents.pods.extract_if(.., |key, _| pods.contains(key)).collect(),
                objects: contents.objects.extract_if(.., |key, _| objects.contains(key)).collect(),
            };
            if out.is_empty() {
                continue;
            }
            taken.add(out);
            if contents.is_empty() {
                self.remove(&name);
            } else {
                self.restore(&name, Arc::new(contents));
            }
        }
        taken
    }

    /// Applies the last good version of a file that cannot be read.
    pub fn restore(&mut self, name: &Arc<str>, contents: Arc<Contents>) {
        let held: Vec<Claim> = contents.claims().collect();
        self.replace(name, Some(FileEntry { contents, ..FileEntry::default() }));
        self.claims.hold(name, held);
    }

    /// Marks a file as missing from the directory, or as back.
    pub fn set_vanishing(&mut self, name: &Arc<str>, vanishing: bool) {
        if let Some(entry) = self.files.get_mut(name).filter(|entry| entry.vanishing != vanishing) {
            entry.vanishing = vanishing;
            self.touched_keys.extend(entry.contents.claims());
        }
    }

    /// Removes a file for good.
    pub fn remove(&mut self, name: &Arc<str>) {
        self.replace(name, None);
    }

    /// Names of all files in effect.
    pub fn names(&self) -> impl Iterator<Item = &Arc<str>> {
        self.files.keys()
    }

    /// Whether the file is in effect.
    pub fn contains(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    /// The contents of a file; `None` if it has none.
    pub fn contents(&self, name: &str) -> Option<Arc<Contents>> {
        let contents = &self.files.get(name)?.contents;
        (!contents.is_empty()).then(|| Arc::clone(contents))
    }

    /// The part of a file that is in effect, without what other files define instead; `None` if there is none.
    pub fn effective(&self, name: &str) -> Option<Arc<Contents>> {
        let contents = self.contents(name)?;
        let is_effective = |claim: Claim| self.owner(&claim).is_some_and(|owner| **owner == *name);
        if contents.claims().all(is_effective) {
            return Some(contents);
        }
        let mut rest = Contents::clone(&contents);
        rest.pods.retain(|key, _| is_effective(Claim::Pod(key.clone())));
        rest.objects.retain(|key, _| is_effective(Claim::Object(key.clone())));
        (!rest.is_empty()).then(|| Arc::new(rest))
    }

    /// The files that lost a key to another one, or got it back, since the last call.
    pub fn take_resettled(&mut self) -> BTreeSet<Arc<str>> {
        self.claims.take_resettled()
    }

    /// How many pods there are now.
    pub fn pods(&self) -> usize {
        self.claims.keys().filter(|claim| matches!(claim, Claim::Pod(_))).count()
    }

    /// Whether it has neither pods nor objects now.
    pub fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// The snapshot after all updates; `None` if it is unchanged.
    pub fn finish_update(&mut self, ready: bool, health: Health) -> Option<Arc<SourceSnapshot>> {
        let mut changed = self.snapshot.ready != ready || self.snapshot.health != health;
        self.snapshot.ready = ready;
        self.snapshot.health = health;
        for key in std::mem::take(&mut self.touched_keys) {
            changed |= self.settle_key(key);
        }
        for name in std::mem::take(&mut self.touched_files) {
            changed |= self.settle_file(name);
        }
        changed.then(|| {
            self.snapshot.revision = self.edits.next_revision();
            Arc::new(self.snapshot.clone())
        })
    }

    /// The last settled snapshot.
    pub fn snapshot(&self) -> Arc<SourceSnapshot> {
        Arc::new(self.snapshot.clone())
    }

    fn replace(&mut self, name: &Arc<str>, entry: Option<FileEntry>) {
        self.touched_files.insert(Arc::clone(name));
        let old = match entry {
            Some(entry) => {
                for claim in entry.contents.claims() {
                    self.claims.add(claim.clone(), name);
                    self.touched_keys.insert(claim);
                }
                self.files.insert(Arc::clone(name), entry)
            }
            None => self.files.remove(name),
        };
        for claim in old.iter().flat_map(|entry| entry.contents.claims()) {
            let still = self.files.get(name).is_some_and(|entry| entry.contents.contains(&claim));
            if !still {
                self.claims.remove(&claim, name);
            }
            self.touched_keys.insert(claim);
        }
    }

    /// The file that defines the key.
    fn owner(&self, claim: &Claim) -> Option<&Arc<str>> {
        self.claims.owner(claim, |name| self.is_vanishing(name))
    }

    fn settle_key(&mut self, claim: Claim) -> bool {
        self.touched_files.extend(self.claims.claimants(&claim).cloned());
        let changed = match &claim {
            Claim::Pod(key) => self.settle_pod(&claim, key),
            Claim::Object(key) => {
                let owner = self.owner(&claim).and_then(|name| self.files.get(name));
                let object = owner.and_then(|entry| entry.contents.objects.get(key)).map(Arc::clone);
                self.snapshot.incarnations.note(key, object.is_some());
                publish(&mut self.snapshot.objects, key, object)
            }
        };
        match &claim {
            Claim::Pod(key) if changed => self.edits.pod(key.clone()),
            Claim::Object(key) if changed => self.edits.object(key.clone()),
            _ => {}
        }
        let owner = self.owner(&claim).cloned();
        self.claims.settle(&claim, owner.as_ref());
        changed
    }

    fn settle_pod(&mut self, claim: &Claim, key: &PodKey) -> bool {
        let owner = self.owner(claim);
        let pod = owner.and_then(|name| self.pod(name, key)).map(Arc::clone);
        let claimants = self.claims.claimants(claim);
        let rivals = claimants.filter(|name| Some(*name) != owner && !self.is_vanishing(name));
        let rivals: Vec<Arc<PodRecord>> = rivals.filter_map(|name| self.pod(name, key)).map(Arc::clone).collect();
        let contested = self.settle_rivals(key, rivals);
        publish(&mut self.snapshot.pods, key, pod) || contested
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

    /// The pod as the file defines it.
    fn pod(&self, name: &str, key: &PodKey) -> Option<&Arc<PodRecord>> {
        self.files.get(name)?.contents.pods.get(key)
    }

    fn is_vanishing(&self, name: &str) -> bool {
        self.files.get(name).is_none_or(|entry| entry.vanishing)
    }

    fn settle_file(&mut self, name: Arc<str>) -> bool {
        let rejection = self.files.get(&name).and_then(|entry| self.rejection(&name, entry));
        let known = self.snapshot.rejected.get(&name);
        if known.map(|known| &**known) == rejection.as_ref() {
            return false;
        }
        match rejection {
            Some(rejection) => self.snapshot.rejected.insert(Arc::clone(&name), Arc::new(rejection)),
            None => self.snapshot.rejected.remove(&name),
        };
        self.edits.rejection(name);
        true
    }

    fn rejection(&self, name: &Arc<str>, entry: &FileEntry) -> Option<Rejection> {
        let mut rivals = FaultList::default();
        for claim in entry.contents.claims() {
            if let Some(owner) = self.owner(&claim).filter(|owner| *owner != name && !entry.vanishing) {
                let message = format!("{claim} is already defined in {owner}, which takes precedence");
                let mut fault = Fault::error("metadata.name", message).with_remedy("rename or remove one of them");
                fault.origin = Arc::clone(name);
                rivals.push(fault);
            }
        }
        let faults: Vec<Fault> = entry.faults.iter().cloned().chain(rivals.finish()).collect();
        (!faults.is_empty()).then(|| Rejection { origin: Arc::clone(name), faults, kept: entry.kept.clone() })
    }
}

/// Puts `record` into a part of the snapshot. Returns false if it is unchanged.
fn publish<K: Ord + Clone, R>(part: &mut OrdMap<K, Arc<R>>, key: &K, record: Option<Arc<R>>) -> bool {
    match record {
        Some(record) if part.get(key).is_some_and(|now| Arc::ptr_eq(now, &record)) => false,
        Some(record) => {
            part.insert(key.clone(), record);
            true
        }
        None => part.remove(key).is_some(),
    }
}

/// The object as read, or the previous record if nothing changed. An immutable object keeps its data and stays
/// immutable.
fn unless_immutable(
    object: Arc<ObjectRecord>,
    previous: &Contents,
    name: &Arc<str>,
    faults: &mut Vec<Fault>,
) -> Arc<ObjectRecord> {
    let Some(before) = previous.objects.get(&object.key) else { return object };
    if let Some(mut fault) = before.forbids(&object) {
        fault.origin = Arc::clone(name);
        faults.push(fault);
        return Arc::clone(before);
    }
    if **before == *object { Arc::clone(before) } else { object }
}

/// Whether both are equal for all consumers, so that the previous record is reused and nothing changes.
fn same_version(a: &PodRecord, b: &PodRecord) -> bool {
    a.key == b.key && a.uid == b.uid && a.fingerprint == b.fingerprint && a.origin == b.origin && a.pod == b.pod
}

#[cfg(test)]
mod tests;
