//! The push source: pods, ConfigMaps and Secrets received over the local socket (`limpet apply`), as by an apiserver.
//!
//! One task owns them. Requests queue in a bounded inbox and are handled in order. A request is acknowledged once it
//! is on disk: it is first written and synced, then published, then answered. There is nothing to read from
//! elsewhere, so the source starts with the content of the store and is ready at once.

mod objects;
mod saved;

use std::collections::BTreeSet;
use std::fmt::Display;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::Pulse;
use limpet_core::last_good::{LastGood, Manifests};
use limpet_core::merge::slot::Slots;
use limpet_core::source::delta::Edits;
use limpet_core::source::push::{By, Inbox, ORIGIN, Request, Stored, Verb};
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_core::source::{Decoder, Health, ManifestChange, SourceSnapshot, first_claim};
use limpet_core::status::observed::Observed;
use limpet_model::error_chain::error_chain;
use limpet_model::pod::{PodKey, PodRecord, identity};
use limpet_model::source::SourceKind;
use limpet_store::{Changes, Store};
use saved::{Records, Saved};

/// The parts of the node that the push source depends on.
#[derive(Debug, Clone)]
pub struct PushContext {
    /// The snapshots of the other sources, because a pod of a source that takes precedence cannot be pushed.
    pub slots: Arc<Slots>,
    /// The observed pods, to see when a deleted pod has terminated.
    pub observed: Observed,
}

/// The push source, ready to run.
#[derive(Debug)]
pub struct PushSource {
    node_name: Arc<str>,
    store: Arc<Store>,
    decoder: Decoder,
    context: PushContext,
    snapshot: SourceSnapshot,
    /// What differs from the last published snapshot.
    edits: Edits,
    /// What is on disk, shared with the store, which writes it again after damage.
    saved: Arc<Saved>,
    /// Deleted pods that have not terminated yet.
    terminating: BTreeSet<PodKey>,
    pulse: Arc<Pulse>,
}

impl PushSource {
    /// A source of the pods saved in `store`.
    pub fn new(node_name: &str, store: Arc<Store>, decoder: Decoder, context: PushContext) -> Self {
        let saved = Arc::default();
        store.register(SourceKind::Push, &saved);
        Self {
            node_name: Arc::from(node_name),
            store,
            decoder,
            context,
            snapshot: SourceSnapshot::default(),
            edits: Edits::default(),
            saved,
            terminating: BTreeSet::new(),
            pulse: Arc::default(),
        }
    }

