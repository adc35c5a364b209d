//! All controllers of a node, and their place between the sources and the merge.
//!
//! The order of a turn is: [`Controllers::turn`] records what has changed and has each affected controller decide.
//! What it returns is written to disk. Then [`Controllers::remembered`] puts it into effect, and
//! [`Controllers::expand`] returns the snapshots for the merge.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use limpet_core::source::{Snapshots, SourceSnapshot};
use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_model::clock::built;
use limpet_model::object::workload::{WorkloadSpec, uid};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use serde_json::Value;

use crate::adoption;
use crate::claims;
use crate::clock::Clock;
use crate::cron_job;
use crate::effective::Effective;
use crate::facts::Facts;
use crate::id::WorkloadId;
use crate::job::{self, Seen};
use crate::memory::{Memory, MemoryChange};
use crate::notice::{Notice, Notices};
use crate::pace::Pace;
use crate::pods;
use crate::progress::Progress;
use crate::replicated;
use crate::situation::Situation;
use crate::stateful_set::{self, Member};

/// The time zone of that name, or the node's own; `None` if the node does not have it.
pub type Zones = fn(Option<&str>) -> Option<TimeZone>;

const SOURCES: usize = SourceKind::ALL.len();
/// The annotation in which an author says why a version was made.
const CHANGE_CAUSE: &str = "kubernetes.io/change-cause";

/// One workload and its controller's state.
#[derive(Debug)]
struct Entry {
    object: Arc<ObjectRecord>,
    /// The hash of its template.
    hash: String,
    /// Its `kubernetes.io/change-cause`.
    cause: Option<String>,
    /// The memory in effect; `None` if nothing is remembered of the workload, and it is not known yet which of its
    /// pods run.
    memory: Option<Memory>,
    /// The memory that was decided, and is not on disk yet.
    next: Option<Memory>,
    pace: Pace,
    /// The pods that are wanted, in effect.
    records: BTreeMap<PodKey, Arc<PodRecord>>,
    /// The claims that are its pods', in effect.
    claims: BTreeMap<ObjectKey, Arc<ObjectRecord>>,
    /// Its pods that are observed, whether or not they are wanted.
    observed: BTreeSet<PodKey>,
    due: Option<Timestamp>,
    /// The number that its source gave it last.
    incarnation: Option<u64>,
    /// Its source removed it, and has it again, since its controller last decided.
    comes_again: bool,
}

impl Entry {
    fn new(object: Arc<ObjectRecord>, memory: Option<Memory>) -> Self {
        Self {
            hash: hash(&object),
            cause: change_cause(&object),
            object,
            memory,
            next: None,
            pace: Pace::default(),
            records: BTreeMap::new(),
            claims: BTreeMap::new(),
            observed: BTreeSet::new(),
            due: None,
            incarnation: None,
            comes_again: false,
        }
    }

    /// Notes which of the workloads of its name this is.
    fn take_incarnation(&mut self, number: Option<u64>) {
        self.comes_again |= self.incarnation.zip(number).is_some_and(|(before, now)| before != now);
        self.incarnation = number.or(self.incarnation);
    }
}

/// The controllers of a node.
#[derive(Debug)]
pub struct Controllers {
    node_name: Arc<str>,
    zones: Zones,
    /// A right clock shows no earlier time.
    earliest: Timestamp,
    /// What is remembered about workloads that no source has had yet.
    loaded: BTreeMap<WorkloadId, Memory>,
    entries: BTreeMap<WorkloadId, Entry>,
    /// How many workloads each source has.
    counts: [usize; SOURCES],
    /// The workloads without memory, which wait until it is known what runs.
    held: BTreeSet<WorkloadId>,
    /// The workloads whose memory has to be written.
    pending: BTreeSet<WorkloadId>,
    /// The pods of workloads, wanted or not gone yet.
    owners: HashMap<PodKey, WorkloadId>,
    sources: Snapshots,
    effective: [Option<Effective>; SOURCES],
    /// Pods whose wanted version has changed since the last [`Self::expand`].
    touched: [BTreeSet<PodKey>; SOURCES],
    /// The same for claims.
    touched_claims: [BTreeSet<ObjectKey>; SOURCES],
    observed: OrdMap<PodKey, Arc<ObservedPod>>,
    due: BTreeSet<(Timestamp, WorkloadId)>,
    /// The workloads whose controllers have to decide.
    open: BTreeSet<WorkloadId>,
    /// The pods of workloads that ran when the agent started, from sources that have not reported; `None` if not
    /// known yet.
    adopted: Option<Vec<Arc<PodRecord>>>,
    /// What the last turn has to report.
    notices: Vec<Notice>,
}

