//! What the controllers of workloads remember, in the database. It is read once at the start, and written before it
//! takes effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_host::blocking::DEADLINE;
use limpet_host::{clock, wall_clock};
use limpet_kinds::{Controllers, Memory, MemoryChange, Revision, WorkloadId};
use limpet_model::error_chain::error_chain;
use limpet_model::object::{ObjectKey, ObjectKind};
use limpet_model::source::SourceKind;
use limpet_server::revisions::Controllers as ControllerMemory;
use limpet_wire::revisions::RevisionDocument;
use limpet_worker::workloads::Ledger;

use limpet_store::{Changes, SavedCopy, Store, StoredMemory};
use serde_json::Value;

/// The memory of the controllers of one node.
#[derive(Debug)]
pub struct WorkloadMemory {
    store: Arc<Store>,
    /// Of each source.
    held: Vec<Arc<Held>>,
}

/// What is remembered of one source's workloads, by the name of the record.
#[derive(Debug, Default)]
struct Held(Mutex<BTreeMap<Arc<str>, StoredMemory>>);

impl SavedCopy for Held {
    fn everything(&self) -> Changes {
        let mut changes = Changes::default();
        let held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        held.iter().for_each(|(name, memory)| changes.put(Arc::clone(name), Some(memory.clone())));
        changes
    }
}

/// The controllers of the node of that name, with what earlier ones remembered, and where they keep that. What cannot
/// be read is logged, and is then derived from the running pods.
pub async fn load(node_name: &str, store: &Arc<Store>) -> (Controllers, WorkloadMemory) {
    let mut loaded = Vec::new();
    let mut held = Vec::new();
    for source in SourceKind::ALL {
        let reading = Arc::clone(store);
        let records = tokio::task::spawn_blocking(move || reading.load::<StoredMemory>(source)).await;
        let records = match records {
            Ok(Ok(records)) => records.records,
            Ok(Err(error)) => {
                tracing::error!(%source, error = error_chain(&error), "what controllers remember cannot be read");
                BTreeMap::new()
            }
            Err(error) => {
                tracing::error!(%source, %error, "what controllers remember cannot be read");
                BTreeMap::new()
            }
        };
        for (name, record) in &records {
            match key_of(name).zip(Memory::from_bytes(&record.0)) {
                Some((key, memory)) => loaded.push((WorkloadId { source, key }, memory)),
                None => tracing::error!(%source, %name, "what a controller remembers cannot be read"),
            }
        }
        let of_source = Arc::new(Held(Mutex::new(records)));
        store.register(source, &of_source);
        held.push(of_source);
    }
    (Controllers::new(node_name, wall_clock::zone, loaded), WorkloadMemory { store: Arc::clone(store), held })
}

impl Ledger for WorkloadMemory {
    fn now(&self) -> Timestamp {
        clock::now().wall
    }

    fn until(&self, at: Timestamp) -> BoxFuture<'_, ()> {
        Box::pin(wall_clock::reached(at))
    }

    fn save(self: Arc<Self>, changes: Vec<MemoryChange>) -> BoxFuture<'static, ()> {
        let mut by_source: BTreeMap<SourceKind, Changes> = BTreeMap::new();
        for MemoryChange { id, memory } in changes {
            let record = memory.map(|memory| StoredMemory(Arc::from(memory.to_bytes())));
            let name = name_of(&id.key);
            let mut held = self.held[id.source.index()].0.lock().unwrap_or_else(PoisonError::into_inner);
            match &record {
                Some(record) => drop(held.insert(Arc::clone(&name), record.clone())),
                None => drop(held.remove(&name)),
            }
            by_source.entry(id.source).or_default().put(name, record);
        }
        let store = Arc::clone(&self.store);
        let writing = tokio::task::spawn_blocking(move || {
            for (source, changes) in by_source {
                if let Err(error) = store.apply(source, &changes) {
                    let error = error_chain(&error);
                    tracing::error!(%source, error, "what controllers remember cannot be saved; it takes effect all the same");
                }
            }
        });
        Box::pin(async move {
            if tokio::time::timeout(DEADLINE, writing).await.is_err() {
                tracing::error!("saving what controllers remember hangs; it takes effect all the same");
            }
        })
    }
}

impl ControllerMemory for WorkloadMemory {
    /// Of the first source that has the workload: its pods are those that run.
    fn revisions(&self, workload: &ObjectKey) -> Option<Vec<RevisionDocument>> {
        let name = name_of(workload);
        let stored = self.held.iter().find_map(|held| {
            let held = held.0.lock().unwrap_or_else(PoisonError::into_inner);
            held.get(&name).cloned()
        })?;
        let Memory { revisions, .. } = Memory::from_bytes(&stored.0)?;
        let document = |revision: Revision| RevisionDocument {
            number: revision.number,
            cause: revision.cause,
            template: revision.template,
        };
        Some(revisions.into_iter().map(document).collect())
    }

    fn status(&self, source: SourceKind, workload: &ObjectKey) -> Option<Value> {
        let stored = {
            let held = self.held[source.index()].0.lock().unwrap_or_else(PoisonError::into_inner);
            held.get(&name_of(workload)).cloned()
        }?;
        Memory::from_bytes(&stored.0)?.status()
    }
}

/// The name of a workload's record.
fn name_of(key: &ObjectKey) -> Arc<str> {
    Arc::from(format!("{}/{}/{}", key.kind.as_str(), key.namespace, key.name))
}

fn key_of(name: &str) -> Option<ObjectKey> {
    let mut parts = name.splitn(3, '/');
    let (kind, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
    Some(ObjectKey::new(ObjectKind::from_name(kind)?, namespace, name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_saved_is_there_after_a_restart_and_after_damage() {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        let key = ObjectKey::new(ObjectKind::Deployment, "shop", "web");
        let id = WorkloadId { source: SourceKind::File, key };
        let (_, memory) = load("edge1", &store).await;
        let memory = Arc::new(memory);
        let remembered = Memory { scaled_for: (3, 4), ..Memory::default() };
        let change = MemoryChange { id: id.clone(), memory: Some(remembered.clone()) };
        Arc::clone(&memory).save(vec![change]).await;
        let stored = store.load::<StoredMemory>(SourceKind::File).unwrap().records;
        assert_eq!(stored.len(), 1);
        assert_eq!(Memory::from_bytes(&stored["Deployment/shop/web"].0), Some(remembered));
        assert_eq!(key_of("Deployment/shop/web").unwrap(), id.key);
        assert!(!memory.held[SourceKind::File.index()].everything().is_empty());
        memory.clone().save(vec![MemoryChange { id, memory: None }]).await;
        assert!(store.load::<StoredMemory>(SourceKind::File).unwrap().records.is_empty());
        assert!(memory.held[SourceKind::File.index()].everything().is_empty());
    }
}
