//! Images: finds local ones, pulls missing ones, and imports archives.
//!
//! Pulls go from the registry directly into containerd's content store and are unpacked by its diff service, the one way
//! that works on both containerd 1.7 and 2.x. Archives in the agent's directory are imported the same way.
//! Offline: `find` and the archives need no network. After a crash or a power cut: a record is written last, so an image
//! is complete or absent; an interrupted download is resumed.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::client::Client;
use crate::image_verifier::VerifierSettings;
use limpet_host::blocking;
use limpet_host::throttle::Throttle;
use limpet_model::object::ObjectRecord;
use limpet_model::pull_progress::PullProgress;
use limpet_model::service_account::AccountOfPod;

mod admission;
mod archive;
mod artifact;
mod auth;
mod certs;
mod content;
mod credential_provider;
mod document;
mod error;
mod failure;
mod flight;
mod go_json;
mod http;
mod import;
mod inventory;
mod local;
mod login;
mod missing_layers;
mod platform;
mod preload;
mod progress;
mod pull;
mod registry;
mod removal;
mod signatures;
mod token;
mod unpack;

pub use admission::ImageReport;
pub use artifact::{Artifact, ArtifactContent};
pub use credential_provider::{CredentialProvider, PullAccount, TokenAttributes, TokenCache};
pub use error::{CallError, ImageError};
pub use flight::{PullStep, PulledNow, RunningPull};
pub use platform::{ImagePlatform, WASM};
pub use preload::ArchiveEvent;

use admission::Admission;
use containerd_client::types;
use content::Store;
use credential_provider::{CredentialProviders, ProvidedCredentials};
use flight::{Flight, PullResult};
use limpet_image_policy::policy::ImagePolicy;
use limpet_model::image::LocalImage;
use limpet_model::image_name::{ImageName, Target};
use limpet_model::pull_credential::PullCredential;

/// The most credentials that are tried in one pull.
const MAX_CREDENTIALS_TRIED: usize = 16;

/// The most cached images; others are looked up in containerd again.
const MAX_CACHED_IMAGES: usize = 256;

/// Where images come from, and which may be used.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageSettings {
    /// `registryConfigDirectory`: containerd's `certs.d`; need not exist.
    pub registry_config_dir: PathBuf,
    /// `--image-credential-provider-config`: programs that give credentials, tried after those of the files.
    pub credential_providers: Vec<CredentialProvider>,
    /// `imagePolicy`; `None`: every image may be used.
    pub policy: Option<ImagePolicy>,
}

impl Default for ImageSettings {
    fn default() -> Self {
        Self { registry_config_dir: "/etc/containerd/certs.d".into(), credential_providers: Vec::new(), policy: None }
    }
}

/// The sources of images, and their snapshotter.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// containerd's snapshotter, such as `overlayfs`.
    pub snapshotter: String,
    pub settings: ImageSettings,
    /// Docker's `config.json` files, which need not exist. The first one with credentials for a registry is used.
    pub auth_files: Vec<PathBuf>,
    /// `<root-dir>/images`: archives to import.
    pub archives_dir: PathBuf,
    /// containerd's image verifiers, which are asked before a pull; `None` if it has none.
    pub verifiers: Option<VerifierSettings>,
    /// The rate at which registries are read.
    pub throttle: Throttle,
}
use ImagesConfig as Config;

/// A pod's pull secrets, in its order.
pub type PullSecrets = Arc<[Arc<ObjectRecord>]>;

/// What a pod may pull with, in addition to the node's own credentials.
#[derive(Debug, Clone, Default)]
pub struct PullAccess {
    pub secrets: PullSecrets,
    /// Its service account, for credential providers that take its tokens.
    pub account: Option<PullAccount>,
    /// The platform of its programs.
    pub platform: ImagePlatform,
}

impl PullAccess {
    /// Access to an image that is only stored, and that any pod may use.
    pub fn of_node() -> Self {
        Self { platform: ImagePlatform::Any, ..Self::default() }
    }

    fn pod(&self) -> Option<&AccountOfPod> {
        self.account.as_ref().map(|account| &account.pod)
    }

