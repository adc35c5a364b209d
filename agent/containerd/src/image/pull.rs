//! One pull: from a registry into containerd's content store, then to snapshots and an image record.
//!
//! Several layers are downloaded at once, and each is unpacked as soon as those below it are. Everything is created
//! under one lease, whose id is derived from the image's name. An interrupted pull leaves its lease and ingests, and
//! the next pull resumes it, even after a restart of the agent.

use std::pin::pin;
use std::time::Duration;

use containerd_client::types;
use futures_util::{TryStreamExt as _, stream};
use oci_spec::image::{Descriptor, ImageConfiguration, ImageManifest};
use tokio::sync::watch;

use super::Config;
use super::admission::Admission;
use super::content::{Blob, Completed, Ingest, Labels, Opened, Store};
use super::document::{self, Document};
use super::error::ImageError;
use super::local::{MAX_DEPTH, lease_id};
use super::platform::{HostPlatform, ImagePlatform};
use super::progress::{BlobMeter, Meter};
use super::registry::{FetchedDocument, Session};
use super::unpack::Layer;
use limpet_model::image::LocalImage;
use limpet_model::pull_credential::PullCredential;

/// The most layers that are downloaded at once.
const PARALLEL_LAYERS: usize = 3;
/// The most attempts in a row with less than `MIN_PROGRESS` before a download fails.
const MAX_ATTEMPTS: u32 = 5;
/// Bytes that count as progress.
const MIN_PROGRESS: u64 = 1 << 20;
/// The first pause between attempts, which doubles each time.
const INITIAL_RETRY_DELAY: Duration = Duration::from_millis(250);

/// The longest list of repositories on a blob; containerd's limit for a label is 4,096 bytes with its key.
const MAX_SOURCES: usize = 3500;

/// The prefix of every pull's lease.
pub(super) const LEASE_PREFIX: &str = "limpet-pull-";

/// Why a download ended early.
enum DownloadError {
    /// The network failed; a further attempt continues at the offset.
    Interrupted(String),
    /// Anything else.
    Failed(ImageError),
}

/// An image's documents, as they were stored.
struct Documents {
    manifest: Box<ImageManifest>,
    config: ImageConfiguration,
    /// The target of the image's record.
    target: types::Descriptor,
}

/// The pull of one image.
struct Pull<'a> {
    store: &'a Store,
    session: Session,
    admission: &'a Admission,
    meter: &'a Meter,
    platform: ImagePlatform,
    lease: String,
}

/// Pulls an image, or its missing parts. Also returns the credential that the registry accepted.
pub(super) async fn pull(
    store: &Store,
    session: Session,
    config: &Config,
    admission: &Admission,
    meter: &Meter,
    platform: ImagePlatform,
) -> Result<(LocalImage, PullCredential), ImageError> {
    let image = session.name.whole.clone();
    let lease = lease_id("pull", &image);
    store.create_lease(&lease, &image).await.map_err(|error| ImageError::call(&image, error))?;
    tracing::info!(image, snapshotter = config.snapshotter, "pulling image");
    let pull = Pull { store, session, admission, meter, platform, lease };
    let result = pull.run().await;
    if result.as_ref().err().is_none_or(|error| !error.keeps_ingests())
        && let Err(error) = store.delete_lease(&pull.lease).await
    {
        // The content is in use or small. The next pull of this image reuses the lease.
        tracing::warn!(image, %error, "deleting the lease of the pull failed");
    }
    result.map(|local| (local, pull.session.credential()))
}

