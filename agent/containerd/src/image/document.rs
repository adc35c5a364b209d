//! Image indexes, manifests and configurations: parsed from untrusted, bounded input, and values derived from them.

use limpet_model::hex::hex;
use oci_spec::image::{
    Descriptor, ImageConfiguration, ImageIndex, ImageIndexBuilder, ImageManifest, ImageManifestBuilder, MediaType,
};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha256};

use super::go_json::{self, Member, Shape, always, may};
use super::platform::{ImagePlatform, WASM_REMEDY, is_wasm_system};

/// The largest manifest, index or configuration that is read: the limit of registries.
pub(super) const MAX_DOCUMENT: u64 = 4 << 20;
/// The largest document in bytes that is hashed and parsed without a blocking thread.
const MAX_INLINE_DOCUMENT: usize = 32 << 10;
/// overlayfs' limit for layers.
pub(super) const MAX_LAYERS: usize = 127;
/// The limit for entries of an index.
const MAX_MANIFESTS: usize = 1024;
/// The largest layer: a larger size is an attack or a mistake.
pub(super) const MAX_LAYER: u64 = 1 << 40;

/// The media types requested from a registry.
pub(super) const ACCEPT: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
     application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The document that an image's name refers to.
#[derive(Debug)]
pub(super) enum Document {
    /// One entry per platform.
    Index(Box<ImageIndex>),
    /// One platform's config and layers.
    Manifest(Box<ImageManifest>),
}

/// The members of a platform. `os.version` and `os.features` belong to other systems.
const PLATFORM: Shape =
    Shape::Struct(&[always("architecture", Shape::Text), always("os", Shape::Text), may("variant", Shape::Text)]);

/// The members of a descriptor.
const DESCRIPTOR: &[Member] = &[
    always("mediaType", Shape::Text),
    always("digest", Shape::Text),
    always("size", Shape::Integer),
    may("annotations", Shape::Map(&Shape::Text)),
    may("platform", PLATFORM),
];

/// The members of manifests and indexes; those present determine which of them a document is.
static DOCUMENT: Shape = Shape::Struct(&[
    may("mediaType", Shape::Text),
    may("manifests", Shape::List(&Shape::Struct(DESCRIPTOR))),
    may("config", Shape::Struct(DESCRIPTOR)),
    may("layers", Shape::List(&Shape::Struct(DESCRIPTOR))),
    may("fsLayers", Shape::List(&Shape::Struct(&[]))),
]);

/// The members of a configuration that a container needs.
static CONFIGURATION: Shape = Shape::Struct(&[
    always("architecture", Shape::Text),
    always("os", Shape::Text),
    may("variant", Shape::Text),
    may(
        "config",
        Shape::Struct(&[
            may("User", Shape::Text),
            may("ExposedPorts", Shape::Map(&Shape::Struct(&[]))),
            may("Env", Shape::List(&Shape::Text)),
            may("Entrypoint", Shape::List(&Shape::Text)),
            may("Cmd", Shape::List(&Shape::Text)),
            may("Volumes", Shape::Map(&Shape::Struct(&[]))),
            may("WorkingDir", Shape::Text),
            may("Labels", Shape::Map(&Shape::Text)),
            may("StopSignal", Shape::Text),
        ]),
    ),
    always("rootfs", Shape::Struct(&[always("type", Shape::Text), always("diff_ids", Shape::List(&Shape::Text))])),
]);

impl Document {
    /// Parses a manifest or an index, by the members that it has. A document that could be either is refused, because
    /// clients would interpret it as different images.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let document = go_json::value(bytes, &DOCUMENT).map_err(|error| format!("manifest is not JSON: {error}"))?;
        let Value::Object(document) = document else { return Err("manifest is not an object".to_owned()) };
        let is_index = document.contains_key("manifests");
        match (is_index, document.contains_key("config") || document.contains_key("layers")) {
            (true, true) => Err("ambiguous manifest: both an index and an image".to_owned()),
            (false, false) if document.contains_key("fsLayers") => Err("schema 1 manifest is not supported".to_owned()),
            (false, false) => Err("neither an image manifest nor an index".to_owned()),
            (true, false) => parse_index(document),
            (false, true) => parse_manifest(document),
        }
    }
}

/// Whether a document is an index with entries of any kind.
pub(super) fn lists_manifests(bytes: &[u8]) -> bool {
    let document = serde_json::from_slice::<Value>(bytes).unwrap_or_default();
    document.get("manifests").and_then(Value::as_array).is_some_and(|entries| !entries.is_empty())
}

fn parse_index(mut index: Map<String, Value>) -> Result<Document, String> {
    let entries = match index.remove("manifests") {
        Some(Value::Array(entries)) => entries,
        _ => Vec::new(),
    };
    if entries.len() > MAX_MANIFESTS {
        return Err(format!("index has {} entries, at most {MAX_MANIFESTS}", entries.len()));
    }
    let mut usable = Vec::with_capacity(entries.len());
    let mut problem = None;
    for entry in entries {
        match descriptor(entry) {
            Ok(descriptor) => usable.push(descriptor),
            // It may be for another platform.
            Err(error) => problem = Some(error),
        }
    }
    if let (true, Some(problem)) = (usable.is_empty(), problem) {
        return Err(format!("index: {problem}"));
    }
    let mut parsed = ImageIndexBuilder::default().schema_version(2_u32).manifests(usable);
    if let Some(media_type) = own_media_type(&index) {
        parsed = parsed.media_type(media_type);
    }
    Ok(Document::Index(Box::new(parsed.build().map_err(|error| format!("index: {error}"))?)))
}

