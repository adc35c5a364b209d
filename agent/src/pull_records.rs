//! What images were pulled with, as far as it decides who may use them: in memory, and in the database for the next
//! start.
//!
//! A pull with credentials of a pod is announced before it begins. A pull that ends without an answer (a crash, a
//! newer version of its pod) leaves its intent, so that its image does not count as preloaded. A record exists as
//! long as its image.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use limpet_containerd::image::{ImageError, Images};
use limpet_core::image_access::{ImageAccess, PullIntent, PulledImage, VerificationPolicy, access};
use limpet_model::error_chain::error_chain;
use limpet_model::pull_credential::{PullCredential, Salt};
use limpet_model::source::SourceKind;
use limpet_store::{Changes, SavedCopy, Store, StoreError};

/// The keys of both types do not contain a source.
const SOURCE: SourceKind = SourceKind::File;
/// Changes to the images within this time are checked together.
const SWEEP_DELAY: Duration = Duration::from_secs(1);

/// The records of the node. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PullRecords {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// Set once the database is open.
    store: OnceLock<Arc<Store>>,
    state: Mutex<PullState>,
    /// Held during a write, so that writes happen in the order of their changes.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct PullState {
    /// By digest, with the number of the change that it comes from.
    pulled: BTreeMap<Arc<str>, (u64, PulledImage)>,
    /// By the image's normalized name.
    intents: BTreeMap<Arc<str>, Intent>,
    changes: u64,
}

/// The pulls of an image that were begun.
#[derive(Debug, Default)]
struct Intent {
    running: usize,
    /// Whether it is not known how one of them ended.
    is_open: bool,
}

impl PullState {
    /// The images whose pulls have all ended, at least one of them in an unknown way.
    fn unsettled(&self) -> Vec<Arc<str>> {
        let ended = self.intents.iter().filter(|(_, intent)| intent.running == 0);
        ended.map(|(image, _)| Arc::clone(image)).collect()
    }

    /// Records that the result of such pulls is known now. Returns whether no other pull has begun meanwhile.
    fn settle(&mut self, image: &str) -> bool {
        let is_settled = self.intents.get(image).is_some_and(|intent| intent.running == 0);
        is_settled && self.intents.remove(image).is_some()
    }

    /// Removes an intent whose pulls have all ended in a known way.
    fn forget_ended(&mut self, image: &str) {
        if self.intents.get(image).is_some_and(|intent| intent.running == 0 && !intent.is_open) {
            self.intents.remove(image);
        }
    }

    /// Removes the records of images that are not in `there`, unless they are newer than the change `before`.
    fn take_gone(&mut self, before: u64, there: &HashSet<Arc<str>>) -> Vec<Arc<str>> {
        let gone =
            |digest: &Arc<str>, (changed, _): &mut (u64, PulledImage)| *changed <= before && !there.contains(digest);
        self.pulled.extract_if(.., gone).map(|(digest, _)| digest).collect()
    }
}

