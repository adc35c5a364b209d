//! PersistentVolumeClaims that a node's own sources define: which there are, where their files are, and when they are removed.
//!
//! [`Claims`] stands between the sources' snapshots and the merge, after the controllers of workloads. In: snapshots, observed
//! pods, which claims have files. Out: the same snapshots with the directory of each claim, and orders for the disk. Pure: no
//! I/O, no clock. Without a claim there is nothing to compute.
//!
//! A claim is its source, namespace and name. It is bound from the moment that it is accepted, and its directory is made
//! when the first pod mounts it. When it is gone from its source it stays for the pods that refer to it, as by Kubernetes'
//! `kubernetes.io/pvc-protection`; when none does, its files are removed, unless it is retained. A claim that is back before that is the
//! same one. While files are removed there is no claim of that name.

mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use limpet_core::source::{Snapshots, SourceSnapshot};
use limpet_core::status::observed::ObservedPods;
use limpet_model::object::local_claim::{LocalClaim, directory};
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord, claim};
use limpet_model::pod::{PodRecord, is_terminal_phase};
use limpet_model::source::SourceKind;

use snapshot::ClaimSnapshot;

/// Identifies a claim.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClaimId {
    /// The source that has it.
    pub source: SourceKind,
    pub namespace: Arc<str>,
    pub name: Arc<str>,
}

impl ClaimId {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(ObjectKind::PersistentVolumeClaim, Arc::clone(&self.namespace), Arc::clone(&self.name))
    }
}

/// What is to be done on the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Order {
    /// For which claim.
    pub id: ClaimId,
    /// The directory of its files.
    pub directory: PathBuf,
    /// What.
    pub action: Action,
}

/// What is to be done with the files of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Note whether they are kept when the claim is gone.
    Retain(bool),
    /// Remove them.
    Remove,
}

/// A claim that has files, or may have some.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Known {
    /// Its last version, with its directory.
    record: Arc<ObjectRecord>,
    /// As its source has it.
    raw: Option<Arc<ObjectRecord>>,
    /// As on disk.
    retained: bool,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Its source has it.
    Bound,
    /// Its source has it no more, and pods refer to it.
    Ending,
    /// Its source has it no more, and its files are kept.
    Released,
    /// Its files are being removed.
    Removing,
    /// They could not be: the next start of the agent tries it again.
    Left,
}

/// The claims of a node.
#[derive(Debug)]
pub struct Claims {
    base: PathBuf,
    known: BTreeMap<ClaimId, Known>,
    /// The pods that ran when the agent started and are not observed yet; `None`: not known yet.
    adopted: Option<Vec<Arc<PodRecord>>>,
    snapshots: [ClaimSnapshot; SourceKind::ALL.len()],
}

impl Claims {
    /// The claims whose files are below `base`. `directories`: those that have files, and whether these are kept when the claim is gone.
    pub fn new(base: PathBuf, directories: impl IntoIterator<Item = (ClaimId, bool)>) -> Self {
        let known = |(id, retained): (ClaimId, bool)| {
            let claim = LocalClaim { retained, ..LocalClaim::default() };
            let path = directory(&base, id.source.as_str(), &id.namespace, &id.name);
            let record = ObjectRecord::of_claim((id.key(), claim.in_directory(&path)), &Arc::from(""));
            (id, Known { record: Arc::new(record), raw: None, retained, state: State::Ending })
        };
        let known = directories.into_iter().map(known).collect();
        Self { base, known, adopted: None, snapshots: Default::default() }
    }

    /// Whether a claim waits for pods, so that what is observed of them matters.
    pub fn is_waiting(&self) -> bool {
        self.known.values().any(|known| known.state == State::Ending)
    }

    /// The pods that ran when the agent started are known: these, as far as they refer to claims.
    pub fn adopt(&mut self, adopted: &[Arc<PodRecord>]) {
        let has_claim = |record: &&Arc<PodRecord>| claim::local_names(record).next().is_some();
        self.adopted = Some(adopted.iter().filter(has_claim).cloned().collect());
    }

    /// Notes which claims are new, changed or gone, and returns what is to be done on the disk. The caller
    /// reports the result of each order that removes files to [`Self::done`]. `kept`: the sources whose claims may
    /// come back, such as those on trial; no files of these are removed.
    pub fn turn(&mut self, snapshots: &Snapshots, observed: &ObservedPods, kept: &[SourceKind]) -> Vec<Order> {
        let mut orders = Vec::new();
        for source in SourceKind::ALL {
            if source != SourceKind::Api {
                self.take(source, &snapshots[source.index()], &mut orders);
            }
        }
        if let Some(adopted) = &mut self.adopted {
            adopted.retain(|record| !observed.pods.contains_key(&record.key));
        }
        if self.is_waiting() {
            self.remove_unused(snapshots, observed, kept, &mut orders);
        }
        orders
    }

