//! Images: what is here, and how what is missing gets here.
//!
//! Pulls go from the registry straight into containerd's content store and are unpacked by its diff service, the one way
//! that works on containerd 1.7 and 2.x alike. Archives beside the agent's data are imported the same way.
//! Offline: `find` and the archives need no network. After a crash or a power cut: a record is written last, so an image
//! is whole or absent; half a download continues where it stopped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared, WeakShared};
use oci_spec::image::ImageConfiguration;
use tokio::sync::watch;

use super::client::Client;

mod archive;
mod auth;
mod certs;
mod content;
mod document;
mod error;
mod import;
mod local;
mod platform;
mod preload;
mod progress;
mod pull;
mod reference;
mod registry;
mod token;
mod unpack;

pub use error::{CallError, ImageError};
pub use preload::ArchiveEvent;
pub use progress::PullProgress;
pub use reference::normalize;

use content::Store;
use reference::{ImageName, Target};

/// How many images are remembered; beyond it containerd is asked again.
const CACHED: usize = 256;

/// An image that is present and unpacked: all a container start needs to know of it. Cached by digest.
#[derive(Debug)]
pub struct LocalImage {
    /// The name in containerd, normalised: `docker.io/library/busybox:latest`.
    pub name: Arc<str>,
    /// Digest of what the name points to (index or manifest): `sha256:…`.
    pub digest: Arc<str>,
    /// The snapshot key of the unpacked layers (`chain id`), parent of every container's snapshot.
    pub chain_id: Arc<str>,
    /// The image's configuration: entrypoint, command, environment, user, working directory.
    pub config: ImageConfiguration,
    /// Bytes of manifest, config and compressed layers.
    pub size: u64,
}

/// Where images come from and go to.
#[derive(Debug, Clone)]
pub struct ImagesConfig {
    /// containerd's snapshotter, such as `overlayfs`.
    pub snapshotter: String,
    /// containerd's `certs.d`; need not exist.
    pub registry_config_dir: PathBuf,
    /// Docker's `config.json` files; the first that has credentials for a registry counts. Need not exist.
    pub auth_files: Vec<PathBuf>,
    /// `<root-dir>/images`: archives to import.
    pub archives_dir: PathBuf,
}
use ImagesConfig as Config;

/// What one pull gives everyone who waits for it.
type Outcome = Result<Arc<LocalImage>, ImageError>;
type Job = BoxFuture<'static, Outcome>;

/// A pull that runs, driven by whoever waits for it; it ends when nobody does any more.
struct Flight {
    job: WeakShared<Job>,
    progress: watch::Receiver<PullProgress>,
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
    cache: Mutex<HashMap<String, Arc<LocalImage>>>,
    flights: Mutex<HashMap<String, Flight>>,
    /// Complaints about auth files that were logged already.
    complained: Mutex<Vec<String>>,
    ready: watch::Sender<bool>,
}

