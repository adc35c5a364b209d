//! Reads an image archive, a tar of `docker save` or of an OCI layout, once from beginning to end.
//!
//! No entry of an archive is written to a path on this node: an entry's name only identifies it within the archive.
//! All counts and sizes are bounded.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use std::rc::Rc;

use bytes::Bytes;
use oci_spec::image::Descriptor;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;

use super::document::{self, Document, MAX_DOCUMENT, MAX_LAYERS};
use super::error::ImageError;
use super::go_json::{self, Shape, always};
use super::platform::{HostPlatform, ImagePlatform};
use limpet_model::image_name::normalize;

/// The most entries an archive may have.
const MAX_ENTRIES: usize = 16_384;
/// The most images in one archive.
const MAX_IMAGES: usize = 256;
/// The most bytes of headers before one entry; names and their extensions take a few hundred.
const MAX_HEADERS: u64 = 1 << 20;
/// The size of a read in bytes.
const CHUNK: usize = 256 << 10;

/// The reader's output, in the archive's order.
#[derive(Debug)]
pub(super) enum ArchivePart {
    /// A blob begins. Its digest is known in advance only when its name contains it.
    Blob { name: String, size: u64, digest: Option<String> },
    /// More of the blob.
    Data(Bytes),
    /// The blob is complete, and this is its digest.
    End(String),
    /// One of the documents that list the images.
    List { name: &'static str, bytes: Vec<u8> },
    /// A link to another name.
    Link { name: String, target: String },
}

/// Reads an archive and sends its content. Blocks. Returns early, without error, once the receiver is gone.
pub(super) fn read(path: &Path, out: &mpsc::Sender<ArchivePart>) -> Result<(), String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut file = BufReader::with_capacity(CHUNK, file);
    let magic = file.fill_buf().map_err(|error| error.to_string())?;
    let reader: Box<dyn Read> = if magic.starts_with(&[0x1f, 0x8b]) {
        Box::new(flate2::bufread::MultiGzDecoder::new(file))
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        Box::new(ZstdFrames::new(file)?)
    } else {
        Box::new(file)
    };
    let left = Rc::new(Cell::new(MAX_HEADERS));
    let mut archive = tar::Archive::new(Metered { reader, left: Rc::clone(&left) });
    let entries = archive.entries().map_err(|error| error.to_string())?;
    for (count, entry) in entries.enumerate() {
        if count >= MAX_ENTRIES {
            return Err(format!("more than {MAX_ENTRIES} entries"));
        }
        let mut entry = entry.map_err(|error| format!("not a whole tar: {error}"))?;
        left.set(u64::MAX);
        if !read_entry(&mut entry, out)? {
            break;
        }
        io::copy(&mut entry, &mut io::sink()).map_err(|error| format!("not a whole tar: {error}"))?;
        left.set(MAX_HEADERS);
    }
    Ok(())
}

/// Bounds the bytes that are read before the next entry, because the tar reader keeps extensions such as long names
/// in memory.
struct Metered {
    reader: Box<dyn Read>,
    left: Rc<Cell<u64>>,
}

impl Read for Metered {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.left.get();
        if left == 0 {
            return Err(io::Error::other(format!("an entry's headers are larger than {MAX_HEADERS} bytes")));
        }
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = self.reader.read(buffer.get_mut(..length).unwrap_or_default())?;
        self.left.set(left.saturating_sub(read as u64));
        Ok(read)
    }
}

