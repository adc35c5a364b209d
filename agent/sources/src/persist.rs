//! Saves last good manifests to the database: one write at a time, off the agent's thread. A failed write is retried
//! with the next change, and at the source's next periodic rescan. A hanging write is waited for only until a
//! deadline; what it would save then takes effect without it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use limpet_host::blocking::DEADLINE;
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, sleep_until};
use tracing::error;

use crate::Pulse;
use limpet_core::last_good::LastGood;
use limpet_core::source::ManifestChange;
use limpet_core::source::view::Contents;
use limpet_model::directory_id::DirectoryId;
use limpet_model::error_chain::error_chain;
use limpet_model::source::SourceKind;
use limpet_store::{Changes, SavedCopy, Store, StoreError};

/// A finished write: the changes, and the result.
type Written = Result<(Changes, Result<bool, StoreError>), JoinError>;

/// One source's access to the database.
#[derive(Debug)]
pub(super) struct Persister {
    store: Arc<Store>,
    source: SourceKind,
    /// Shows why the newest manifests are not on disk.
    pulse: Arc<Pulse>,
    pending: Changes,
    writing: Option<Writing>,
    /// Shared with the store, which reads it after damage.
    accepted: Arc<Accepted>,
}

/// The write in progress. There is one at a time, and what changes meanwhile waits.
#[derive(Debug)]
struct Writing {
    task: JoinHandle<(Changes, Result<bool, StoreError>)>,
    deadline: Instant,
    /// Whether the deadline has passed, which was then reported.
    is_overdue: bool,
}

/// What the source holds now, queued or written.
#[derive(Debug, Default)]
struct Accepted(Mutex<AcceptedFiles>);

#[derive(Debug, Default)]
struct AcceptedFiles {
    /// The contents of each file or URL, shared with the source's view, and the mark.
    files: BTreeMap<Arc<str>, (Arc<Contents>, String)>,
    directory: Option<(Arc<str>, DirectoryId)>,
}

impl Accepted {
    fn lock(&self) -> MutexGuard<'_, AcceptedFiles> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SavedCopy for Accepted {
    fn everything(&self) -> Changes {
        let (files, directory) = {
            let accepted = self.lock();
            (accepted.files.clone(), accepted.directory.clone())
        };
        let mut changes = Changes::default();
        for (origin, (contents, mark)) in files {
            changes.put(origin, Some(last_good(&contents, mark)));
        }
        if let Some((path, id)) = directory {
            changes.put(path, Some(id));
        }
        changes
    }
}

fn last_good(contents: &Contents, mark: String) -> LastGood {
    LastGood { mark, ..LastGood::new(contents.manifests(), Timestamp::now()) }
}

/// Runs `work` on the blocking pool, or with `inline` on this thread, after what is in progress.
fn blocking<T: Send + 'static>(inline: bool, work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    if inline { tokio::spawn(async move { work() }) } else { tokio::task::spawn_blocking(work) }
}

impl Persister {
    pub(super) fn new(store: Arc<Store>, source: SourceKind, pulse: Arc<Pulse>) -> Self {
        let accepted = Arc::default();
        store.register(source, &accepted);
        Self { store, source, pulse, pending: Changes::default(), writing: None, accepted }
    }