    /// Whether both give the same access.
    fn equals(&self, other: &Self) -> bool {
        let (a, b) = (&self.secrets, &other.secrets);
        let same_secrets = a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| Arc::ptr_eq(a, b) || a == b);
        same_secrets && self.pod() == other.pod() && self.platform == other.platform
    }
}

/// The node's images. Clones share everything.
#[derive(Clone)]
pub struct Images {
    inner: Arc<Inner>,
}

impl std::fmt::Debug for Images {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Images").field("config", &self.inner.config).finish_non_exhaustive()
    }
}

struct Inner {
    store: Store,
    config: Config,
    credential_providers: CredentialProviders,
    admission: Admission,
    cache: Mutex<HashMap<(String, ImagePlatform), Arc<LocalImage>>>,
    flights: Mutex<HashMap<String, Vec<Flight>>>,
    /// Images whose pull this agent has started and whose lease it has not released.
    unfinished: Mutex<HashSet<String>>,
    /// Problems of auth files that were already logged.
    complained: Mutex<Vec<String>>,
    ready: watch::Sender<bool>,
    /// Images that starts have reserved, and images that are being removed.
    reservations: removal::Reservations,
    /// Whether an image could not be stored because the disk is full.
    ran_out: AtomicBool,
    /// Notified when an image was stored, or may be removed.
    changed: tokio::sync::Notify,
    /// Counts the images that this agent has stored and removed.
    contents: watch::Sender<u64>,
    /// Notified when a pod's disk usage was measured.
    measured: tokio::sync::Notify,
    /// Normalized names of the images that were imported from archives.
    imported: watch::Sender<Arc<HashSet<String>>>,
}

