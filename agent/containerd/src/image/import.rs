//! Imports an archive into containerd: its blobs in order into the content store, then the last steps of a pull.

use std::path::Path;
use std::time::Duration;

use containerd_client::types;
use serde_json::json;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::archive::{self, ArchiveContents, ArchivePart, ArchivedImage, StoredBlob, Target};
use super::content::{Blob, Completed, Labels, Opened, Store};
use super::document;
use super::error::{CallError, ImageError};
use super::local::lease_id;
use super::platform::ImagePlatform;
use limpet_model::image::LocalImage;

/// Pieces between the reader and the writer: enough to keep both busy.
const QUEUE_LENGTH: usize = 4;

/// The deadline for reading the next piece of an archive.
const ARCHIVE_DEADLINE: Duration = Duration::from_secs(60);

/// The prefix of every import's lease.
pub(super) const LEASE_PREFIX: &str = "limpet-import-";

/// Imports all images of an archive. `labels` returns the labels of their records, given the number of images.
pub(super) async fn import(
    store: &Store,
    path: &Path,
    labels: impl Fn(usize) -> Labels,
) -> Result<Vec<LocalImage>, ImageError> {
    let lease = lease_id("import", &path.to_string_lossy());
    let name = path.display().to_string();
    store.create_lease(&lease, &name).await.map_err(|error| ImageError::call(&name, error))?;
    let result = import_leased(store, path, labels, &lease).await;
    if let Err(error) = store.delete_lease(&lease).await {
        tracing::warn!(archive = name, %error, "deleting the lease of the import failed");
    }
    result
}

async fn import_leased(
    store: &Store,
    path: &Path,
    labels: impl Fn(usize) -> Labels,
    lease: &str,
) -> Result<Vec<LocalImage>, ImageError> {
    let broken = |cause: String| ImageError::Archive { path: path.to_owned(), cause };
    let (sender, receiver) = mpsc::channel(QUEUE_LENGTH);
    let file = path.to_owned();
    let reader = tokio::task::spawn_blocking(move || archive::read(&file, &sender));
    let contents = store_blobs(store, receiver, lease).await;
    // containerd's error takes precedence, because it made the reader stop.
    let contents = contents.map_err(|error| ImageError::call(&path.display().to_string(), error))?;
    let read = timeout(ARCHIVE_DEADLINE, reader)
        .await
        .map_err(|_| broken(format!("its file system has not answered for {} s", ARCHIVE_DEADLINE.as_secs())))?;
    read.map_err(|error| broken(error.to_string()))?.map_err(broken)?;
    let listed = tokio::task::spawn_blocking(move || contents.images()).await;
    let listed_images = listed.map_err(|error| broken(error.to_string()))?.map_err(broken)?;
    let mut images = Vec::with_capacity(listed_images.len());
    for image in &listed_images {
        let target = target(store, image, lease).await?;
        images.push(store.finish(&image.name, &target, labels(listed_images.len()), lease, ImagePlatform::Any).await?);
    }
    Ok(images)
}

/// The next piece; `None` at the end of the archive, or if its file system does not respond.
async fn next(pieces: &mut mpsc::Receiver<ArchivePart>) -> Option<ArchivePart> {
    timeout(ARCHIVE_DEADLINE, pieces.recv()).await.ok().flatten()
}

/// Writes blobs in the archive's order.
async fn store_blobs(
    store: &Store,
    mut pieces: mpsc::Receiver<ArchivePart>,
    lease: &str,
) -> Result<ArchiveContents, CallError> {
    let mut contents = ArchiveContents::default();
    while let Some(piece) = next(&mut pieces).await {
        match piece {
            ArchivePart::List { name, bytes } => drop(contents.lists.insert(name, bytes)),
            ArchivePart::Link { name, target } => drop(contents.links.insert(name, target)),
            ArchivePart::Blob { name, size, digest } => {
                let Some(stored) = store_blob(store, &mut pieces, size, digest.as_deref(), lease).await? else { break };
                contents.blobs.insert(name, stored);
            }
            ArchivePart::Data(_) | ArchivePart::End(_) => {}
        }
    }
    Ok(contents)
}

/// Writes one blob; `None` if the archive is truncated in it.
async fn store_blob(
    store: &Store,
    pieces: &mut mpsc::Receiver<ArchivePart>,
    size: u64,
    digest: Option<&str>,
    lease: &str,
) -> Result<Option<StoredBlob>, CallError> {
    let unnamed = format!("{lease}-blob");
    let opened = match digest {
        Some(digest) => store.open(Blob { digest, size }, lease).await?,
        None => store.open_unnamed(&unnamed, size, lease).await?,
    };
    let mut ingest = match opened {
        Opened::Present => None,
        Opened::Ingest(ingest) => Some(ingest),
    };
    if let Some(ingest) = &mut ingest {
        // Reading the file again is cheap, so the ingest of an interrupted download is replaced.
        ingest.restart();
    }
    let mut layer_type = None;
    loop {
        match next(pieces).await {
            Some(ArchivePart::Data(data)) => {
                layer_type.get_or_insert_with(|| archive::layer_type(&data));
                if let Some(ingest) = &mut ingest {
                    ingest.write(&data).await?;
                }
            }
            Some(ArchivePart::End(actual)) => {
                let completed = match ingest {
                    Some(ingest) if digest.is_some() => ingest.commit(Labels::new()).await?,
                    Some(ingest) => ingest.commit_as(&actual).await?,
                    None => Completed::Stored,
                };
                if let Completed::Appeared = completed {
                    store.protect(Blob { digest: &actual, size }, lease).await?;
                }
                let layer_type = layer_type.unwrap_or(archive::layer_type(&[]));
                return Ok(Some(StoredBlob { digest: actual, size, layer_type }));
            }
            _ => return Ok(None),
        }
    }
}

/// The target of an image's record; `docker save`'s images get the manifest they lack.
async fn target(store: &Store, image: &ArchivedImage, lease: &str) -> Result<types::Descriptor, ImageError> {
    let (config, layers) = match &image.target {
        Target::Blob(descriptor) => {
            return Ok(types::Descriptor {
                media_type: descriptor.media_type().to_string(),
                digest: descriptor.digest().to_string(),
                size: i64::try_from(descriptor.size()).unwrap_or(i64::MAX),
                ..Default::default()
            });
        }
        Target::Assemble { config, layers } => (config, layers),
    };
    let media_type = "application/vnd.oci.image.manifest.v1+json";
    let descriptor = |stored: &StoredBlob, media_type: &str| json!({"mediaType": media_type, "digest": stored.digest, "size": stored.size});
    let layers: Vec<_> = layers.iter().map(|layer| descriptor(layer, layer.layer_type)).collect();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type,
        "config": descriptor(config, "application/vnd.oci.image.config.v1+json"),
        "layers": layers,
    });
    let bytes = manifest.to_string().into_bytes();
    let digest = document::sha256(&bytes);
    let put = store.put(&digest, &bytes, lease, Labels::new()).await;
    put.map_err(|error| ImageError::call(&image.name, error))?;
    let size = i64::try_from(bytes.len()).unwrap_or(i64::MAX);
    Ok(types::Descriptor { media_type: media_type.to_owned(), digest, size, ..Default::default() })
}