    /// When a push was last accepted, for users.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Handles requests and publishes until `stop`. `publish` must not block.
    pub async fn run(mut self, mut inbox: Inbox, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        self.restore().await;
        self.publish(None, &publish);
        let mut observed = self.context.observed.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                request = inbox.recv() => match request {
                    Some(request) => self.handle(request, &publish).await,
                    None => return,
                },
                true = observed.next(), if !self.terminating.is_empty() => self.remove_terminated(&publish),
            }
        }
    }

    /// Handles a request. The client may have disconnected before the response.
    async fn handle(&mut self, request: Request, publish: &impl Fn(Arc<SourceSnapshot>)) {
        match request {
            Request::Put { record, by, answer } => drop(answer.send(self.put(record, by, publish).await)),
            Request::Delete { namespace, name, grace, by, answer } => {
                drop(answer.send(self.delete((&namespace, &name), grace, by, publish).await));
            }
            Request::PutObject { record, answer } => drop(answer.send(self.put_object(record, publish).await)),
            Request::DeleteObject { key, answer } => drop(answer.send(self.delete_object(key, publish).await)),
        }
    }

    async fn restore(&mut self) {
        let store = Arc::clone(&self.store);
        let loaded = match tokio::task::spawn_blocking(move || store.load::<LastGood>(SourceKind::Push)).await {
            Ok(Ok(loaded)) => loaded,
            failed => {
                let reason = match failed {
                    Ok(Err(error)) => error_chain(&error),
                    Err(error) => error.to_string(),
                    Ok(Ok(_)) => String::new(),
                };
                error!(reason, "pushed pods and objects cannot be read");
                let reason = format!("pushed pods and objects cannot be read: {reason}; running pods keep running");
                self.snapshot.health = Health::Unavailable(reason.into());
                return;
            }
        };
        for (name, saved) in &loaded.records {
            let restored = self.decoder.restore_all(&saved.manifests, ORIGIN, SourceKind::Push, &self.node_name);
            if restored.pods.is_empty() && restored.objects.is_empty() {
                error!(%name, "a pushed pod or object cannot be read");
            }
            restored.pods.keys().for_each(|key| self.edits.pod(key.clone()));
            restored.objects.keys().for_each(|key| self.edits.object(key.clone()));
            restored.objects.keys().for_each(|key| self.snapshot.incarnations.note(key, true));
            self.snapshot.pods.extend(restored.pods);
            self.snapshot.objects.extend(restored.objects);
        }
        if let Some(newest) = loaded.records.values().map(|saved| saved.accepted).max() {
            self.pulse.succeeded(newest);
        }
        self.snapshot.health = Health::Good;
        // The store may lack running pods, which must not be stopped before the damaged file is removed.
        self.snapshot.ready = loaded.complete;
        info!(
            pods = self.snapshot.pods.len(),
            objects = self.snapshot.objects.len(),
            "pushed pods and objects restored"
        );
    }

    async fn put(
        &mut self,
        record: Arc<PodRecord>,
        by: By,
        publish: &impl Fn(Arc<SourceSnapshot>),
    ) -> Result<Stored<PodRecord>, PushError> {
        let key = record.key.clone();
        if self.terminating.contains(&key) {
            return Err(PushError::BeingDeleted { key });
        }
        if let Some(claim) = self.claimed(&key) {
            return Err(PushError::Claimed { key, by: claim.source, origin: Arc::clone(&claim.origin) });
        }
        let before = self.snapshot.pods.get(&key);
        let verb = match before {
            Some(before) if before.fingerprint == record.fingerprint && before.uid == record.uid => {
                return Ok(Stored { record: Arc::clone(before), verb: Verb::Unchanged });
            }
            Some(_) => Verb::Configured,
            None => Verb::Created,
        };
        let change = ManifestChange::between(before.map(|old| &**old), Some(&record), Timestamp::now(), by);
        let change = change.map(Arc::new);
        self.commit(&key, Some(vec![Arc::clone(&record.manifest)]), change.clone()).await?;
        self.edits.pod(key.clone());
        self.snapshot.pods.insert(key, Arc::clone(&record));
        self.publish(change, publish);
        Ok(Stored { record, verb })
    }

    async fn delete(
        &mut self,
        (namespace, name): (&str, &str),
        grace: Option<u64>,
        by: By,
        publish: &impl Fn(Arc<SourceSnapshot>),
    ) -> Result<Arc<PodRecord>, PushError> {
        let Some(record) = self.find(namespace, name) else { return Err(self.not_pushed(namespace, name)) };
        let key = record.key.clone();
        let change = ManifestChange::between(Some(&record), None, Timestamp::now(), by).map(Arc::new);
        self.commit(&key, None, change.clone()).await?;
        let record = Arc::new(deleted(&record, grace, Timestamp::now()));
        self.edits.pod(key.clone());
        if self.context.observed.load().pods.contains_key(&key) {
            self.terminating.insert(key.clone());
            self.snapshot.pods.insert(key, Arc::clone(&record));
        } else {
            self.snapshot.pods.remove(&key);
        }
        self.publish(change, publish);
        Ok(record)
    }

    /// Writes the new state of a pod or object to disk, and waits until it is synced. After an error, nothing has
    /// changed.
    async fn commit(
        &self,
        key: &impl Display,
        manifests: Option<Manifests>,
        change: Option<Arc<ManifestChange>>,
    ) -> Result<(), PushError> {
        let name: Arc<str> = Arc::from(key.to_string());
        let mut changes = Changes::default();
        changes.put(Arc::clone(&name), manifests.map(|manifests| LastGood::new(manifests, Timestamp::now())));
        changes.remember(change.as_slice());
        let store = Arc::clone(&self.store);
        let written = tokio::task::spawn_blocking(move || store.apply(SourceKind::Push, &changes)).await;
        let reason = match written {
            Ok(Ok(_)) => {
                self.pulse.succeeded(Timestamp::now());
                return Ok(());
            }
            Ok(Err(error)) => error_chain(&error),
            Err(error) => error.to_string(),
        };
        error!(%name, reason, "push rejected: it cannot be saved to disk");
        Err(PushError::NotPersisted { reason })
    }

    /// The pod of that name, in its form with or without the node name.
    fn find(&self, namespace: &str, name: &str) -> Option<Arc<PodRecord>> {
        let pods = &self.snapshot.pods;
        keys(namespace, name, &self.node_name).iter().find_map(|key| pods.get(key)).cloned()
    }

    /// Why there is no pod of that name to delete.
    fn not_pushed(&self, namespace: &str, name: &str) -> PushError {
        let snapshots = self.context.slots.load();
        let of_another = keys(namespace, name, &self.node_name)
            .iter()
            .find_map(|key| snapshots.iter().find_map(|snapshot| snapshot.pods.get(key)).cloned());
        match of_another {
            Some(record) => PushError::NotPushed {
                what: format!("pod {}", record.key),
                by: record.source,
                origin: Arc::clone(&record.origin),
            },
            None => PushError::NotFound { resource: Resource::Pod, name: name.to_owned() },
        }
    }

    /// The pod of that key in a source that takes precedence.
    fn claimed(&self, key: &PodKey) -> Option<Arc<PodRecord>> {
        first_claim(&self.context.slots.load(), key).cloned()
    }

    fn remove_terminated(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        let observed = self.context.observed.load();
        let terminated: Vec<PodKey> =
            self.terminating.iter().filter(|key| !observed.pods.contains_key(*key)).cloned().collect();
        for key in &terminated {
            self.terminating.remove(key);
            self.snapshot.pods.remove(key);
            self.edits.pod(key.clone());
        }
        if !terminated.is_empty() {
            self.publish(None, publish);
        }
    }

    /// Publishes the snapshot, with the change that led to it.
    fn publish(&mut self, change: Option<Arc<ManifestChange>>, publish: &impl Fn(Arc<SourceSnapshot>)) {
        let SourceSnapshot { pods, objects, .. } = self.snapshot.clone();
        let mut saved = Records { pods, objects };
        self.terminating.iter().for_each(|key| _ = saved.pods.remove(key));
        self.saved.set(saved);
        self.snapshot.revision = self.edits.next_revision();
        publish(Arc::new(SourceSnapshot { changes: change.into_iter().collect(), ..self.snapshot.clone() }));
    }
}

/// The possible keys of a pod of that name.
fn keys(namespace: &str, name: &str, node_name: &str) -> Vec<PodKey> {
    let keys = [PodKey::parse(namespace, name), identity::key(Some(namespace), name, node_name)];
    keys.into_iter().flatten().collect()
}

/// The pod marked for deletion, as by an apiserver.
fn deleted(record: &PodRecord, grace: Option<u64>, now: Timestamp) -> PodRecord {
    let mut record = record.clone();
    let grace = grace.unwrap_or_else(|| record.grace_seconds());
    let metadata = &mut record.pod.metadata;
    metadata.deletion_timestamp.get_or_insert(Time(now));
    metadata.deletion_grace_period_seconds = i64::try_from(grace).ok();
    record
}

#[cfg(test)]
mod api_tests;
#[cfg(test)]
mod tests;
