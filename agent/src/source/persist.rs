//! Saves last good manifests to the database: one write at a time, off the agent's thread. A failed write is retried
//! with the next change, and at the source's next periodic rescan.

use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle};
use tracing::error;

use crate::source::Pulse;
use crate::store::{Changes, Store, StoreError, chain};
use limpet_core::last_good::LastGood;
use limpet_core::source::ManifestChange;
use limpet_model::directory_id::DirectoryId;
use limpet_model::source::SourceKind;

/// A finished write: the changes, and the result.
type Written = Result<(Changes, Result<bool, StoreError>), JoinError>;

/// One source's access to the database.
#[derive(Debug)]
pub(super) struct Persister {
    store: Arc<Store>,
    source: SourceKind,
    /// Receives the persist error.
    pulse: Arc<Pulse>,
    pending: Changes,
    writing: Option<JoinHandle<(Changes, Result<bool, StoreError>)>>,
    /// As of [`Store::replaced`].
    replaced: u64,
}

impl Persister {
    pub(super) fn new(store: Arc<Store>, source: SourceKind, pulse: Arc<Pulse>) -> Self {
        let replaced = store.replaced();
        Self { store, source, pulse, pending: Changes::default(), writing: None, replaced }
    }

    /// Whether everything has to be saved again because the database was replaced: true once per replacement.
    pub(super) fn must_save_all(&mut self) -> bool {
        let replaced = self.store.replaced();
        std::mem::replace(&mut self.replaced, replaced) != replaced
    }

    /// Loads what an earlier run saved; logs an error and returns `None` if it cannot be read.
    pub(super) async fn load<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let (store, source) = (Arc::clone(&self.store), self.source);
        match tokio::task::spawn_blocking(move || read(&store)).await {
            Ok(Ok(last_good)) => return Some(last_good),
            Ok(Err(error)) => error!(%source, error = chain(&error), "last good manifests cannot be read"),
            Err(error) => error!(%source, %error, "last good manifests cannot be read"),
        }
        None
    }

    /// Queues the last good manifests of a file or URL; `None` removes them.
    pub(super) fn put(&mut self, origin: Arc<str>, last_good: Option<LastGood>) {
        self.pending.last_good.insert(origin, last_good);
    }

    /// Queues the directory accepted at `path`.
    pub(super) fn put_directory(&mut self, path: Arc<str>, id: DirectoryId) {
        self.pending.directory = Some((path, id));
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
        self.writing = Some(tokio::task::spawn_blocking(move || {
            let outcome = store.apply(source, &changes);
            (changes, outcome)
        }));
    }

    /// Resolves when a write has finished and its follow-up has started; never while none is in progress. Cancel safe.
    pub(super) async fn written(&mut self) {
        let Some(writing) = self.writing.as_mut() else { return std::future::pending().await };
        let written = writing.await;
        self.writing = None;
        if self.settle(written) {
            self.write();
        }
    }

    /// Waits until everything queued is on disk, or cannot be written.
    pub(super) async fn flush(&mut self) {
        self.write();
        while self.writing.is_some() {
            self.written().await;
        }
    }

    /// Whether the write succeeded; unsaved changes stay queued for the next change.
    fn settle(&mut self, written: Written) -> bool {
        match written {
            Ok((_, Ok(_))) => {
                self.pulse.set_persist_error(None);
                return true;
            }
            Ok((changes, Err(error))) => {
                let error = chain(&error);
                error!(source = %self.source, error, "cannot save last good manifests, retrying later");
                self.pulse.set_persist_error(Some(error));
                let newer = std::mem::replace(&mut self.pending, changes);
                self.pending.last_good.extend(newer.last_good);
                self.pending.remember(&newer.history);
                self.pending.directory = newer.directory.or(self.pending.directory.take());
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

    fn last_good(manifest: &[u8]) -> LastGood {
        LastGood::new(vec![Arc::from(manifest)], jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn unsaved_changes_are_queued_again_below_newer_ones() {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        let mut persister = Persister::new(store, SourceKind::File, Arc::default());
        let old = DirectoryId { device: 1, inode: 1 };
        persister.put(Arc::from("a"), Some(last_good(b"1")));
        persister.put(Arc::from("b"), None);
        persister.put_directory(Arc::from("/m"), old);
        let lost = std::mem::take(&mut persister.pending);
        persister.put(Arc::from("a"), Some(last_good(b"2")));
        let full = StoreError::SetAside { path: "/db".into(), source: std::io::ErrorKind::StorageFull.into() };
        assert!(!persister.settle(Ok((lost, Err(full)))));
        assert_eq!(persister.pending.last_good[&Arc::from("a")], Some(last_good(b"2")));
        assert_eq!(persister.pending.last_good[&Arc::from("b")], None);
        assert_eq!(persister.pending.directory, Some((Arc::from("/m"), old)));
        assert!(persister.pulse.persist_error().unwrap().contains("/db"));
        assert!(persister.settle(Ok((Changes::default(), Ok(true)))) && persister.pulse.persist_error().is_none());
    }
}