impl Pull<'_> {
    fn image(&self) -> &str {
        &self.session.name.whole
    }

    async fn run(&self) -> Result<LocalImage, ImageError> {
        let top = self.session.manifest(self.session.name.target.as_str()).await?;
        let Documents { manifest, config, target } = self.documents(top).await?;
        let chain_ids = document::chain_ids(config.rootfs().diff_ids());
        let layers = Layer::all(&manifest, &config, &chain_ids);
        self.meter.begin(layers.iter().map(|layer| layer.descriptor.size()).sum(), layers.len());
        self.layers(&layers).await?;
        self.store.finish(self.image(), &target, Labels::new(), &self.lease, self.platform).await
    }

    /// Downloads several layers at once, and unpacks arrived layers meanwhile.
    async fn layers(&self, layers: &[Layer<'_>]) -> Result<(), ImageError> {
        let call = |error| ImageError::call(self.image(), error);
        let (arrived, arrivals) = watch::channel(vec![false; layers.len()]);
        let arrived = &arrived;
        let downloads = stream::iter(layers.iter().enumerate().map(Ok));
        let download = downloads.try_for_each_concurrent(PARALLEL_LAYERS, |(index, layer)| async move {
            self.layer(layer.descriptor).await?;
            self.meter.downloaded();
            arrived.send_modify(|arrived| arrived.iter_mut().skip(index).take(1).for_each(|layer| *layer = true));
            Ok::<(), ImageError>(())
        });
        let unpack = self.store.unpack_arriving(layers, arrivals, &self.lease, || self.meter.unpacked());
        let (mut download, mut unpack) = (pin!(download), pin!(unpack));
        let downloaded = tokio::select! {
            biased;
            downloaded = &mut download => downloaded,
            // Unpacking ends first only if it fails, because its last layer has not arrived.
            unpacked = &mut unpack => return unpacked.map_err(call),
        };
        if downloaded.is_err() {
            // The layer that is being unpacked is finished; no other one is begun.
            arrived.send_replace(Vec::new());
        }
        let unpacked = unpack.await;
        downloaded?;
        unpacked.map_err(call)
    }

    /// Stores indexes, manifest and configuration.
    async fn documents(&self, top: FetchedDocument) -> Result<Documents, ImageError> {
        let image = self.image();
        let content = |cause: String| ImageError::content(image, cause);
        let platform = HostPlatform::current();
        let mut target = None;
        let mut fetched = top;
        for _ in 0..=MAX_DEPTH {
            let (bytes, document) = document::examine(fetched.bytes, Document::parse).await;
            fetched.bytes = bytes;
            let document = document.map_err(content)?;
            self.put(&fetched.digest, &fetched.bytes).await?;
            if target.is_none() {
                let descriptor = types::Descriptor {
                    media_type: media_type(&document, &fetched.media_type),
                    digest: fetched.digest.clone(),
                    size: i64::try_from(fetched.bytes.len()).unwrap_or(i64::MAX),
                    ..Default::default()
                };
                self.admission.pulled(self.store, &self.session, &descriptor, &self.lease).await?;
                target = Some(descriptor);
            }
            match document {
                Document::Index(index) => {
                    let chosen = platform.select(index.manifests(), self.platform).map_err(content)?;
                    fetched = self.session.manifest(chosen.digest().as_ref()).await?;
                }
                Document::Manifest(manifest) => {
                    let digest = manifest.config().digest().to_string();
                    let call = |error| ImageError::call(image, error);
                    // Content from another registry is used only if this one has it too, because it may contain
                    // secrets.
                    let known = match self.is_from_here(&digest).await? {
                        true => self.store.read_document(&digest).await.map_err(call)?,
                        false => None,
                    };
                    let config = match known {
                        Some(config) => config,
                        None => self.session.small_blob(&digest).await?,
                    };
                    let parse = move |config: &[u8]| (document::parse_config(config, &manifest), manifest);
                    let (bytes, (config, manifest)) = document::examine(config, parse).await;
                    let config = config.map_err(content)?;
                    document::fits(&config, self.platform).map_err(content)?;
                    self.put(&digest, &bytes).await?;
                    // The first round has set it.
                    return Ok(Documents { manifest, config, target: target.unwrap_or_default() });
                }
            }
        }
        Err(content(format!("more than {MAX_DEPTH} nested indexes")))
    }

    async fn put(&self, digest: &str, bytes: &[u8]) -> Result<(), ImageError> {
        let labels = self.source_labels(digest).await?;
        let put = self.store.put(digest, bytes, &self.lease, labels).await;
        put.map_err(|error| ImageError::call(self.image(), error))
    }

    /// The label in which containerd's own clients record from which repositories of a registry content came.
    fn source_key(&self) -> String {
        format!("containerd.io/distribution.source.{}", self.session.name.host)
    }

    /// The repositories of the registry from which content came, if it is on the node.
    async fn sources(&self, digest: &str) -> Result<String, ImageError> {
        let known = self.store.info(digest).await.map_err(|error| ImageError::call(self.image(), error))?;
        Ok(known.and_then(|(_, mut labels)| labels.remove(&self.source_key())).unwrap_or_default())
    }

    /// The labels that add the image's repository to the sources of content.
    async fn source_labels(&self, digest: &str) -> Result<Labels, ImageError> {
        let sources = with_source(&self.sources(digest).await?, &self.session.name.repository);
        Ok(Labels::from([(self.source_key(), sources)]))
    }

    /// Whether content came from the image's repository, so that a reader of its manifest may also read it.
    async fn is_from_here(&self, digest: &str) -> Result<bool, ImageError> {
        Ok(self.sources(digest).await?.split(',').any(|source| source == self.session.name.repository))
    }

    /// Verifies that the registry would serve a layer that is already here, by requesting its last byte: a manifest
    /// may name any digest.
    async fn prove_access(&self, layer: &Descriptor) -> Result<(), ImageError> {
        let digest: &str = layer.digest().as_ref();
        if self.is_from_here(digest).await? {
            return Ok(());
        }
        self.session.blob(digest, layer.size().saturating_sub(1)).await?;
        let labels = self.source_labels(digest).await?;
        self.store.label(digest, labels).await.map_err(|error| ImageError::call(self.image(), error))
    }

    async fn layer(&self, layer: &Descriptor) -> Result<(), ImageError> {
        let call = |error| ImageError::call(self.image(), error);
        let digest = layer.digest().to_string();
        let mut meter = self.meter.blob();
        let mut scratch = false;
        loop {
            let opened = self.store.open(Blob { digest: &digest, size: layer.size() }, &self.lease).await;
            let mut ingest = match opened.map_err(call)? {
                Opened::Present => {
                    self.prove_access(layer).await?;
                    meter.set(layer.size());
                    return Ok(());
                }
                Opened::Ingest(ingest) => ingest,
            };
            if ingest.offset() > layer.size() {
                ingest.restart();
            }
            let resumed = ingest.offset() > 0;
            if resumed {
                tracing::info!(image = self.image(), digest, offset = ingest.offset(), "download continues");
            }
            self.fill(&mut ingest, layer, &mut meter).await?;
            match ingest.commit(self.source_labels(&digest).await?).await {
                Ok(Completed::Stored) => return Ok(()),
                // Opened again, so that the lease protects it.
                Ok(Completed::Appeared) => {}
                Err(error) if error.is_corrupt() => {
                    self.store.abort(&digest).await.map_err(call)?;
                    // A power cut may have damaged the ingest of an earlier attempt, so the download restarts.
                    if !resumed || scratch {
                        return Err(call(error));
                    }
                    scratch = true;
                }
                Err(error) => return Err(call(error)),
            }
        }
    }

    /// Downloads until the ingest is complete, over several connections if some are lost.
    async fn fill(&self, ingest: &mut Ingest, layer: &Descriptor, meter: &mut BlobMeter<'_>) -> Result<(), ImageError> {
        let (mut strikes, mut pause) = (0, INITIAL_RETRY_DELAY);
        loop {
            let before = ingest.offset();
            let cause = match self.download(ingest, layer, meter).await {
                Ok(()) => return Ok(()),
                Err(DownloadError::Failed(error)) => return Err(error),
                Err(DownloadError::Interrupted(cause)) => cause,
            };
            if ingest.offset() >= before + MIN_PROGRESS {
                (strikes, pause) = (0, INITIAL_RETRY_DELAY);
            }
            strikes += 1;
            let (image, digest) = (self.image().to_owned(), layer.digest().to_string());
            if strikes >= MAX_ATTEMPTS {
                return Err(ImageError::Cut { image, digest, cause });
            }
            tracing::info!(image, digest, offset = ingest.offset(), cause, "download interrupted; retrying");
            tokio::time::sleep(pause).await;
            pause *= 2;
        }
    }

    async fn download(
        &self,
        ingest: &mut Ingest,
        layer: &Descriptor,
        meter: &mut BlobMeter<'_>,
    ) -> Result<(), DownloadError> {
        let call = |error| DownloadError::Failed(ImageError::call(self.image(), error));
        let size = layer.size();
        meter.set(ingest.offset());
        if ingest.offset() == size {
            return Ok(());
        }
        let mut download = match self.session.blob(layer.digest().as_ref(), ingest.offset()).await {
            Ok(download) => download,
            Err(ImageError::Unreachable { cause, .. }) => return Err(DownloadError::Interrupted(cause)),
            Err(error) => return Err(DownloadError::Failed(error)),
        };
        // A registry without ranges starts at the beginning, so stored bytes are skipped.
        let mut skip = ingest.offset() - download.offset.min(ingest.offset());
        while ingest.offset() < size {
            match download.chunk().await {
                Ok(Some(chunk)) => {
                    let passed = skip.min(chunk.len() as u64);
                    skip -= passed;
                    // Never stores more than the size in the manifest.
                    let left = (chunk.len() as u64).min(passed + size - ingest.offset());
                    let new = chunk.get(passed as usize..left as usize).unwrap_or_default();
                    ingest.write(new).await.map_err(call)?;
                    meter.set(ingest.offset());
                }
                ended => {
                    // Stores the received bytes first.
                    ingest.flush().await.map_err(call)?;
                    let cause = ended.err().unwrap_or_else(|| "the registry closed it early".to_owned());
                    return Err(DownloadError::Interrupted(cause));
                }
            }
        }
        Ok(())
    }
}