    /// The files of a claim are removed, or could not be: then the next start of the agent tries it again.
    pub fn done(&mut self, id: &ClaimId, is_removed: bool) {
        match self.known.get_mut(id) {
            Some(_) if is_removed => drop(self.known.remove(id)),
            Some(known) => known.state = State::Left,
            None => {}
        }
    }

    /// The snapshots with the directory of each claim, and with the claims that are gone and still referred to.
    pub fn expand(&mut self, snapshots: Snapshots) -> Snapshots {
        let known = &self.known;
        let mut sources = SourceKind::ALL.into_iter().zip(&mut self.snapshots);
        snapshots.map(|raw| {
            let Some((source, snapshot)) = sources.next() else { return raw };
            let is_served = |known: &Known| matches!(known.state, State::Bound | State::Ending);
            let served = known.iter().filter(|(id, known)| id.source == source && is_served(known));
            snapshot.expand(&raw, served.map(|(_, known)| &known.record))
        })
    }

    fn take(&mut self, source: SourceKind, snapshot: &SourceSnapshot, orders: &mut Vec<Order>) {
        let mut present = BTreeSet::new();
        for (key, raw) in claims(snapshot) {
            let Some(claim) = &raw.claim else { continue };
            let id = ClaimId { source, namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) };
            present.insert(id.clone());
            let is_same = |known: &Known| known.raw.as_ref().is_some_and(|before| Arc::ptr_eq(before, raw));
            if self.known.get(&id).is_some_and(|known| known.state == State::Removing || is_same(known)) {
                continue;
            }
            let path = directory(&self.base, source.as_str(), &id.namespace, &id.name);
            let noted = self.known.get(&id).map(|known| known.retained);
            if noted.is_some_and(|noted| noted != claim.retained) {
                orders.push(Order { id: id.clone(), directory: path.clone(), action: Action::Retain(claim.retained) });
            }
            let record = ObjectRecord { claim: Some(Arc::new(claim.in_directory(&path))), ..ObjectRecord::clone(raw) };
            let known = Known {
                record: Arc::new(record),
                raw: Some(Arc::clone(raw)),
                retained: claim.retained,
                state: State::Bound,
            };
            self.known.insert(id, known);
        }
        if !snapshot.ready {
            return;
        }
        let gone = |(id, known): &(&ClaimId, &mut Known)| {
            id.source == source && known.state == State::Bound && !present.contains(*id)
        };
        for (_, known) in self.known.iter_mut().filter(gone) {
            known.state = State::Ending;
            if let Some(claim) = &known.record.claim {
                let claim = Arc::new(LocalClaim { ending: true, ..LocalClaim::clone(claim) });
                known.record = Arc::new(ObjectRecord { claim: Some(claim), ..ObjectRecord::clone(&known.record) });
            }
            known.raw = None;
        }
    }

    /// Orders the removal of the files of claims that are gone and that no pod refers to.
    fn remove_unused(
        &mut self,
        snapshots: &Snapshots,
        observed: &ObservedPods,
        kept: &[SourceKind],
        orders: &mut Vec<Order>,
    ) {
        let Some(adopted) = &self.adopted else { return };
        let mut used = BTreeSet::new();
        let mut uses = |record: &PodRecord| {
            let id = |name: &str| ClaimId {
                source: record.source,
                namespace: Arc::from(record.key.namespace()),
                name: Arc::from(name),
            };
            used.extend(claim::local_names(record).map(id));
        };
        adopted.iter().for_each(|record| uses(record));
        for snapshot in snapshots {
            snapshot.pods.values().filter(|record| !record.has_ended()).for_each(|record| uses(record));
        }
        // One that is observed may be another version than the one that is wanted.
        let runs = observed.pods.values().filter(|pod| !pod.status.phase.as_deref().is_some_and(is_terminal_phase));
        runs.for_each(|pod| uses(&pod.record));
        for (id, known) in &mut self.known {
            let is_kept = !snapshots[id.source.index()].ready || kept.contains(&id.source) || used.contains(id);
            if known.state != State::Ending || is_kept {
                continue;
            }
            if known.retained {
                known.state = State::Released;
                continue;
            }
            known.state = State::Removing;
            let directory = directory(&self.base, id.source.as_str(), &id.namespace, &id.name);
            orders.push(Order { id: id.clone(), directory, action: Action::Remove });
        }
    }
}

/// The claims of a source.
fn claims(snapshot: &SourceSnapshot) -> impl Iterator<Item = (&ObjectKey, &Arc<ObjectRecord>)> {
    let first = ObjectKey::new(ObjectKind::PersistentVolumeClaim, "", "");
    snapshot.objects.range(first..).take_while(|(key, _)| key.kind == ObjectKind::PersistentVolumeClaim)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