impl Controllers {
    /// The controllers of the node of that name, with what earlier ones remembered.
    pub fn new(node_name: &str, zones: Zones, loaded: impl IntoIterator<Item = (WorkloadId, Memory)>) -> Self {
        Self {
            node_name: Arc::from(node_name),
            zones,
            earliest: built(),
            loaded: loaded.into_iter().collect(),
            entries: BTreeMap::new(),
            counts: [0; SOURCES],
            held: BTreeSet::new(),
            pending: BTreeSet::new(),
            owners: HashMap::new(),
            sources: Snapshots::default(),
            effective: Default::default(),
            touched: Default::default(),
            touched_claims: Default::default(),
            observed: OrdMap::new(),
            due: BTreeSet::new(),
            open: BTreeSet::new(),
            adopted: None,
            notices: Vec::new(),
        }
    }

    /// What the last turn has to report, once it is in effect.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Whether there is no workload, so that nothing but a new snapshot matters.
    pub fn is_idle(&self) -> bool {
        self.entries.is_empty()
    }

    /// The next time at which a controller has to decide.
    pub fn due(&self) -> Option<Timestamp> {
        self.due.first().map(|(at, _)| *at)
    }

    /// What a workload's controller remembers, and the version of the workload.
    pub fn workloads(&self) -> impl Iterator<Item = (&WorkloadId, &Arc<ObjectRecord>, &Memory)> {
        self.entries.iter().filter_map(|(id, entry)| Some((id, &entry.object, entry.memory.as_ref()?)))
    }

    /// How far the controller of a workload has come, of the version that its source had in the last turn; `None`: it does
    /// not know the workload, or not yet what it remembers of it.
    pub fn progress(&self, id: &WorkloadId) -> Option<Progress> {
        let source = &self.sources[id.source.index()];
        let object = source.objects.get(&id.key)?;
        if self.object(id).is_none() {
            // A source with precedence has the workload: of this one there are no pods.
            return Some(Progress::nothing(object));
        }
        let entry = self.entries.get(id)?;
        let memory = entry.memory.as_ref()?;
        Some(Progress::from_memory(&entry.object, memory, &entry.hash, entry.records.keys()))
    }