/// Sends one entry. Returns false once the receiver is gone.
fn read_entry(entry: &mut tar::Entry<'_, Metered>, out: &mpsc::Sender<ArchivePart>) -> Result<bool, String> {
    let name = own_name(&entry.path_bytes());
    let kind = entry.header().entry_type();
    if kind.is_symlink() || kind.is_hard_link() {
        let Some(target) = entry.link_name_bytes() else { return Ok(true) };
        let target = String::from_utf8_lossy(&target).into_owned();
        let target = if kind.is_symlink() { resolve_link(&name, &target) } else { own_name(target.as_bytes()) };
        return Ok(out.blocking_send(ArchivePart::Link { name, target }).is_ok());
    }
    if !matches!(kind, tar::EntryType::Regular | tar::EntryType::Continuous) {
        return Ok(true);
    }
    let size = entry.size();
    if let Some(list) = ["index.json", "manifest.json", "oci-layout"].into_iter().find(|list| *list == name) {
        if size > MAX_DOCUMENT {
            return Err(format!("{name} of {size} bytes is too large"));
        }
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).map_err(|error| format!("{name}: {error}"))?;
        return Ok(out.blocking_send(ArchivePart::List { name: list, bytes }).is_ok());
    }
    // Every other name is a blob; builders use `<id>/layer.tar`, `<id>.json`, `sha256:<id>`, `<id>.tar.gz` and
    // others.
    let digest = name.strip_prefix("blobs/sha256/").map(|hex| format!("sha256:{hex}"));
    let digest = digest.filter(|digest| document::is_sha256(digest));
    if out.blocking_send(ArchivePart::Blob { name: name.clone(), size, digest }).is_err() {
        return Ok(false);
    }
    let mut hash = Sha256::new();
    let mut left = size;
    while left > 0 {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(left).unwrap_or(CHUNK))];
        entry.read_exact(&mut chunk).map_err(|error| format!("{name}: {error}"))?;
        hash.update(&chunk);
        left -= chunk.len() as u64;
        if out.blocking_send(ArchivePart::Data(chunk.into())).is_err() {
            return Ok(false);
        }
    }
    Ok(out.blocking_send(ArchivePart::End(document::sha256_digest(hash.finalize().as_slice()))).is_ok())
}

/// A name in the form of the archive's lists.
fn own_name(bytes: &[u8]) -> String {
    let name = String::from_utf8_lossy(bytes);
    let parts: Vec<&str> = name.split('/').filter(|part| !matches!(*part, "" | ".")).collect();
    parts.join("/")
}

/// Resolves a relative link at `name` inside the archive.
fn resolve_link(name: &str, target: &str) -> String {
    let mut parts: Vec<&str> = name.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Decodes all frames of a zstd file; the decoder itself handles only one.
struct ZstdFrames {
    decoder: Option<ruzstd::decoding::StreamingDecoder<BufReader<File>, ruzstd::decoding::FrameDecoder>>,
}

impl ZstdFrames {
    fn new(file: BufReader<File>) -> Result<Self, String> {
        let decoder = ruzstd::decoding::StreamingDecoder::new(file).map_err(|error| format!("zstd: {error}"))?;
        Ok(Self { decoder: Some(decoder) })
    }
}

impl Read for ZstdFrames {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(decoder) = &mut self.decoder {
            let read = decoder.read(buffer)?;
            if read > 0 || buffer.is_empty() {
                return Ok(read);
            }
            let Some(mut file) = self.decoder.take().map(|decoder| decoder.into_inner()) else { break };
            if !file.fill_buf()?.is_empty() {
                self.decoder = Some(ruzstd::decoding::StreamingDecoder::new(file).map_err(io::Error::other)?);
            }
        }
        Ok(0)
    }
}

/// A blob that was written to the content store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct StoredBlob {
    pub(super) digest: String,
    pub(super) size: u64,
    /// The layer media type by its first bytes.
    pub(super) layer_type: &'static str,
}

/// The layer media type of a blob with these first bytes.
pub(super) fn layer_type(magic: &[u8]) -> &'static str {
    if magic.starts_with(&[0x1f, 0x8b]) {
        "application/vnd.oci.image.layer.v1.tar+gzip"
    } else if magic.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        "application/vnd.oci.image.layer.v1.tar+zstd"
    } else {
        "application/vnd.oci.image.layer.v1.tar"
    }
}

/// The content of an archive.
#[derive(Debug, Default)]
pub(super) struct ArchiveContents {
    pub(super) lists: HashMap<&'static str, Vec<u8>>,
    pub(super) blobs: HashMap<String, StoredBlob>,
    pub(super) links: HashMap<String, String>,
}

/// An image in an archive.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ArchivedImage {
    /// Normalized.
    pub(super) name: String,
    pub(super) target: Target,
}

/// The documents of an image.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Target {
    /// A manifest or index of the archive.
    Blob(Box<Descriptor>),
    /// `docker save` has no manifest: it is assembled from these.
    Assemble { config: StoredBlob, layers: Vec<StoredBlob> },
}

/// An entry of `docker save`'s `manifest.json`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DockerManifest {
    config: String,
    repo_tags: Vec<String>,
    layers: Vec<String>,
}