    /// Loads what an earlier run saved; logs an error and returns `None` if it cannot be read.
    pub(super) async fn load<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let (store, source) = (Arc::clone(&self.store), self.source);
        match blocking(self.store.is_inline(), move || read(&store)).await {
            Ok(Ok(last_good)) => return Some(last_good),
            Ok(Err(error)) => error!(%source, error = error_chain(&error), "last good manifests cannot be read"),
            Err(error) => error!(%source, %error, "last good manifests cannot be read"),
        }
        None
    }

    /// Queues the contents of a file or URL, with the source's mark; `None` removes them.
    pub(super) fn put(&mut self, origin: Arc<str>, contents: Option<Arc<Contents>>, mark: &str) {
        let last_good = contents.as_ref().map(|contents| last_good(contents, mark.to_owned()));
        match contents {
            Some(contents) => self.hold(Arc::clone(&origin), contents, mark),
            None => drop(self.accepted.lock().files.remove(&origin)),
        }
        self.pending.put(origin, last_good);
    }

    /// Records the contents of a file or URL that were loaded. They are written again only after damage.
    pub(super) fn hold(&self, origin: Arc<str>, contents: Arc<Contents>, mark: &str) {
        self.accepted.lock().files.insert(origin, (contents, mark.to_owned()));
    }

    /// Queues the directory accepted at `path`.
    pub(super) fn put_directory(&mut self, path: Arc<str>, id: DirectoryId) {
        self.accepted.lock().directory = Some((Arc::clone(&path), id));
        self.pending.put(path, Some(id));
    }

    /// Queues changes for the history; they are written together with the rest.
    pub(super) fn put_history(&mut self, changes: &[Arc<ManifestChange>]) {
        self.pending.remember(changes);
    }

    /// Starts writing what is queued, unless a write is in progress.
    pub(super) fn write(&mut self) {
        if self.writing.is_some() || self.pending.is_empty() {
            return;
        }
        let (store, source, changes) = (Arc::clone(&self.store), self.source, std::mem::take(&mut self.pending));
        let task = blocking(self.store.is_inline(), move || {
            let outcome = store.apply(source, &changes);
            (changes, outcome)
        });
        self.writing = Some(Writing { task, deadline: Instant::now() + DEADLINE, is_overdue: false });
    }

    /// Whether a write is in progress that is worth waiting for, because it does not hang.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.as_ref().is_some_and(|writing| !writing.is_overdue)
    }

    /// Resolves when a write has finished and its follow-up has started, or has missed its deadline; never resolves
    /// while none is in progress. Cancel safe.
    pub(super) async fn written(&mut self) {
        let Some(writing) = self.writing.as_mut() else { return std::future::pending().await };
        let written = tokio::select! {
            biased;
            written = &mut writing.task => written,
            () = sleep_until(writing.deadline), if !writing.is_overdue => {
                writing.is_overdue = true;
                let seconds = DEADLINE.as_secs();
                let error = format!("a write to the database has not ended within {seconds} s; changes take effect and are not saved");
                error!(source = %self.source, error, "saving last good manifests hangs");
                self.pulse.set_persist_error(Some(error));
                return;
            }
        };
        self.writing = None;
        if self.settle(written) {
            self.write();
        }
    }

    /// Waits until everything queued is on disk, or cannot be written within the deadline.
    pub(super) async fn flush(&mut self) {
        if let Some(writing) = &mut self.writing {
            (writing.deadline, writing.is_overdue) = (Instant::now() + DEADLINE, false);
        }
        self.write();
        while self.is_writing() {
            self.written().await;
        }
    }

    /// Whether the write succeeded. Unsaved changes stay queued for the next change.
    fn settle(&mut self, written: Written) -> bool {
        match written {
            Ok((_, Ok(_))) => {
                self.pulse.set_persist_error(None);
                return true;
            }
            Ok((changes, Err(error))) => {
                let error = error_chain(&error);
                error!(source = %self.source, error, "cannot save last good manifests, retrying later");
                self.pulse.set_persist_error(Some(error));
                let newer = std::mem::replace(&mut self.pending, changes);
                self.pending.extend(newer);
            }
            Err(error) => {
                error!(source = %self.source, %error, "saving last good manifests failed");
                self.pulse.set_persist_error(Some(error.to_string()));
            }
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn contents(name: &str) -> Arc<Contents> {
        let pod = serde_json::json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
            "spec": {"containers": [{"name": "c", "image": "i"}]}});
        let read = limpet_model::manifest::read(pod.to_string().as_bytes(), "a", SourceKind::File, "edge1");
        Arc::new(Contents {
            pods: read.pods.into_iter().map(|pod| (pod.key.clone(), pod)).collect(),
            ..Contents::default()
        })
    }

    fn opened() -> (tempfile::TempDir, Arc<Store>) {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        (root, store)
    }

    /// `origin mark: pods` of everything stored.
    fn stored(store: &Store) -> Vec<String> {
        let loaded = store.load::<LastGood>(SourceKind::File).unwrap();
        let text = |last_good: &LastGood| {
            last_good
                .manifests
                .iter()
                .map(|manifest| {
                    let value: serde_json::Value = serde_json::from_slice(manifest).unwrap();
                    format!(" {}", value["metadata"]["name"].as_str().unwrap())
                })
                .collect::<String>()
        };
        loaded
            .records
            .iter()
            .map(|(origin, last_good)| format!("{origin} {}:{}", last_good.mark, text(last_good)))
            .collect()
    }

    #[tokio::test]
    async fn unsaved_changes_are_queued_again_below_newer_ones() {
        let (_root, store) = opened();
        let mut persister = Persister::new(Arc::clone(&store), SourceKind::File, Arc::default());
        let old = DirectoryId { device: 1, inode: 1 };
        persister.put(Arc::from("a"), Some(contents("one")), "");
        persister.put(Arc::from("b"), Some(contents("other")), "");
        persister.put_directory(Arc::from("/m"), old);
        let lost = std::mem::take(&mut persister.pending);
        persister.put(Arc::from("a"), Some(contents("two")), "x");
        let full = StoreError::SetAside { path: "/db".into(), source: std::io::ErrorKind::StorageFull.into() };
        assert!(!persister.settle(Ok((lost, Err(full)))));
        assert!(persister.pulse.persist_error().unwrap().contains("/db"));
        persister.flush().await;
        assert_eq!(stored(&store), ["a x: two", "b : other"]);
        assert_eq!(store.get::<DirectoryId>(SourceKind::File, "/m").unwrap(), Some(old));
        assert!(persister.pulse.persist_error().is_none());
    }

    /// What another source finds damaged is written again at once, even if nothing of this source changes any more.
    #[tokio::test]
    async fn what_a_damaged_database_had_is_saved_again_by_the_next_call_of_anyone() {
        let (root, store) = opened();
        let mut persister = Persister::new(Arc::clone(&store), SourceKind::File, Arc::default());
        let id = DirectoryId { device: 1, inode: 1 };
        persister.put(Arc::from("a"), Some(contents("one")), "x");
        persister.put(Arc::from("gone"), Some(contents("gone")), "");
        persister.put(Arc::from("gone"), None, "");
        persister.put_directory(Arc::from("/m"), id);
        persister.hold(Arc::from("restored"), contents("two"), "y");
        persister.flush().await;
        assert_eq!(stored(&store), ["a x: one"]);
        store.forget_database();
        std::fs::write(root.path().join("limpet.db"), "not a database").unwrap();
        assert_eq!(store.history(&limpet_model::pod::PodKey::new("default", "x")).unwrap(), []);
        assert_eq!(stored(&store), ["a x: one", "restored y: two"]);
        assert_eq!(store.get::<DirectoryId>(SourceKind::File, "/m").unwrap(), Some(id));
        assert!(!store.load::<LastGood>(SourceKind::File).unwrap().complete);
        // The owner is gone, so nothing is left to write.
        drop(persister);
        store.forget_database();
        std::fs::write(root.path().join("limpet.db"), "not a database").unwrap();
        assert!(stored(&store).is_empty());
    }
}