impl Images {
    /// Images of the containerd behind `client`. No request is sent before the first call.
    pub fn new(client: Client, config: ImagesConfig) -> Self {
        // Fails if a provider is already installed, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let inner = Inner {
            store: Store::new(client, &config.snapshotter),
            credential_providers: CredentialProviders::new(config.settings.credential_providers.clone()),
            admission: Admission::new(config.settings.policy.clone(), config.verifiers.clone()),
            config,
            cache: Mutex::default(),
            flights: Mutex::default(),
            unfinished: Mutex::default(),
            complained: Mutex::default(),
            ready: watch::Sender::new(false),
            reservations: removal::Reservations::default(),
            ran_out: AtomicBool::new(false),
            changed: tokio::sync::Notify::new(),
            contents: watch::Sender::default(),
            measured: tokio::sync::Notify::new(),
            imported: watch::Sender::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The image, if containerd has it completely. Unpacks it if its content exists but its snapshot does not.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Runtime` while containerd does not answer; `DiskFull` from unpacking.
    pub async fn find(&self, reference: &str, platform: ImagePlatform) -> Result<Option<Arc<LocalImage>>, ImageError> {
        let name = ImageName::parse(reference)?;
        let call = |error| ImageError::call(&name.whole, error);
        let store = &self.inner.store;
        let Some(digest) = self.reserve_name(&name).await? else { return Ok(None) };
        let cached = self.inner.cached(&name.whole, platform).filter(|image| *image.digest == *digest);
        if let Some(image) = cached
            && store.has_snapshot(&image.chain_id).await.map_err(call)?
        {
            return Ok(Some(image));
        }
        match store.local(&name.whole, &digest, platform).await {
            Ok(local) => Ok(local.map(|image| self.inner.remember(image, platform))),
            // For example another platform's image. It counts as missing; a pull reports why it cannot be used.
            Err(error @ ImageError::Content { .. }) => {
                tracing::warn!(%error, "the image in containerd is not usable and counts as missing");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether [`Self::find`] would return the image. Changes nothing.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Runtime` while containerd does not answer.
    pub async fn is_here(&self, reference: &str) -> Result<bool, ImageError> {
        let name = ImageName::parse(reference)?;
        let Some(digest) = self.target(&name).await? else { return Ok(false) };
        match self.inner.store.is_complete(&name.whole, &digest).await {
            Err(ImageError::Content { .. }) => Ok(false),
            answer => answer,
        }
    }

    /// The pod's own credentials for an image, without contacting a registry or a credential provider.
    ///
    /// # Errors
    /// `InvalidName`; `Config` of a file below `certs.d`.
    pub async fn pod_credentials(
        &self,
        reference: &str,
        access: &PullAccess,
    ) -> Result<Vec<PullCredential>, ImageError> {
        let name = ImageName::parse(reference)?;
        let account = access.account.as_ref().filter(|_| self.inner.credential_providers.take_tokens(&name));
        let mut credentials = self.inner.usable_secrets(name, &access.secrets).await?;
        if let Some(PullAccount { pod, issuer }) = account {
            // Without an apiserver the account's UID is unknown.
            let uid = issuer.account(pod).await.map(|account| account.uid).unwrap_or_default();
            credentials.push(PullCredential::ServiceAccount(pod.identified(uid)));
        }
        Ok(credentials)
    }

    /// Whether a pull of the image may use credentials of the pod.
    ///
    /// # Errors
    /// `InvalidName`.
    pub fn may_use_credentials(&self, reference: &str, access: &PullAccess) -> Result<bool, ImageError> {
        let name = ImageName::parse(reference)?;
        let by_token = access.account.is_some() && self.inner.credential_providers.take_tokens(&name);
        Ok(by_token || !access.secrets.is_empty())
    }

    /// The digest of the name in containerd; `None` if the image does not exist.
    ///
    /// # Errors
    ///
    /// `InvalidName`; `Runtime` while containerd does not answer.
    pub async fn digest(&self, reference: &str) -> Result<Option<String>, ImageError> {
        self.target(&ImageName::parse(reference)?).await
    }

    /// The digest of the name in containerd.
    pub(super) async fn target(&self, name: &ImageName) -> Result<Option<String>, ImageError> {
        Ok(self.record(name).await?.map(|target| target.digest))
    }

    /// The descriptor to which the name resolves in containerd.
    async fn record(&self, name: &ImageName) -> Result<Option<types::Descriptor>, ImageError> {
        let call = |error| ImageError::call(&name.whole, error);
        let store = &self.inner.store;
        let mut record = store.image(&name.whole).await.map_err(call)?;
        if let (None, Target::Digest(digest)) = (&record, &name.target) {
            // The same content under any name is the same image.
            record = store.list_images(&format!("target.digest=={digest}")).await.map_err(call)?.into_iter().next();
        }
        Ok(record.and_then(|record| record.target))
    }

    /// Releases the leases of interrupted pulls in containerd, except those of images that are still `wanted` (by
    /// normalized name). Call it when the desired pods are known: once after a start, and when
    /// [`has_unfinished`](Self::has_unfinished) returns true. Returns whether no pull of an unwanted image still
    /// runs.
    ///
    /// # Errors
    ///
    /// `Runtime` if containerd does not answer.
    pub async fn forget_unwanted(&self, wanted: impl Fn(&str) -> bool) -> Result<bool, ImageError> {
        let store = &self.inner.store;
        let call = |error| ImageError::call("*", error);
        let mut all = true;
        for (lease, image) in store.leases(pull::LEASE_PREFIX).await.map_err(call)? {
            if wanted(&image) {
                continue;
            }
            if self.is_pulled(&image) {
                all = false;
                continue;
            }
            tracing::info!(image, "removed an unfinished pull that is no longer needed");
            store.delete_lease(&lease).await.map_err(call)?;
            self.inner.unfinished().remove(&image);
        }
        Ok(all)
    }

    /// Whether a pull by this agent was interrupted or still runs.
    pub fn has_unfinished(&self) -> bool {
        !self.inner.unfinished().is_empty()
    }
}

impl Inner {
    async fn pull(&self, name: ImageName, access: &PullAccess, progress: watch::Sender<PullProgress>) -> PullResult {
        let meter = progress::Meter::new(&name.whole, progress);
        let provided = self.credentials(&name, access).await;
        let mut turn = 0;
        loop {
            let (session, others) = self.session(name.clone(), &access.secrets, &provided, turn).await?;
            turn += 1;
            self.unfinished().insert(name.whole.clone());
            let pulled = pull::pull(&self.store, session, &self.config, &self.admission, &meter, access.platform).await;
            if pulled.as_ref().err().is_none_or(|error| !error.keeps_ingests()) {
                self.unfinished().remove(&name.whole);
            }
            match pulled {
                // As in kubelet, every matching credential is tried.
                Err(ImageError::Unauthorized { cause, .. }) if others && turn < MAX_CREDENTIALS_TRIED => {
                    tracing::info!(
                        image = name.whole,
                        cause,
                        "the registry refused the credentials; trying the next ones"
                    );
                }
                Err(error) => {
                    self.note_failure(&error);
                    return Err(error.with_causes(&provided.failures));
                }
                Ok((local, with)) => {
                    self.reservations.reserve(&local.digest).await;
                    self.note_change();
                    tracing::info!(image = name.whole, digest = &*local.digest, size = local.size, "image pulled");
                    return Ok(PulledNow { image: self.remember(local, access.platform), with });
                }
            }
        }
    }