impl SavedCopy for Inner {
    fn everything(&self) -> Changes {
        let state = self.state();
        let mut changes = Changes::default();
        state.pulled.iter().for_each(|(digest, (_, record))| changes.put(Arc::clone(digest), Some(record.clone())));
        state.intents.keys().for_each(|image| changes.put(Arc::clone(image), Some(PullIntent)));
        changes
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, PullState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A pull in progress. If it is dropped, its intent stays.
#[derive(Debug)]
pub struct AnnouncedPull {
    records: PullRecords,
    image: Arc<str>,
    has_ended: bool,
}

impl Drop for AnnouncedPull {
    fn drop(&mut self) {
        if let Some(intent) = self.records.inner.state().intents.get_mut(&self.image) {
            intent.running = intent.running.saturating_sub(1);
            intent.is_open |= !self.has_ended;
        }
    }
}

impl PullRecords {
    /// Reads what an earlier agent has recorded. Logs an error if it cannot be read; images then count as preloaded.
    pub async fn load(&self, store: &Arc<Store>) {
        let (inner, store) = (Arc::clone(&self.inner), Arc::clone(store));
        // It is set only once, because the agent has one database.
        let _ = inner.store.set(Arc::clone(&store));
        let loaded = blocking(move || {
            let mut pulled = store.load::<PulledImage>(SOURCE)?.records;
            let mut changes = Changes::default();
            for (digest, record) in &mut pulled {
                // An earlier version wrote them without a salt.
                if record.salt(salt) {
                    changes.put(Arc::clone(digest), Some(record.clone()));
                }
            }
            let intents = store.load::<PullIntent>(SOURCE)?.records;
            let mut state = inner.state();
            state.pulled = pulled.into_iter().map(|(digest, record)| (digest, (0, record))).collect();
            let open = || Intent { running: 0, is_open: true };
            state.intents = intents.into_keys().map(|image| (image, open())).collect();
            drop(state);
            store.register(SOURCE, &inner);
            if let Err(error) = store.apply(SOURCE, &changes) {
                tracing::error!(error = error_chain(&error), "saving a pull record failed");
            }
            Ok(())
        });
        if let Err(error) = loaded.await {
            tracing::error!(
                error = error_chain(&error),
                "the records of image pulls cannot be read; all images count as preloaded"
            );
        }
    }

    /// Who may use an image of this digest that is present, as `reference` names it.
    pub fn access(&self, policy: &VerificationPolicy, reference: &str, name: &str, digest: &str) -> ImageAccess {
        let state = self.inner.state();
        let record = state.pulled.get(digest).map(|(_, record)| record);
        access(policy, reference, record, state.intents.contains_key(name))
    }

    /// Announces a pull of an image, by its normalized name.
    ///
    /// # Errors
    ///
    /// It cannot be recorded.
    pub async fn announce(&self, name: &str) -> Result<AnnouncedPull, StoreError> {
        let image: Arc<str> = Arc::from(name);
        self.inner.state().intents.entry(Arc::clone(&image)).or_default().running += 1;
        let mut pull = AnnouncedPull { records: self.clone(), image: Arc::clone(&image), has_ended: false };
        match self.write(Some(image), None).await {
            Ok(()) => Ok(pull),
            Err(error) => {
                pull.has_ended = true;
                self.end(pull, None).await;
                Err(error)
            }
        }
    }

    /// A pull brought an image of this digest: remembers for `reference` what it was pulled with. `pull`: if it was
    /// announced.
    pub async fn succeeded(&self, pull: Option<AnnouncedPull>, reference: &str, digest: &str, with: PullCredential) {
        let is_new = self.add(digest, Some((reference, with)));
        match pull {
            Some(pull) => self.end(pull, Some(digest)).await,
            None if is_new => self.save(None, Some(Arc::from(digest))).await,
            None => {}
        }
    }

    /// Records that a pull failed.
    pub async fn failed(&self, pull: AnnouncedPull) {
        self.end(pull, None).await;
    }

    /// Remembers that a pod may use the image by another credential.
    pub async fn learn(&self, reference: &str, digest: &str, credential: &PullCredential) {
        if self.add(digest, Some((reference, credential.clone()))) {
            self.save(None, Some(Arc::from(digest))).await;
        }
    }

    /// Settles pulls whose result is not known, because an image that is present may come from them, under whatever
    /// name.
    ///
    /// # Errors
    ///
    /// containerd does not answer.
    pub async fn settle(&self, images: &Images) -> Result<(), ImageError> {
        let unsettled = self.inner.state().unsettled();
        for image in unsettled {
            let digest = images.digest(&image).await?;
            if let Some(digest) = &digest {
                self.add(digest, None);
            }
            if self.inner.state().settle(&image) {
                self.save(Some(image), digest.map(Arc::from)).await;
            }
        }
        Ok(())
    }

    /// Forgets images that are gone, until the agent stops.
    pub async fn follow(self, images: Images, stop: CancellationToken) {
        let mut contents = images.contents();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                changed = contents.changed() => if changed.is_err() { return },
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(SWEEP_DELAY) => {}
            }
            contents.mark_unchanged();
            if let Err(error) = self.forget_gone(&images).await {
                tracing::debug!(%error, "deleting the records of removed images failed; retried later");
            }
        }
    }