impl Images {
    /// Images behind `client`; nothing is asked before the first call.
    pub fn new(client: Client, config: ImagesConfig) -> Self {
        // Fails when it is installed already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let inner = Inner {
            store: Store::new(client, &config.snapshotter),
            config,
            cache: Mutex::default(),
            flights: Mutex::default(),
            complained: Mutex::default(),
            ready: watch::Sender::new(false),
        };
        Self { inner: Arc::new(inner) }
    }

    /// The image, if it is here and whole; unpacks it when its content is here but its snapshot is not.
    ///
    /// # Errors
    /// `InvalidName`; `Runtime` while containerd does not answer; `DiskFull` when it is to be unpacked.
    pub async fn find(&self, reference: &str) -> Result<Option<Arc<LocalImage>>, ImageError> {
        let name = ImageName::parse(reference)?;
        let call = |error| ImageError::call(&name.whole, error);
        let store = &self.inner.store;
        let mut record = store.image(&name.whole).await.map_err(call)?;
        if let (None, Target::Digest(digest)) = (&record, &name.target) {
            // The same content under any name is the same image.
            record = store.list_images(&format!("target.digest=={digest}")).await.map_err(call)?.into_iter().next();
        }
        let Some(digest) = record.and_then(|record| record.target).map(|target| target.digest) else {
            return Ok(None);
        };
        let cached = self.inner.cached(&name.whole).filter(|image| *image.digest == *digest);
        if let Some(image) = cached
            && store.has_snapshot(&image.chain_id).await.map_err(call)?
        {
            return Ok(Some(image));
        }
        match store.local(&name.whole, &digest).await {
            Ok(local) => Ok(local.map(|image| self.inner.remember(image))),
            // Of another platform, say: what is here does not serve, so it is not here; a pull tells why it cannot be.
            Err(error @ ImageError::Content { .. }) => {
                tracing::warn!(%error, "the image in containerd cannot be used");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Pulls an image, or what is missing of it; who asks for an image that is being pulled shares that pull. Dropped, the
    /// pull stops (unless another waits for it), and a later one continues it.
    ///
    /// # Errors
    /// See [`ImageError`]; [`ImageError::reason`] is kubelet's word for it.
    pub async fn pull(&self, reference: &str) -> Outcome {
        let job = self.join(ImageName::parse(reference)?);
        job.await
    }

    /// How far the pull of an image is; `None` when none runs. The receiver changes at most every second.
    pub fn progress(&self, reference: &str) -> Option<watch::Receiver<PullProgress>> {
        let name = normalize(reference).ok()?;
        let flights = self.inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
        let flight = flights.get(&name)?;
        flight.job.upgrade().is_some_and(|job| job.peek().is_none()).then(|| flight.progress.clone())
    }

    /// The pull of this image that runs, or a new one.
    fn join(&self, name: ImageName) -> Shared<Job> {
        let mut flights = self.inner.flights.lock().unwrap_or_else(PoisonError::into_inner);
        flights.retain(|_, flight| flight.job.upgrade().is_some_and(|job| job.peek().is_none()));
        if let Some(flight) = flights.get(&name.whole)
            && let Some(job) = flight.job.upgrade()
        {
            return job;
        }
        let (sender, receiver) = watch::channel(PullProgress::default());
        let key = name.whole.clone();
        let inner = Arc::clone(&self.inner);
        let job = async move { inner.pull(name, sender).await }.boxed().shared();
        if let Some(weak) = job.downgrade() {
            flights.insert(key, Flight { job: weak, progress: receiver });
        }
        job
    }

    /// Lets go of what broken-off pulls left in containerd, but for the images that are still `wanted` (by their
    /// normalised name). To be called when the desired pods are known, once after a start.
    ///
    /// # Errors
    /// `Runtime` when containerd does not answer.
    pub async fn forget_unwanted(&self, wanted: impl Fn(&str) -> bool) -> Result<(), ImageError> {
        let store = &self.inner.store;
        let call = |error| ImageError::call("*", error);
        for (lease, image) in store.leases(pull::LEASE_PREFIX).await.map_err(call)? {
            if self.progress(&image).is_none() && !wanted(&image) {
                tracing::info!(image, "unfinished pull is not wanted any more: removed");
                store.delete_lease(&lease).await.map_err(call)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    async fn pull(&self, name: ImageName, progress: watch::Sender<PullProgress>) -> Outcome {
        let image = name.whole.clone();
        let (certs_d, auth_files) = (self.config.registry_config_dir.clone(), self.config.auth_files.clone());
        let prepared = tokio::task::spawn_blocking(move || {
            let keyring = auth::Keyring::read(&auth_files);
            let session = registry::Session::prepare(name, &certs_d, &keyring);
            (session, keyring.complaints)
        });
        let failed = |error| ImageError::Registry { image: image.clone(), cause: format!("set-up failed: {error}") };
        let (session, complaints) = prepared.await.map_err(failed)?;
        self.complain(complaints);
        let meter = progress::Meter::new(&image, progress);
        let local = pull::pull(&self.store, session?, &self.config, &meter).await?;
        tracing::info!(image, digest = &*local.digest, size = local.size, "image pulled");
        Ok(self.remember(local))
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

    fn cached(&self, name: &str) -> Option<Arc<LocalImage>> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    fn remember(&self, image: LocalImage) -> Arc<LocalImage> {
        let image = Arc::new(image);
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if cache.len() >= CACHED {
            cache.clear();
        }
        cache.insert(image.name.to_string(), Arc::clone(&image));
        image
    }
}