/// Adds a repository to a list, in containerd's format.
fn with_source(sources: &str, repository: &str) -> String {
    let mut all: Vec<&str> = sources.split(',').filter(|source| !source.is_empty()).collect();
    all.push(repository);
    all.sort_unstable();
    all.dedup();
    let joined = all.join(",");
    if joined.len() > MAX_SOURCES { repository.to_owned() } else { joined }
}

/// The media type for the record: the document's own, else the registry's.
fn media_type(document: &Document, sent: &str) -> String {
    let (written, usual) = match document {
        Document::Index(index) => (index.media_type(), "application/vnd.oci.image.index.v1+json"),
        Document::Manifest(manifest) => (manifest.media_type(), "application/vnd.oci.image.manifest.v1+json"),
    };
    match written {
        Some(written) => written.to_string(),
        None if document::ACCEPT.split(", ").any(|known| known.trim() == sent) => sent.to_owned(),
        None => usual.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_listed_as_by_containerd() {
        assert_eq!(with_source("", "a/b"), "a/b");
        assert_eq!(with_source("z,a/b", "a/b"), "a/b,z");
        assert_eq!(with_source("a/b", "a/a"), "a/a,a/b");
        let many = "long/repository,".repeat(300);
        assert_eq!(with_source(&many, "b"), "b,long/repository");
        let many: Vec<String> = (0..500).map(|n| format!("repository-{n}")).collect();
        assert_eq!(with_source(&many.join(","), "b"), "b");
    }
}