    async fn forget_gone(&self, images: &Images) -> Result<(), ImageError> {
        let known = self.inner.state().pulled.len();
        let before = self.inner.state().changes;
        if known == 0 {
            return Ok(());
        }
        let stored = images.stored().await?;
        let there: HashSet<Arc<str>> = stored.into_iter().map(|image| image.digest).collect();
        let gone = self.inner.state().take_gone(before, &there);
        for digest in gone {
            self.save(None, Some(digest)).await;
        }
        Ok(())
    }

    /// Remembers what an image was pulled with; `None` for an unknown credential. Returns whether that is new.
    fn add(&self, digest: &str, pulled: Option<(&str, PullCredential)>) -> bool {
        let mut state = self.inner.state();
        state.changes += 1;
        let changes = state.changes;
        let (changed, record) = state.pulled.entry(Arc::from(digest)).or_default();
        *changed = changes;
        let is_new = pulled.is_some_and(|(reference, credential)| record.add(reference, credential));
        record.salt(salt);
        is_new
    }

    async fn end(&self, mut pull: AnnouncedPull, digest: Option<&str>) {
        pull.has_ended = true;
        let image = Arc::clone(&pull.image);
        drop(pull);
        self.inner.state().forget_ended(&image);
        self.save(Some(image), digest.map(Arc::from)).await;
    }

    async fn save(&self, image: Option<Arc<str>>, digest: Option<Arc<str>>) {
        if let Err(error) = self.write(image, digest).await {
            tracing::error!(error = error_chain(&error), "saving a pull record failed");
        }
    }

    /// Writes what is known about an image's pull and about a digest.
    async fn write(&self, image: Option<Arc<str>>, digest: Option<Arc<str>>) -> Result<(), StoreError> {
        let inner = Arc::clone(&self.inner);
        blocking(move || {
            let Some(store) = inner.store.get() else { return Ok(()) };
            let _turn = inner.writing.lock().unwrap_or_else(PoisonError::into_inner);
            let mut changes = Changes::default();
            let state = inner.state();
            if let Some(image) = image {
                let intent = state.intents.contains_key(&image).then_some(PullIntent);
                changes.put(image, intent);
            }
            if let Some(digest) = digest {
                let record = state.pulled.get(&digest).map(|(_, record)| record.clone());
                changes.put(digest, record);
            }
            drop(state);
            store.apply(SOURCE, &changes).map(drop)
        })
        .await
    }
}

/// Random bytes for a hash that is stored.
fn salt() -> Salt {
    let mut salt = Salt::default();
    // The kernel's random numbers do not fail once they are available, and 16 bytes are returned at once.
    let _ = rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty());
    salt
}

