//! The pods that an apiserver binds to this node, and what they refer to: ConfigMaps, Secrets, tokens.
//!
//! Other tasks talk to the apiserver and send what they learn as [`Update`]s. This source keeps the newest state, and
//! writes it to disk before it publishes it, unless the disk hangs. So a start without an apiserver has every pod
//! with its objects as they were last known, and a pod ends only if a list of the apiserver's, or its watch, says so.
//! If the cluster was restored from a backup or replaced, it ends only at the operator's command.

mod held;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use imbl::OrdSet;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Pulse;
use super::persist::Persister;
use held::HeldPods;
use limpet_core::cluster_history::{ClusterHistory, HistoryBreak};
use limpet_core::last_good::LastGood;
use limpet_core::source::cluster_update::{UPDATE_QUEUE_LEN, Update};
use limpet_core::source::delta::Edits;
use limpet_core::source::view::Contents;
use limpet_core::source::{Decoder, Health, Rejection, SourceSnapshot};
use limpet_model::manifest::api::{self, ORIGIN};
use limpet_model::object::{ObjectKey, ObjectRecord, references};
use limpet_model::pod::{PodKey, PodRecord, is_terminal_phase, security};
use limpet_model::source::SourceKind;
use limpet_store::Store;

/// The name under which the cluster's history is stored. Names of pods and objects always have a slash.
const HISTORY: &str = "cluster";

/// The source, ready to run.
#[derive(Debug)]
pub struct ApiSource {
    node_name: Arc<str>,
    decoder: Decoder,
    persister: Persister,
    pulse: Arc<Pulse>,
    snapshot: SourceSnapshot,
    held: HeldPods,
    /// What differs from the last published snapshot.
    edits: Edits,
}

impl ApiSource {
    /// A source of what `store` has, until there is something newer.
    pub fn new(node_name: &str, store: Arc<Store>, decoder: Decoder) -> Self {
        let pulse: Arc<Pulse> = Arc::default();
        let persister = Persister::new(store, SourceKind::Api, Arc::clone(&pulse));
        let snapshot = SourceSnapshot { absent: Some(OrdSet::new()), ..SourceSnapshot::default() };
        let (held, edits) = (HeldPods::default(), Edits::default());
        Self { node_name: Arc::from(node_name), decoder, persister, pulse, snapshot, held, edits }
    }

