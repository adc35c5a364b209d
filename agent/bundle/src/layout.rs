//! An OCI image layout as a tar file: where each blob lies in it. Contents are read only when they are needed, and small
//! documents alone; names are known inside the layout only, and no entry is written to a path.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use limpet_model::hex::hex;
use oci_spec::image::{Descriptor, ImageIndex, ImageManifest};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest as _, Sha256};

use crate::document;
use crate::error::BundleError;

/// The most entries of a layout.
const MAX_ENTRIES: usize = 16_384;
/// The largest document that is read into memory.
pub(crate) const MAX_DOCUMENT: u64 = 16 << 20;
/// The largest list of other documents: an index or a manifest. Parsed, one may take ten times its size.
pub(crate) const MAX_LISTING: u64 = 4 << 20;
/// How many bytes all documents of all images may have together.
pub(crate) const MAX_IMAGE_DOCUMENTS: u64 = 64 << 20;
/// How many indexes may be between a name and its manifest.
const MAX_DEPTH: usize = 4;
pub(crate) const INDEX: &str = "index.json";
/// The file that marks a layout, and its content.
pub(crate) const LAYOUT: (&str, &[u8]) = ("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#);
const BLOBS: &str = "blobs/sha256/";

/// The place of a blob in the archive, which is not unpacked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// A layout in a file.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) path: PathBuf,
    file: File,
    index: Option<Extent>,
    /// The blobs of the layout, by digest.
    pub(crate) blobs: BTreeMap<String, Extent>,
}

/// An image of a layout: its documents in full, its layers by name.
#[derive(Debug, Default)]
pub(crate) struct ImageParts {
    /// Indexes, manifests and configurations, which are small.
    pub(crate) documents: BTreeMap<String, Vec<u8>>,
    /// The layers of every platform whose manifest is here, with their sizes.
    pub(crate) layers: BTreeMap<String, u64>,
}

/// The parsed form of a document that lists others.
pub(crate) enum Listing {
    Index(Box<ImageIndex>),
    Manifest(Box<ImageManifest>),
}

/// What tells an index from a manifest.
#[derive(Deserialize)]
struct Members {
    manifests: Option<IgnoredAny>,
}

impl Listing {
    /// The members decide which it is.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        if bytes.len() as u64 > MAX_LISTING {
            return Err(format!("{} bytes are too many for a list of documents", bytes.len()));
        }
        let members: Members = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let parsed = match members.manifests {
            Some(_) => serde_json::from_slice(bytes).map(|index| Self::Index(Box::new(index))),
            None => serde_json::from_slice(bytes).map(|manifest| Self::Manifest(Box::new(manifest))),
        };
        parsed.map_err(|error| error.to_string())
    }
}

/// What may still be read of the documents of images, and what was read of the present one.
pub(crate) struct Budget {
    bytes: u64,
    seen: BTreeSet<String>,
}

impl Default for Budget {
    fn default() -> Self {
        Self { bytes: MAX_IMAGE_DOCUMENTS, seen: BTreeSet::new() }
    }
}

impl Layout {
    /// Finds the entries of the tar in `file`. Only plain headers are read: a tar with others is refused, except that
    /// `foreign` ones, of other programs, may have extensions and further entries.
    pub(crate) fn open(file: File, path: &Path, foreign: bool) -> Result<Self, BundleError> {
        let broken = |cause: String| BundleError::content(path, cause);
        let mut reader = file.try_clone().map_err(BundleError::io("read", path))?;
        reader.rewind().map_err(BundleError::io("read", path))?;
        let mut layout = Self { path: path.to_owned(), file, index: None, blobs: BTreeMap::new() };
        let mut archive = tar::Archive::new(reader);
        let entries = archive.entries_with_seek().map_err(BundleError::io("read", path))?;
        for (count, entry) in entries.raw(!foreign).enumerate() {
            let entry = entry.map_err(|error| broken(format!("it is not a whole tar: {error}")))?;
            if count >= MAX_ENTRIES {
                return Err(broken(format!("it has more than {MAX_ENTRIES} entries")));
            }
            if !entry.header().entry_type().is_file() {
                match foreign {
                    true => continue,
                    false => return Err(broken("it has an entry that is no file".to_owned())),
                }
            }
            let extent = Extent { offset: entry.raw_file_position(), size: entry.size() };
            layout.add(&String::from_utf8_lossy(&entry.path_bytes()), extent);
        }
        Ok(layout)
    }

    fn add(&mut self, name: &str, extent: Extent) {
        let name = name.trim_start_matches("./");
        if name == INDEX {
            self.index = Some(extent);
        } else if let Some(hex) = name.strip_prefix(BLOBS).filter(|hex| is_hex(hex)) {
            self.blobs.insert(format!("sha256:{hex}"), extent);
        }
    }

    /// `index.json`; `None`: it has none.
    pub(crate) fn index(&self) -> Result<Option<ImageIndex>, BundleError> {
        let Some(extent) = self.index else { return Ok(None) };
        if extent.size > MAX_LISTING {
            return Err(self.broken(format!("{INDEX} of {} bytes is too large", extent.size)));
        }
        let bytes = self.read(extent, INDEX)?;
        let index = serde_json::from_slice(&bytes).map_err(|error| self.broken(format!("{INDEX}: {error}")))?;
        Ok(Some(index))
    }