fn parse_manifest(mut manifest: Map<String, Value>) -> Result<Document, String> {
    let in_manifest = |error| format!("manifest: {error}");
    let layers = match manifest.remove("layers") {
        Some(Value::Array(layers)) => layers,
        _ => Vec::new(),
    };
    if layers.len() > MAX_LAYERS {
        return Err(format!("manifest has {} layers, at most {MAX_LAYERS}", layers.len()));
    }
    let layers = layers.into_iter().map(descriptor).collect::<Result<Vec<_>, _>>().map_err(in_manifest)?;
    let config = descriptor(manifest.remove("config").unwrap_or_default()).map_err(in_manifest)?;
    if config.size() > MAX_DOCUMENT {
        return Err(format!("configuration of {} bytes is too large", config.size()));
    }
    let mut parsed = ImageManifestBuilder::default().schema_version(2_u32).config(config).layers(layers);
    if let Some(media_type) = own_media_type(&manifest) {
        parsed = parsed.media_type(media_type);
    }
    Ok(Document::Manifest(Box::new(parsed.build().map_err(|error| format!("manifest: {error}"))?)))
}

/// The media type that a document names itself.
fn own_media_type(document: &Map<String, Value>) -> Option<MediaType> {
    document.get("mediaType")?.as_str().filter(|written| !written.is_empty()).map(MediaType::from)
}

fn descriptor(value: Value) -> Result<Descriptor, String> {
    let descriptor: Descriptor = serde_json::from_value(value).map_err(|error| error.to_string())?;
    check(&descriptor)?;
    Ok(descriptor)
}

/// Checks a descriptor: only SHA-256 is verified by every containerd, and its size must be valid.
fn check(descriptor: &Descriptor) -> Result<(), String> {
    if descriptor.as_digest_sha256().is_none() {
        return Err(format!("unsupported digest {}", descriptor.digest()));
    }
    if descriptor.size() > MAX_LAYER {
        return Err(format!("{} claims {} bytes", descriptor.digest(), descriptor.size()));
    }
    Ok(())
}

/// Reads an image's configuration and checks that it belongs to the manifest.
pub(super) fn parse_config(bytes: &[u8], manifest: &ImageManifest) -> Result<ImageConfiguration, String> {
    let config: ImageConfiguration =
        go_json::read(bytes, &CONFIGURATION).map_err(|error| format!("image configuration: {error}"))?;
    let (layers, diff_ids) = (manifest.layers().len(), config.rootfs().diff_ids());
    if layers != diff_ids.len() {
        return Err(format!("manifest has {layers} layers, its configuration {}", diff_ids.len()));
    }
    if diff_ids.is_empty() {
        return Err("image has no layers".to_owned());
    }
    match diff_ids.iter().find(|id| !is_sha256(id)) {
        Some(id) => Err(format!("unsupported layer id {id:?}")),
        None => Ok(config),
    }
}

/// Whether an image with this configuration fits the wanted platform.
pub(super) fn fits(config: &ImageConfiguration, wanted: ImagePlatform) -> Result<(), String> {
    let is_module = is_wasm_system(&config.os().to_string());
    match wanted {
        ImagePlatform::Node if is_module => Err(WASM_REMEDY.to_owned()),
        _ => Ok(()),
    }
}

/// `sha256:` and 64 lower-case hexadecimal digits.
pub(super) fn is_sha256(digest: &str) -> bool {
    digest
        .strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// Runs `work` on a document, and returns the document too. A small one is handled on this thread, a large one on a
/// blocking thread, because hashing or parsing it takes a small board many milliseconds.
pub(super) async fn examine<T: Send + 'static>(
    bytes: Vec<u8>,
    work: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> (Vec<u8>, T) {
    let size = bytes.len();
    let work = move || {
        let done = work(&bytes);
        (bytes, done)
    };
    if size <= MAX_INLINE_DOCUMENT {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        // The agent is stopping.
        Err(_) => std::future::pending().await,
    }
}

/// `sha256:…` of bytes.
pub(super) fn sha256(bytes: &[u8]) -> String {
    sha256_digest(&Sha256::digest(bytes))
}

/// `sha256:…` of a finished hash.
pub(super) fn sha256_digest(hash: &[u8]) -> String {
    format!("sha256:{}", hex(hash))
}

/// The snapshot key of every layer, lowest first (OCI image spec, "Layer ChainID"); the last is the image's.
pub(super) fn chain_ids(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        chain.push(match chain.last() {
            None => diff_id.clone(),
            Some(below) => sha256(format!("{below} {diff_id}").as_bytes()),
        });
    }
    chain
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