    /// Has those controllers decide for which something has changed, and returns what has to be written before it
    /// takes effect. `adopted` are the pods that ran when the agent started, in the first turn in which they are
    /// known. If this returns anything, it must not be called again before [`Self::remembered`].
    pub fn turn(
        &mut self,
        snapshots: &Snapshots,
        observed: &ObservedPods,
        adopted: Option<Vec<Arc<PodRecord>>>,
        now: Timestamp,
    ) -> Vec<MemoryChange> {
        let mut changes = self.take_snapshots(snapshots);
        if adopted.is_some() {
            self.adopted = adopted;
            self.open.extend(self.held.iter().cloned());
        }
        while self.due.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, id)) = self.due.pop_first() else { break };
            self.open.insert(id);
        }
        for id in self.open.clone() {
            match self.object(&id) {
                Some(object) => self.take_object(&id, object, now),
                None => changes.extend(self.forget(&id)),
            }
        }
        self.take_observed(observed);
        for id in std::mem::take(&mut self.open) {
            changes.extend(self.decide(&id, now));
        }
        if let Some(adopted) = &mut self.adopted {
            adopted.retain(|record| !self.sources[record.source.index()].ready);
        }
        changes
    }

    /// Records that what the last [`Self::turn`] returned is on disk, or cannot be written.
    pub fn remembered(&mut self) {
        for id in std::mem::take(&mut self.pending) {
            if let Some(entry) = self.entries.get_mut(&id) {
                entry.memory = entry.next.take().or(entry.memory.take());
            }
            self.settle(&id);
        }
    }

    /// The snapshots with the pods that controllers want.
    pub fn expand(&mut self, snapshots: Snapshots) -> Snapshots {
        let (entries, owners) = (&self.entries, &self.owners);
        let mut sources = SourceKind::ALL.into_iter();
        snapshots.map(|raw| {
            let Some(source) = sources.next() else { return raw };
            let at = source.index();
            let touched = std::mem::take(&mut self.touched[at]);
            let touched_claims = std::mem::take(&mut self.touched_claims[at]);
            if self.counts[at] == 0 {
                self.effective[at] = None;
                return raw;
            }
            let is_settled = !self.held.iter().any(|id| id.source == source);
            let pod = |key: &PodKey| {
                let id = owners.get(key).filter(|id| id.source == source)?;
                entries.get(id)?.records.get(key).cloned()
            };
            let of_source =
                entries.iter().filter(|(id, _)| id.source == source).flat_map(|(_, entry)| entry.claims.values());
            let claims: Vec<Arc<ObjectRecord>> = of_source.cloned().collect();
            let claims = (claims.as_slice(), &touched_claims);
            self.effective[at].get_or_insert_default().expand(&raw, &touched, claims, is_settled, pod)
        })
    }

    /// Records which workloads are new, changed or gone. Returns what is forgotten.
    fn take_snapshots(&mut self, snapshots: &Snapshots) -> Vec<MemoryChange> {
        let mut gone: Vec<WorkloadId> = Vec::new();
        for (source, new) in SourceKind::ALL.into_iter().zip(snapshots) {
            let old = Arc::clone(&self.sources[source.index()]);
            if Arc::ptr_eq(&old, new) {
                continue;
            }
            for key in changed_workloads(&old, new) {
                // A source with less precedence may get it, or lose it.
                for other in SourceKind::ALL {
                    self.open.insert(WorkloadId { source: other, key: key.clone() });
                }
            }
            if new.ready && !old.ready {
                let is_gone = |id: &&WorkloadId| id.source == source && !new.objects.contains_key(&id.key);
                gone.extend(self.loaded.keys().filter(is_gone).cloned());
            }
        }
        self.sources = snapshots.clone();
        gone.iter().for_each(|id| drop(self.loaded.remove(id)));
        gone.into_iter().map(|id| MemoryChange { id, memory: None }).collect()
    }

    /// Records the newest version of a workload, and what is remembered about it if it is new.
    fn take_object(&mut self, id: &WorkloadId, object: Arc<ObjectRecord>, now: Timestamp) {
        let is_new = !self.entries.contains_key(id);
        if is_new {
            let memory = self.loaded.remove(id);
            self.counts[id.source.index()] += 1;
            let mut entry = Entry::new(Arc::clone(&object), memory);
            // Pods of an earlier workload of its name may not have gone yet.
            let is_left = |pod: &Arc<ObservedPod>| adoption::workload(&pod.record).as_ref() == Some(id);
            entry.observed = self.observed.iter().filter(|(_, pod)| is_left(pod)).map(|(key, _)| key.clone()).collect();
            self.owners.extend(entry.observed.iter().map(|key| (key.clone(), id.clone())));
            self.entries.insert(id.clone(), entry);
        }
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.take_incarnation(self.sources[id.source.index()].incarnations.number(&id.key));
        let is_changed = !Arc::ptr_eq(&entry.object, &object);
        if is_changed {
            (entry.hash, entry.cause) = (hash(&object), change_cause(&object));
            entry.object = object;
        }
        let is_held = entry.memory.is_none();
        match (&mut entry.memory, &self.adopted, &entry.object.workload) {
            (None, Some(adopted), Some(workload)) => {
                let recorded = adopted.iter().filter(|record| adoption::workload(record).as_ref() == Some(id));
                let recalled = adoption::recall(&id.key, (&workload.spec, &entry.hash), recorded, &self.node_name, now);
                entry.memory = Some(recalled);
                self.held.remove(id);
            }
            (None, ..) => drop(self.held.insert(id.clone())),
            (Some(_), ..) => {}
        }
        // What is remembered is wanted before anything is decided, because its pods may run. Its file may also have
        // another name, which is in its pods' records, too.
        if is_new || is_held || is_changed {
            self.settle(id);
        }
    }

    /// Records whose pods have changed.
    fn take_observed(&mut self, observed: &ObservedPods) {
        if self.entries.is_empty() {
            // Without a workload nothing is kept.
            self.observed = OrdMap::new();
            self.owners = HashMap::new();
            return;
        }
        let before = std::mem::replace(&mut self.observed, observed.pods.clone());
        for item in before.diff(&observed.pods) {
            let (key, pod) = match item {
                DiffItem::Add(key, pod) | DiffItem::Update { new: (key, pod), .. } => (key, Some(pod)),
                DiffItem::Remove(key, _) => (key, None),
            };
            let id = self.owners.get(key).cloned().or_else(|| adoption::workload(&pod?.record));
            let Some((id, entry)) = id.and_then(|id| self.entries.get_mut(&id).map(|entry| (id, entry))) else {
                continue;
            };
            if pod.is_some() {
                entry.observed.insert(key.clone());
                self.owners.insert(key.clone(), id.clone());
            } else {
                entry.observed.remove(key);
                if !entry.records.contains_key(key) {
                    self.owners.remove(key);
                }
            }
            self.open.insert(id);
        }
    }

    /// Has one controller decide. Returns what has to be written, if that differs from what is.
    fn decide(&mut self, id: &WorkloadId, now: Timestamp) -> Option<MemoryChange> {
        let entry = self.entries.get_mut(id)?;
        let before = entry.memory.clone()?;
        let mut memory = before.clone();
        if std::mem::take(&mut entry.comes_again) || memory.is_of_another_job(&entry.hash) {
            memory.begin_again();
        }
        let due = self.step(id, &mut memory, now);
        let entry = self.entries.get_mut(id)?;
        if let Some(at) = std::mem::replace(&mut entry.due, due) {
            self.due.remove(&(at, id.clone()));
        }
        self.due.extend(due.map(|at| (at, id.clone())));
        if memory == before {
            return None;
        }
        entry.next = Some(memory.clone());
        self.pending.insert(id.clone());
        Some(MemoryChange { id: id.clone(), memory: Some(memory) })
    }

    /// Runs the controller of the kind. Returns when it is due again.
    fn step(&mut self, id: &WorkloadId, memory: &mut Memory, now: Timestamp) -> Option<Timestamp> {
        let entry = self.entries.get_mut(id)?;
        let workload = Arc::clone(entry.object.workload.as_ref()?);
        memory.begin_revision(&entry.hash, &workload.template, entry.cause.as_deref());
        let observed: Vec<&Arc<ObservedPod>> = entry.observed.iter().filter_map(|key| self.observed.get(key)).collect();
        let (node_name, key, hash) = (&*self.node_name, &id.key, entry.hash.as_str());
        let (pace, clock, mut notices) = (&mut entry.pace, Clock { now, earliest: self.earliest }, Notices::default());
        let at = match &workload.spec {
            WorkloadSpec::Replicated(spec) => {
                let facts = observed.iter().map(|pod| (pod.record.key.name(), Facts::from_pod(pod))).collect();
                let situation = Situation { node_name, key, spec, hash, observed: &facts, clock };
                let next = replicated::step(memory, pace, &situation);
                if next.overdue {
                    let message = format!("ReplicaSet \"{}-{hash}\" has timed out progressing.", key.name);
                    notices.warning(key, "ProgressDeadlineExceeded", message);
                }
                next.at
            }
            WorkloadSpec::StatefulSet(spec) => {
                let records = &entry.records;
                let member = |pod: &&Arc<ObservedPod>| Member {
                    facts: Facts::from_pod(pod),
                    is_wanted: records.get(&pod.record.key).is_some_and(|wanted| wanted.uid == pod.record.uid),
                    terminating: pod.terminating_since.is_some(),
                };
                let members = observed.iter().map(|pod| (pod.record.key.name(), member(pod))).collect();
                let situation = Situation { node_name, key, spec, hash, observed: &members, clock };
                stateful_set::step(memory, pace, &situation, &mut notices)
            }
            WorkloadSpec::Job(spec) => {
                let seen = observed.iter().map(|pod| (pod.record.key.name(), Seen::from_pod(pod))).collect();
                let situation = Situation { node_name, key, spec: &**spec, hash, observed: &seen, clock };
                let state = memory.job.get_or_insert_default();
                job::step(state, &mut memory.pods, &situation, &mut notices).at
            }
            WorkloadSpec::CronJob(spec) => {
                let mut seen: BTreeMap<&str, BTreeMap<&str, Seen>> = BTreeMap::new();
                for pod in &observed {
                    let job = adoption::job(&pod.record).unwrap_or_default();
                    seen.entry(job).or_default().insert(pod.record.key.name(), Seen::from_pod(pod));
                }
                let zone = (self.zones)(spec.time_zone.as_deref());
                let situation = Situation { node_name, key, spec: &**spec, hash, observed: &seen, clock };
                cron_job::step(memory, pace, &situation, zone.as_ref(), &mut notices)
            }
        };
        let with_uid = |notice: Notice| {
            let object = &notice.object;
            let uid = uid(node_name, id.source, object.kind.as_str(), &object.namespace, &object.name);
            Notice { uid, ..notice }
        };
        self.notices.extend(notices.0.into_iter().map(with_uid));
        at
    }

    /// Makes the wanted pods those of the memory in effect.
    fn settle(&mut self, id: &WorkloadId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        let Some(memory) = &entry.memory else { return };
        let mut records = BTreeMap::new();
        for pod in &memory.pods {
            let key = PodKey::parse(Arc::clone(&id.key.namespace), pod.name.as_str()).ok();
            let known = key.and_then(|key| entry.records.get(&key));
            let has_ended = pod.has_ended();
            let is_same = |record: &&Arc<PodRecord>| {
                record.origin == entry.object.origin
                    && record.has_ended() == has_ended
                    && pods::is_incarnation(record, pod, id.key.kind, &self.node_name)
            };
            let known = known.filter(is_same);
            let made = match (known, memory.revision(&pod.hash)) {
                (Some(known), _) => Ok(Arc::clone(known)),
                (None, Some(revision)) => pods::record(&entry.object, pod, revision, id.source, &self.node_name),
                (None, None) => continue,
            };
            match made {
                Ok(record) => drop(records.insert(record.key.clone(), record)),
                Err(faults) => {
                    let error = faults.first().map(ToString::to_string).unwrap_or_default();
                    tracing::error!(workload = %id, pod = pod.name, error, "a pod of the workload cannot be made");
                }
            }
        }
        let touched = &mut self.touched[id.source.index()];
        for (key, record) in &records {
            if entry.records.get(key).is_none_or(|before| !Arc::ptr_eq(before, record)) {
                touched.insert(key.clone());
                self.owners.insert(key.clone(), id.clone());
            }
        }
        for key in entry.records.keys().filter(|key| !records.contains_key(*key)) {
            touched.insert(key.clone());
            if !entry.observed.contains(key) {
                self.owners.remove(key);
            }
        }
        entry.records = records;
        let claims = claims::records(&entry.object, memory, &entry.claims);
        let is_same = |key: &ObjectKey| {
            let pair = claims.get(key).zip(entry.claims.get(key));
            pair.is_some_and(|(after, before)| Arc::ptr_eq(after, before))
        };
        let differing = claims.keys().chain(entry.claims.keys()).filter(|key| !is_same(key));
        self.touched_claims[id.source.index()].extend(differing.cloned());
        entry.claims = claims;
    }

    /// The workload as its source has it, unless a source with precedence has one of that name.
    fn object(&self, id: &WorkloadId) -> Option<Arc<ObjectRecord>> {
        let before = &self.sources[..id.source.index()];
        if before.iter().any(|source| source.objects.contains_key(&id.key)) {
            return None;
        }
        self.sources[id.source.index()].objects.get(&id.key).cloned()
    }

    /// Forgets a workload that its source no longer has, so that its pods end.
    fn forget(&mut self, id: &WorkloadId) -> Option<MemoryChange> {
        let entry = self.entries.remove(id)?;
        self.counts[id.source.index()] -= 1;
        self.held.remove(id);
        self.pending.remove(id);
        if let Some(at) = entry.due {
            self.due.remove(&(at, id.clone()));
        }
        entry.records.keys().chain(&entry.observed).for_each(|key| drop(self.owners.remove(key)));
        self.touched[id.source.index()].extend(entry.records.into_keys());
        self.touched_claims[id.source.index()].extend(entry.claims.into_keys());
        Some(MemoryChange { id: id.clone(), memory: None })
    }
}

fn hash(object: &ObjectRecord) -> String {
    object.workload.as_ref().map(|workload| workload.template.hash()).unwrap_or_default()
}

/// Why the newest version of the workload was made, as its author says.
fn change_cause(object: &ObjectRecord) -> Option<String> {
    let document: Value = serde_json::from_slice(&object.workload.as_ref()?.manifest).ok()?;
    document["metadata"]["annotations"][CHANGE_CAUSE].as_str().map(str::to_owned)
}

/// The workloads that differ between two snapshots of a source.
fn changed_workloads(old: &SourceSnapshot, new: &SourceSnapshot) -> Vec<ObjectKey> {
    let delta = limpet_core::source::delta::between(old, new);
    delta.objects.iter().filter(|key| key.kind.is_workload()).cloned().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