    /// A document, verified; `None`: it is not here.
    pub(crate) fn document(&self, digest: &str) -> Result<Option<Vec<u8>>, BundleError> {
        let Some(extent) = self.blobs.get(digest) else { return Ok(None) };
        let bytes = self.read(*extent, digest)?;
        match document::digest(&bytes) == digest {
            true => Ok(Some(bytes)),
            false => Err(self.broken(format!("{digest} has another content"))),
        }
    }

    fn read(&self, extent: Extent, name: &str) -> Result<Vec<u8>, BundleError> {
        if extent.size > MAX_DOCUMENT {
            return Err(self.broken(format!("{name} of {} bytes is too large", extent.size)));
        }
        let mut bytes = Vec::new();
        self.reader(extent)?.read_to_end(&mut bytes).map_err(BundleError::io("read", &self.path))?;
        Ok(bytes)
    }

    fn reader(&self, extent: Extent) -> Result<impl Read, BundleError> {
        let mut file = self.file.try_clone().map_err(BundleError::io("read", &self.path))?;
        file.seek(SeekFrom::Start(extent.offset)).map_err(BundleError::io("read", &self.path))?;
        Ok(file.take(extent.size))
    }

    /// Copies a blob to `to`, and checks it on the way.
    pub(crate) fn copy(&self, digest: &str, extent: Extent, to: &mut impl std::io::Write) -> Result<(), BundleError> {
        let mut reader = self.reader(extent)?;
        let (mut hash, mut piece) = (Sha256::new(), vec![0; 256 << 10]);
        loop {
            let length = reader.read(&mut piece).map_err(BundleError::io("read", &self.path))?;
            let Some(read @ [_, ..]) = piece.get(..length) else { break };
            hash.update(read);
            to.write_all(read).map_err(BundleError::io("copy", &self.path))?;
        }
        match format!("sha256:{}", hex(&hash.finalize())) == digest {
            true => Ok(()),
            false => Err(self.broken(format!("{digest} has another content: make the archive again"))),
        }
    }

    /// The documents and layers that belong to an image, for every platform that is here. All images share a budget.
    pub(crate) fn image(&self, target: &Descriptor, budget: &mut Budget) -> Result<ImageParts, BundleError> {
        let mut parts = ImageParts::default();
        let target = target.digest().to_string();
        budget.seen.clear();
        if !self.add_image(&target, 0, &mut parts, budget)? {
            return Err(self.broken(format!("{target} is not in it")));
        }
        match parts.layers.is_empty() {
            false => Ok(parts),
            true => Err(self.broken(format!("{target} has no layers"))),
        }
    }

    /// Whether the document is here.
    fn add_image(
        &self,
        digest: &str,
        depth: usize,
        parts: &mut ImageParts,
        budget: &mut Budget,
    ) -> Result<bool, BundleError> {
        // Indexes may list one document again and again, each of which does the same.
        if budget.seen.contains(digest) {
            return Ok(true);
        }
        let Some(bytes) = self.image_document(digest, budget)? else { return Ok(false) };
        let listing = Listing::parse(&bytes).map_err(|error| self.broken(format!("{digest}: {error}")))?;
        match listing {
            Listing::Index(_) if depth >= MAX_DEPTH => {
                return Err(self.broken(format!("more than {MAX_DEPTH} nested indexes")));
            }
            Listing::Index(index) => {
                for child in index.manifests() {
                    // Archives often have one platform of those that the index lists.
                    self.add_image(child.digest().as_ref(), depth + 1, parts, budget)?;
                }
            }
            Listing::Manifest(manifest) => {
                let config = manifest.config().digest().to_string();
                let Some(document) = self.image_document(&config, budget)? else {
                    return Err(self.broken(format!("the configuration {config} of an image is not in it")));
                };
                parts.documents.insert(config, document);
                let layers = manifest.layers().iter();
                parts.layers.extend(layers.map(|layer| (layer.digest().to_string(), layer.size())));
            }
        }
        parts.documents.insert(digest.to_owned(), bytes);
        budget.seen.insert(digest.to_owned());
        Ok(true)
    }

    /// A document of an image, which the budget has to allow; `None`: it is not here.
    fn image_document(&self, digest: &str, budget: &mut Budget) -> Result<Option<Vec<u8>>, BundleError> {
        let Some(extent) = self.blobs.get(digest) else { return Ok(None) };
        budget.bytes = budget.bytes.checked_sub(extent.size).ok_or_else(|| {
            let limit = MAX_IMAGE_DOCUMENTS >> 20;
            self.broken(format!("the indexes, manifests and configurations of its images have more than {limit} MiB"))
        })?;
        self.document(digest)
    }

    pub(crate) fn broken(&self, cause: String) -> BundleError {
        BundleError::content(&self.path, cause)
    }
}

/// Whether it may be the hexadecimal part of a digest.
fn is_hex(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// The name of a blob's entry.
pub(crate) fn blob_name(digest: &str) -> String {
    format!("{BLOBS}{}", digest.trim_start_matches("sha256:"))
}