/// `manifest.json`.
static DOCKER_MANIFESTS: Shape = Shape::List(&Shape::Struct(&[
    always("Config", Shape::Text),
    always("RepoTags", Shape::List(&Shape::Text)),
    always("Layers", Shape::List(&Shape::Text)),
]));

impl ArchiveContents {
    /// The images and their names.
    pub(super) fn images(&self) -> Result<Vec<ArchivedImage>, String> {
        let mut images = match self.lists.get("index.json") {
            Some(bytes) => from_index(bytes)?,
            None => Vec::new(),
        };
        if let (true, Some(bytes)) = (images.is_empty(), self.lists.get("manifest.json")) {
            images = self.saved_images(bytes)?;
        }
        if images.len() > MAX_IMAGES {
            return Err(format!("{} images, at most {MAX_IMAGES}", images.len()));
        }
        if !images.is_empty() {
            return Ok(images);
        }
        Err(match self.lists.contains_key("index.json") || self.lists.contains_key("manifest.json") {
            false => "neither index.json nor manifest.json: not an image archive".to_owned(),
            true => "no image in it has a name: save it by name and tag, not by id".to_owned(),
        })
    }

    fn saved_images(&self, bytes: &[u8]) -> Result<Vec<ArchivedImage>, String> {
        let saved: Vec<DockerManifest> =
            go_json::read(bytes, &DOCKER_MANIFESTS).map_err(|error| format!("manifest.json: {error}"))?;
        let mut images = Vec::new();
        for image in saved {
            if image.layers.len() > MAX_LAYERS {
                return Err(format!("manifest.json: {} layers, at most {MAX_LAYERS}", image.layers.len()));
            }
            let config = self.blob(&image.config)?.clone();
            let layers = image.layers.iter().map(|name| self.blob(name).cloned());
            let layers: Vec<StoredBlob> = layers.collect::<Result<_, _>>()?;
            for tag in image.repo_tags {
                let name = normalize(&tag).map_err(|error| error.to_string())?;
                images.push(ArchivedImage {
                    name,
                    target: Target::Assemble { config: config.clone(), layers: layers.clone() },
                });
            }
        }
        Ok(images)
    }

    fn blob(&self, name: &str) -> Result<&StoredBlob, String> {
        let mut name = own_name(name.as_bytes());
        for _ in 0..8 {
            if let Some(blob) = self.blobs.get(&name) {
                return Ok(blob);
            }
            let Some(target) = self.links.get(&name) else { break };
            name.clone_from(target);
        }
        Err(format!("manifest.json names {name:?}, which is not in the archive"))
    }
}

/// The named images of an OCI layout. Of several entries with one name, the one for this platform is used.
fn from_index(bytes: &[u8]) -> Result<Vec<ArchivedImage>, String> {
    let Document::Index(index) = Document::parse(bytes).map_err(|error| format!("index.json: {error}"))? else {
        return Err("index.json is not an image index".to_owned());
    };
    let mut by_name: BTreeMap<String, Vec<Descriptor>> = BTreeMap::new();
    for descriptor in index.manifests() {
        if let Some(name) = name_of(descriptor).map_err(|error| error.to_string())? {
            by_name.entry(name).or_default().push(descriptor.clone());
        }
    }
    let platform = HostPlatform::current();
    let choose = |(name, descriptors): (String, Vec<Descriptor>)| {
        let chosen = match descriptors.as_slice() {
            [manifest] => manifest,
            many => platform.select(many, ImagePlatform::Any).map_err(|why| format!("{name}: {why}"))?,
        };
        Ok(ArchivedImage { target: Target::Blob(Box::new(chosen.clone())), name })
    };
    by_name.into_iter().map(choose).collect()
}

/// The image name of an entry. containerd's annotation holds the full name; OCI's may hold the tag alone, which is not a name.
fn name_of(descriptor: &Descriptor) -> Result<Option<String>, ImageError> {
    let Some(annotations) = descriptor.annotations() else { return Ok(None) };
    let full = annotations.get("io.containerd.image.name");
    let name = full.or_else(|| {
        let name = annotations.get("org.opencontainers.image.ref.name");
        name.filter(|name| name.contains(['/', ':']))
    });
    Ok(name.map(|name| normalize(name)).transpose()?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