/// Runs `work` on the blocking pool. A panic there is reported, and counts as nothing written.
async fn blocking(work: impl FnOnce() -> Result<(), StoreError> + Send + 'static) -> Result<(), StoreError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, "saving a pull record panicked");
        Ok(())
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::pull_credential::{CredentialHash, PullSecret};

    use super::*;

    const NAME: &str = "q.io/closed:v1";
    const POLICY: VerificationPolicy = VerificationPolicy::NeverVerifyPreloadedImages;

    fn open(dir: &tempfile::TempDir) -> Arc<Store> {
        Arc::new(Store::open(&dir.path().join("limpet.db")).unwrap().0)
    }

    async fn load(dir: &tempfile::TempDir) -> PullRecords {
        let records = PullRecords::default();
        records.load(&open(dir)).await;
        records
    }

    #[tokio::test]
    async fn the_end_of_a_pull_is_remembered_by_the_next_agent() {
        let dir = tempfile::tempdir().unwrap();
        let records = load(&dir).await;
        let pull = records.announce(NAME).await.unwrap();
        assert_eq!(records.access(&POLICY, NAME, NAME, "d"), ImageAccess::Holders(vec![]), "under way");
        records.failed(pull).await;
        assert_eq!(records.access(&POLICY, NAME, NAME, "d"), ImageAccess::All, "preloaded");
        let pull = records.announce(NAME).await.unwrap();
        records.succeeded(Some(pull), NAME, "d", PullCredential::ServiceAccount(Default::default())).await;
        let wanted = ImageAccess::Holders(vec![PullCredential::ServiceAccount(Default::default())]);
        assert_eq!(records.access(&POLICY, NAME, NAME, "d"), wanted);
        drop(records);
        assert_eq!(load(&dir).await.access(&POLICY, NAME, NAME, "d"), wanted);
    }

    #[tokio::test]
    async fn a_pull_that_was_broken_off_leaves_its_intent() {
        let dir = tempfile::tempdir().unwrap();
        let records = load(&dir).await;
        let (first, second) = (records.announce(NAME).await.unwrap(), records.announce(NAME).await.unwrap());
        // The failure of another pull of the image says nothing about this one.
        drop(first);
        records.failed(second).await;
        let check = |records: PullRecords| {
            assert_eq!(records.inner.state().unsettled(), [Arc::from(NAME)]);
            assert_eq!(records.access(&POLICY, NAME, NAME, "d"), ImageAccess::Holders(vec![]));
            assert_eq!(records.access(&VerificationPolicy::NeverVerify, NAME, NAME, "d"), ImageAccess::All);
        };
        check(records);
        check(load(&dir).await);
    }

    /// Also one that an earlier version has written.
    #[tokio::test]
    async fn no_hash_of_a_password_is_on_disk_without_a_salt() {
        let dir = tempfile::tempdir().unwrap();
        let hash = CredentialHash::new(b"password");
        let [uid, namespace, name] = ["u", "n", "s"].map(str::to_owned);
        let secret = PullCredential::Secret(PullSecret { uid, namespace, name, hash: hash.clone() });
        let mut earlier = PulledImage::default();
        earlier.add(NAME, secret.clone());
        let mut changes = Changes::default();
        changes.put(Arc::from("earlier"), Some(earlier));
        open(&dir).apply(SOURCE, &changes).unwrap();
        load(&dir).await.succeeded(None, NAME, "new", secret.clone()).await;
        let stored = open(&dir).load::<PulledImage>(SOURCE).unwrap().records;
        assert_eq!(stored.len(), 2);
        assert!(!format!("{stored:?}").contains(hash.as_str()), "{stored:?}");
        assert_ne!(stored["earlier"], stored["new"], "each has a salt of its own");
        let records = load(&dir).await;
        for digest in ["earlier", "new"] {
            let ImageAccess::Holders(holders) = records.access(&POLICY, NAME, NAME, digest) else { panic!("{digest}") };
            assert!(limpet_core::image_access::holder(&holders, std::slice::from_ref(&secret)).is_some());
        }
        assert!(!records.add("new", Some((NAME, secret))), "written again though nothing has changed");
    }

    #[test]
    fn what_is_older_than_the_look_and_not_there_is_forgotten() {
        let records = PullRecords::default();
        ["gone", "stays"].iter().for_each(|digest| _ = records.add(digest, None));
        let before = records.inner.state().changes;
        records.add("new", None);
        let there = HashSet::from([Arc::from("stays")]);
        assert_eq!(records.inner.state().take_gone(before, &there), [Arc::from("gone")]);
        let left: Vec<_> = records.inner.state().pulled.keys().cloned().collect();
        assert_eq!(left, [Arc::from("new"), Arc::from("stays")]);
    }
}