    /// The credential providers' answers for an image.
    async fn credentials(&self, name: &ImageName, access: &PullAccess) -> Arc<ProvidedCredentials> {
        let provided = self.credential_providers.credentials(name, access.account.as_ref()).await;
        for failure in &provided.failures {
            tracing::warn!(image = name.whole, failure, "registry credentials are not available");
        }
        Arc::new(provided)
    }

    /// A session with the credentials of this `turn`, and whether there are more.
    async fn session(
        &self,
        name: ImageName,
        secrets: &PullSecrets,
        provided: &Arc<ProvidedCredentials>,
        turn: usize,
    ) -> Result<(registry::Session, bool), ImageError> {
        let image = name.whole.clone();
        let (certs_d, auth_files) = (self.config.settings.registry_config_dir.clone(), self.config.auth_files.clone());
        let (secrets, provided) = (Arc::clone(secrets), Arc::clone(provided));
        let prepared = blocking::run(certs_d.clone(), blocking::DEADLINE, move |_| {
            let keyring = auth::Keyring::new(&secrets, &auth_files, &provided.entries);
            let others = keyring.count(&name.host, &name.repository) > turn + 1;
            let session = registry::Session::prepare(name, &certs_d, &keyring, turn);
            (session, others, keyring.complaints)
        });
        let failed = |error| ImageError::Registry { image, cause: format!("set-up failed: {error}") };
        let (session, others, complaints) = prepared.await.map_err(failed)?;
        self.complain(complaints);
        let mut session = session?;
        session.throttle = self.config.throttle.clone();
        Ok((session, others))
    }

    async fn usable_secrets(&self, name: ImageName, secrets: &PullSecrets) -> Result<Vec<PullCredential>, ImageError> {
        if secrets.is_empty() {
            return Ok(Vec::new());
        }
        let image = name.whole.clone();
        let (certs_d, secrets) = (self.config.settings.registry_config_dir.clone(), Arc::clone(secrets));
        let usable = blocking::run(certs_d.clone(), blocking::DEADLINE, move |_| {
            registry::Session::usable(&name, &certs_d, &auth::Keyring::new(&secrets, &[], &[]))
        });
        usable.await.map_err(|error| ImageError::Registry { image, cause: format!("set-up failed: {error}") })?
    }

    /// Records that the store has new content.
    fn note_change(&self) {
        self.changed.notify_one();
        self.contents.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Notifies the task that frees space if the disk was full.
    fn note_failure(&self, error: &ImageError) {
        if matches!(error, ImageError::DiskFull { .. }) {
            self.ran_out.store(true, Ordering::Relaxed);
            self.changed.notify_one();
        }
    }

    fn unfinished(&self) -> MutexGuard<'_, HashSet<String>> {
        self.unfinished.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn complain(&self, complaints: Vec<String>) {
        let mut known = self.complained.lock().unwrap_or_else(PoisonError::into_inner);
        for complaint in complaints {
            if !known.contains(&complaint) {
                tracing::warn!("registry credentials: {complaint}");
                known.push(complaint);
            }
        }
    }

    fn cached(&self, name: &str, platform: ImagePlatform) -> Option<Arc<LocalImage>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(&(name.to_owned(), platform)).cloned()
    }

    fn forget(&self, name: &str) {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).retain(|(known, _), _| known != name);
    }

    fn remember(&self, image: LocalImage, platform: ImagePlatform) -> Arc<LocalImage> {
        let image = Arc::new(image);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= MAX_CACHED_IMAGES {
            cache.clear();
        }
        cache.insert((image.name.to_string(), platform), Arc::clone(&image));
        image
    }
}