    /// When all pods were last listed, for users.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Takes updates and publishes until `stop`. `publish` must not block.
    pub async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Update>,
        publish: impl Fn(Arc<SourceSnapshot>),
        stop: CancellationToken,
    ) {
        self.restore().await;
        publish(self.next_snapshot());
        // What will be published after the current write, and whether there is something newer.
        let (mut saving, mut is_changed) = (None, false);
        loop {
            // Updates are taken during a write, because renewals of the lease are among them and do not depend on the
            // disk.
            let update = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.persister.written() => None,
                update = inbox.recv() => match update {
                    Some(update) => Some(update),
                    None => break,
                },
            };
            match update {
                Some(update) => {
                    is_changed |= self.take(update);
                    // Updates that already wait are written together.
                    for _ in 1..UPDATE_QUEUE_LEN {
                        let Ok(update) = inbox.try_recv() else { break };
                        is_changed |= self.take(update);
                    }
                    if self.persister.is_writing() {
                        continue;
                    }
                }
                None => saving.take().into_iter().for_each(&publish),
            }
            if std::mem::take(&mut is_changed) {
                // It is written to disk first, so that nothing runs that a start without an apiserver would not know,
                // unless the disk hangs.
                saving = self.save(&publish);
            }
        }
        self.persister.flush().await;
        saving.into_iter().for_each(&publish);
        if is_changed {
            publish(self.next_snapshot());
        }
    }

    /// Begins to write what is new, unless the persister has done so after its last write. Returns the snapshot to
    /// publish after that; what needs no write is published at once.
    fn save(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) -> Option<Arc<SourceSnapshot>> {
        // Not earlier, because a successor may refer to the same objects as a pod that is gone, and nothing would
        // read them again then.
        self.forget_unused();
        self.persister.write();
        let snapshot = self.next_snapshot();
        if self.persister.is_writing() {
            return Some(snapshot);
        }
        publish(snapshot);
        None
    }

    async fn restore(&mut self) {
        self.snapshot.health = Health::Good;
        let Some(loaded) = self.persister.load(|store| store.load::<LastGood>(SourceKind::Api)).await else { return };
        for (name, saved) in loaded.records {
            if &*name == HISTORY {
                self.held = HeldPods::restore(&saved.mark);
            }
            let mut restored = self.decoder.restore_all(&saved.manifests, ORIGIN, SourceKind::Api, &self.node_name);
            restored.pods.values_mut().for_each(|pod| end_as(pod, &saved.mark));
            restored.pods.keys().for_each(|key| self.edits.pod(key.clone()));
            restored.objects.keys().for_each(|key| self.edits.object(key.clone()));
            self.snapshot.pods.extend(restored.pods.clone());
            self.snapshot.objects.extend(restored.objects.clone());
            self.persister.hold(name, Arc::new(restored), &saved.mark);
        }
        // The store may lack running pods, which must not end before the apiserver has been read.
        self.snapshot.ready = loaded.complete;
        let (pods, objects) = (self.snapshot.pods.len(), self.snapshot.objects.len());
        if pods > 0 {
            tracing::info!(pods, objects, "pods of the apiserver restored from disk");
        }
    }

    /// Whether the update changed anything.
    fn take(&mut self, update: Update) -> bool {
        match update {
            Update::Listed(pods, history) => {
                self.listed(&pods, history);
                self.pulse.succeeded(Timestamp::now());
                true
            }
            Update::Reached(version) => {
                self.held.reached(&version);
                false
            }
            Update::Renewed(renewal) => {
                self.held.renewed(renewal);
                false
            }
            Update::LastRenewal(answer) => {
                let _ = answer.send(self.held.last_renewal());
                false
            }
            Update::WentBack(broken) => {
                self.went_back(broken);
                false
            }
            Update::Accepted(done) => {
                // It is done even if no caller waits for the answer any more.
                let _ = done.send(self.accept_cluster());
                true
            }
            Update::Stored(pod) => self.stored(&pod),
            Update::Deleted(pod) => match (key_of(&pod), uid_of(&pod)) {
                (Some(key), Some(uid)) => {
                    self.held.set_successor(&key, None);
                    self.remove(&key, |known| *known.uid.to_string() == *uid)
                }
                _ => false,
            },
            Update::Object(key, object) => self.object(key, object),
        }
    }

    fn listed(&mut self, pods: &[Value], history: ClusterHistory) {
        self.hold_lost(pods, history);
        let listed: BTreeSet<PodKey> = pods.iter().filter_map(key_of).collect();
        let is_gone = |key: &&PodKey| !listed.contains(*key) && !self.held.holds(key);
        let gone: Vec<PodKey> = self.snapshot.pods.keys().filter(is_gone).cloned().collect();
        for key in gone {
            tracing::info!(pod = %key, "the apiserver no longer has the pod");
            self.remove(&key, |_| true);
        }
        let names: BTreeSet<String> = listed.iter().map(PodKey::to_string).collect();
        let over: Vec<Arc<str>> =
            self.snapshot.rejected.keys().filter(|origin| !names.contains(&***origin)).cloned().collect();
        over.into_iter().for_each(|origin| self.accept(&origin));
        for pod in pods {
            self.stored(pod);
        }
        self.snapshot.ready = true;
    }

    fn went_back(&mut self, broken: HistoryBreak) {
        tracing::warn!(reason = %broken, "the cluster's history changed; all pods are listed again");
        self.held.went_back(broken);
        self.save_history();
    }

    /// Holds the pods that a list lacks, if it comes from an apiserver with another history.
    fn hold_lost(&mut self, pods: &[Value], history: ClusterHistory) {
        let listed: BTreeMap<PodKey, &Value> = pods.iter().filter_map(|pod| Some((key_of(pod)?, pod))).collect();
        let is_listed =
            |pod: &PodRecord| listed.get(&pod.key).is_some_and(|listed| uid_of(listed) == Some(&*pod.uid.to_string()));
        let knows_pods = self.snapshot.pods.values().any(|pod| is_listed(pod));
        // A pod that has finished has nothing that could end.
        let lost = self.snapshot.pods.values().filter(|pod| !is_listed(pod) && !pod.has_ended());
        let lost = lost.map(|pod| (pod.key.clone(), listed.get(&pod.key).map(|pod| (*pod).clone()))).collect();
        self.held.listed(history, lost, knows_pods);
        self.save_history();
        self.show_held();
    }

    /// Ends what the cluster does not have, and takes what it has instead. Returns the pods that end.
    fn accept_cluster(&mut self) -> Vec<PodKey> {
        let held = self.held.accept();
        for (key, successor) in &held {
            tracing::info!(pod = %key, "cluster state accepted; the pod is terminated");
            self.remove(key, |_| true);
            successor.iter().for_each(|pod| _ = self.stored(pod));
        }
        self.save_history();
        self.show_held();
        held.into_keys().collect()
    }

    fn save_history(&mut self) {
        self.persister.put(Arc::from(HISTORY), Some(Arc::default()), &self.held.mark());
    }

    fn show_held(&mut self) {
        self.snapshot.health = self.held.reason().map_or(Health::Good, |reason| Health::Unavailable(reason.into()));
    }

    fn stored(&mut self, pod: &Value) -> bool {
        let (Some(key), Some(uid)) = (key_of(pod), uid_of(pod)) else {
            tracing::warn!("a pod of the apiserver's without a usable namespace, name or UID is ignored");
            return false;
        };
        let known = self.snapshot.pods.get(&key).filter(|known| *known.uid.to_string() == *uid).cloned();
        if known.is_none() && self.held.holds(&key) {
            self.held.set_successor(&key, Some(pod.clone()));
            return false;
        }
        // It ended elsewhere, or here before the disk was replaced. What has finished does not run again.
        let over = pod["status"]["phase"].as_str().is_some_and(is_terminal_phase);
        if over && known.is_none() {
            return self.remove(&key, |_| true);
        }
        let level = self.decoder.security.for_source(SourceKind::Api);
        let allowed = |record: PodRecord| match security::check(&record, level) {
            None => Ok(record),
            Some(fault) => Err(vec![fault]),
        };
        match api::read(pod, &self.node_name).and_then(allowed) {
            Ok(record) => {
                self.accept(&key.to_string());
                if known.is_some_and(|known| *known == record) {
                    return false;
                }
                self.put(Arc::new(record));
            }
            Err(faults) => {
                let origin: Arc<str> = Arc::from(key.to_string());
                let kept = known.iter().map(|known| known.key.clone()).collect();
                let rejection = Rejection { origin: Arc::clone(&origin), faults, kept };
                let is_new = self.snapshot.rejected.get(&origin).is_none_or(|before| **before != rejection);
                if is_new {
                    self.snapshot.rejected.insert(Arc::clone(&origin), Arc::new(rejection));
                    self.edits.rejection(origin);
                }
                // The running version stays, except for its end.
                let changed = match known.map(|known| (as_deleted(&known, pod), known)) {
                    Some((deleted, known)) if deleted != *known => {
                        self.put(Arc::new(deleted));
                        true
                    }
                    Some(_) => false,
                    None => self.remove_pod(&key, |_| true),
                };
                return is_new || changed;
            }
        }
        true
    }

    /// Records that the pod of that origin is no longer rejected.
    fn accept(&mut self, origin: &str) {
        if let Some(rejection) = self.snapshot.rejected.remove(origin) {
            self.edits.rejection(Arc::clone(&rejection.origin));
        }
    }

    fn put(&mut self, record: Arc<PodRecord>) {
        let key = record.key.clone();
        let contents = Contents { pods: [(key.clone(), Arc::clone(&record))].into(), ..Contents::default() };
        let phase = record.pod.status.as_ref().and_then(|status| status.phase.as_deref());
        let mark = phase.filter(|phase| is_terminal_phase(phase)).unwrap_or_default();
        self.persister.put(Arc::from(key.to_string()), Some(Arc::new(contents)), mark);
        // Versions that arrived meanwhile cause no write of their own.
        self.save_history();
        self.edits.pod(key.clone());
        self.snapshot.pods.insert(key, Arc::clone(&record));
    }

    /// Removes the pod of that key and its rejection, if `is_it` says so. Returns whether it did.
    fn remove(&mut self, key: &PodKey, is_it: impl Fn(&PodRecord) -> bool) -> bool {
        let rejected = self.snapshot.rejected.contains_key(&*key.to_string());
        self.accept(&key.to_string());
        self.remove_pod(key, is_it) || rejected
    }

    fn remove_pod(&mut self, key: &PodKey, is_it: impl Fn(&PodRecord) -> bool) -> bool {
        if !self.snapshot.pods.get(key).is_some_and(|known| is_it(known)) {
            return false;
        }
        self.snapshot.pods.remove(key);
        if self.held.release(key) {
            self.show_held();
        }
        self.persister.put(Arc::from(key.to_string()), None, "");
        self.edits.pod(key.clone());
        true
    }

    fn object(&mut self, key: ObjectKey, object: Option<Arc<ObjectRecord>>) -> bool {
        // Its last pod may be gone meanwhile.
        if !self.snapshot.pods.values().any(|pod| references(pod).contains(&key)) {
            return false;
        }
        let absent = self.snapshot.absent.get_or_insert_default();
        let changed = match &object {
            Some(object) => {
                absent.remove(&key);
                self.snapshot.objects.insert(key.clone(), Arc::clone(object)).is_none_or(|before| before != *object)
            }
            None => {
                let was_known = self.snapshot.objects.remove(&key).is_some();
                absent.insert(key.clone()).is_none() || was_known
            }
        };
        if changed {
            let contents =
                object.map(|object| Contents { objects: [(key.clone(), object)].into(), ..Contents::default() });
            self.persister.put(Arc::from(key.to_string()), contents.map(Arc::new), "");
            self.edits.object(key);
        }
        changed
    }

    /// Forgets the objects that no pod refers to.
    fn forget_unused(&mut self) {
        let used: BTreeSet<ObjectKey> = self.snapshot.pods.values().flat_map(|pod| references(pod)).collect();
        let unused: Vec<ObjectKey> = self.snapshot.objects.keys().filter(|key| !used.contains(key)).cloned().collect();
        for key in unused {
            self.snapshot.objects.remove(&key);
            self.persister.put(Arc::from(key.to_string()), None, "");
            self.edits.object(key);
        }
        if let Some(absent) = &mut self.snapshot.absent {
            *absent = absent.iter().filter(|key| used.contains(*key)).cloned().collect();
        }
    }

    /// The snapshot to publish after the last one.
    fn next_snapshot(&mut self) -> Arc<SourceSnapshot> {
        self.snapshot.revision = self.edits.next_revision();
        Arc::new(self.snapshot.clone())
    }
}

fn key_of(pod: &Value) -> Option<PodKey> {
    limpet_core::reported_pod::key_of(pod)
}

fn uid_of(pod: &Value) -> Option<&str> {
    pod["metadata"]["uid"].as_str()
}

/// Marks the pod as ended in that phase; an empty one is none.
fn end_as(pod: &mut Arc<PodRecord>, phase: &str) {
    if is_terminal_phase(phase) {
        let status = Arc::make_mut(pod).pod.status.get_or_insert_default();
        status.phase = Some(phase.to_owned());
    }
}

/// `known` with the deletion that is requested for `pod`, if any.
fn as_deleted(known: &PodRecord, pod: &Value) -> PodRecord {
    let mut record = known.clone();
    let metadata = &pod["metadata"];
    if let Ok(Some(time)) = serde_json::from_value(metadata["deletionTimestamp"].clone()) {
        record.pod.metadata.deletion_timestamp = Some(time);
        record.pod.metadata.deletion_grace_period_seconds = metadata["deletionGracePeriodSeconds"].as_i64();
    }
    record
}

#[cfg(test)]
mod tests;
