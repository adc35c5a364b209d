//! What was last good, on its way to the disk: one write at a time, off the agent's thread; a failed one is tried
//! again with the next change, and when the source looks again of itself.

use std::sync::Arc;

use tokio::task::{JoinError, JoinHandle};
use tracing::error;

use crate::source::Pulse;
use crate::store::{Changes, Store, StoreError, chain};
use limpet_core::last_good::LastGood;
use limpet_core::source::ManifestChange;
use limpet_model::directory_id::DirectoryId;
use limpet_model::source::SourceKind;

/// A write that has ended: what was to be written, and how it went.
type Written = Result<(Changes, Result<bool, StoreError>), JoinError>;

/// One source's part of the database.
#[derive(Debug)]
pub(super) struct Keeper {
    store: Arc<Store>,
    source: SourceKind,
    /// Where it is told that something is not kept.
    pulse: Arc<Pulse>,
    pending: Changes,
    writing: Option<JoinHandle<(Changes, Result<bool, StoreError>)>>,
    /// As of [`Store::replaced`].
    replaced: u64,
}

impl Keeper {
    pub(super) fn new(store: Arc<Store>, source: SourceKind, pulse: Arc<Pulse>) -> Self {
        let replaced = store.replaced();
        Self { store, source, pulse, pending: Changes::default(), writing: None, replaced }
    }

    /// Whether all that is good has to be put again, because the database had to be replaced: true once.
    pub(super) fn must_begin_again(&mut self) -> bool {
        let replaced = self.store.replaced();
        std::mem::replace(&mut self.replaced, replaced) != replaced
    }

    /// What was kept by an earlier run; `None`, and told, when it cannot be read.
    pub(super) async fn load<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Option<T> {
        let (store, source) = (Arc::clone(&self.store), self.source);
        match tokio::task::spawn_blocking(move || read(&store)).await {
            Ok(Ok(kept)) => return Some(kept),
            Ok(Err(error)) => error!(%source, error = chain(&error), "last good manifests cannot be read"),
            Err(error) => error!(%source, %error, "last good manifests cannot be read"),
        }
        None
    }

    /// Notes what is good of a file or URL now; `None`: nothing.
    pub(super) fn put(&mut self, origin: Arc<str>, kept: Option<LastGood>) {
        self.pending.last_good.insert(origin, kept);
    }

    /// Notes which directory was accepted at `path`.
    pub(super) fn put_directory(&mut self, path: Arc<str>, id: DirectoryId) {
        self.pending.directory = Some((path, id));
    }

    /// Notes what changed: it is written together with the rest.
    pub(super) fn put_history(&mut self, changes: &[Arc<ManifestChange>]) {
        self.pending.remember(changes);
    }

    /// Begins to write what was noted, unless a write is under way.
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

    /// Resolves when a write has ended and what it calls for is done; never while none is under way. Cancel safe.
    pub(super) async fn written(&mut self) {
        let Some(writing) = self.writing.as_mut() else { return std::future::pending().await };
        let written = writing.await;
        self.writing = None;
        if self.settle(written) {
            self.write();
        }
    }

    /// Waits until all that was noted is on disk, or cannot be.
    pub(super) async fn flush(&mut self) {
        self.write();
        while self.writing.is_some() {
            self.written().await;
        }
    }

    /// Whether the write succeeded; what did not reach the disk waits for the next change.
    fn settle(&mut self, written: Written) -> bool {
        match written {
            Ok((_, Ok(_))) => {
                self.pulse.kept(None);
                return true;
            }
            Ok((changes, Err(error))) => {
                let error = chain(&error);
                error!(source = %self.source, error, "last good manifests are not kept, trying again later");
                self.pulse.kept(Some(error));
                let newer = std::mem::replace(&mut self.pending, changes);
                self.pending.last_good.extend(newer.last_good);
                self.pending.remember(&newer.history);
                self.pending.directory = newer.directory.or(self.pending.directory.take());
            }
            Err(error) => {
                error!(source = %self.source, %error, "keeping last good manifests failed");
                self.pulse.kept(Some(error.to_string()));
            }
        }
        false
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn kept(manifest: &[u8]) -> LastGood {
        LastGood::new(vec![Arc::from(manifest)], jiff::Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn what_did_not_reach_the_disk_comes_back_beneath_what_is_newer() {
        let root = tempfile::tempdir().unwrap();
        let store = Arc::new(Store::open(&root.path().join("limpet.db")).unwrap().0);
        let mut keeper = Keeper::new(store, SourceKind::File, Arc::default());
        let old = DirectoryId { device: 1, inode: 1 };
        keeper.put(Arc::from("a"), Some(kept(b"1")));
        keeper.put(Arc::from("b"), None);
        keeper.put_directory(Arc::from("/m"), old);
        let lost = std::mem::take(&mut keeper.pending);
        keeper.put(Arc::from("a"), Some(kept(b"2")));
        let full = StoreError::SetAside { path: "/db".into(), source: std::io::ErrorKind::StorageFull.into() };
        assert!(!keeper.settle(Ok((lost, Err(full)))));
        assert_eq!(keeper.pending.last_good[&Arc::from("a")], Some(kept(b"2")));
        assert_eq!(keeper.pending.last_good[&Arc::from("b")], None);
        assert_eq!(keeper.pending.directory, Some((Arc::from("/m"), old)));
        assert!(keeper.pulse.unkept().unwrap().contains("/db"));
        assert!(keeper.settle(Ok((Changes::default(), Ok(true)))) && keeper.pulse.unkept().is_none());
    }
}
