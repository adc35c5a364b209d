//! Image indexes, manifests and configurations: parsed from untrusted, bounded input, and values derived from them.

use limpet_model::hex::hex;
use oci_spec::image::{Descriptor, ImageConfiguration, ImageIndex, ImageManifest};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::{Digest as _, Sha256};

/// The largest manifest, index or configuration that is read: the limit of registries.
pub(super) const MAX_DOCUMENT: u64 = 4 << 20;
/// The largest document, in bytes, that is hashed and parsed on the agent's own thread.
const MAX_INLINE_DOCUMENT: usize = 32 << 10;
/// The limit of overlayfs for layers.
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

/// The members that distinguish the kinds of documents.
#[derive(Deserialize)]
struct Shape {
    manifests: Option<IgnoredAny>,
    config: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
    #[serde(rename = "fsLayers")]
    fs_layers: Option<IgnoredAny>,
}

impl Document {
    /// Parses a manifest or an index; the members decide, and a document that could be both is refused, because different
    /// clients would interpret it as different images.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let shape: Shape = serde_json::from_slice(bytes).map_err(|error| format!("manifest is not JSON: {error}"))?;
        let Shape { manifests, config, layers, fs_layers } = shape;
        match (manifests.is_some(), config.is_some() || layers.is_some()) {
            (true, true) => Err("ambiguous manifest: both an index and an image".to_owned()),
            (true, false) => {
                let index: ImageIndex = serde_json::from_slice(bytes).map_err(|error| format!("index: {error}"))?;
                if index.manifests().len() > MAX_MANIFESTS {
                    return Err(format!("index has {} entries, at most {MAX_MANIFESTS}", index.manifests().len()));
                }
                index.manifests().iter().try_for_each(check)?;
                Ok(Self::Index(Box::new(index)))
            }
            (false, true) => {
                let manifest: ImageManifest =
                    serde_json::from_slice(bytes).map_err(|error| format!("manifest: {error}"))?;
                let count = manifest.layers().len();
                if count > MAX_LAYERS {
                    return Err(format!("manifest has {count} layers, at most {MAX_LAYERS}"));
                }
                check(manifest.config())?;
                manifest.layers().iter().try_for_each(check)?;
                if manifest.config().size() > MAX_DOCUMENT {
                    return Err(format!("configuration of {} bytes is too large", manifest.config().size()));
                }
                Ok(Self::Manifest(Box::new(manifest)))
            }
            (false, false) if fs_layers.is_some() => Err("schema 1 manifest is not supported".to_owned()),
            (false, false) => Err("neither an image manifest nor an index".to_owned()),
        }
    }
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
        serde_json::from_slice(bytes).map_err(|error| format!("image configuration: {error}"))?;
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

/// `sha256:` and 64 lower-case hexadecimal digits.
pub(super) fn is_sha256(digest: &str) -> bool {
    digest
        .strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b)))
}

/// Runs `work` on a document, which is returned too: a small one on this thread, a large one on another, because hashing or
/// parsing it takes a small board many milliseconds.
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
        // The agent stops.
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
mod tests {
    use super::*;
    use serde_json::json;

    fn descriptor(size: u64) -> serde_json::Value {
        json!({"mediaType": "application/vnd.oci.image.layer.v1.tar", "size": size, "digest": sha256(&size.to_le_bytes())})
    }

    #[test]
    fn chain_ids_follow_the_specification() {
        let (a, b, c) = (sha256(b"a"), sha256(b"b"), sha256(b"c"));
        let ab = sha256(format!("{a} {b}").as_bytes());
        let abc = sha256(format!("{ab} {c}").as_bytes());
        assert_eq!(chain_ids(&[a.clone(), b, c]), [a, ab, abc]);
        assert!(chain_ids(&[]).is_empty());
        assert_eq!(sha256(b""), "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    #[test]
    fn documents_are_distinguished_by_their_members() {
        let manifest = json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(2)]});
        let index = json!({"schemaVersion": 2, "manifests": [descriptor(3)]});
        let parse = |value: &serde_json::Value| Document::parse(value.to_string().as_bytes());
        assert!(matches!(parse(&manifest), Ok(Document::Manifest(_))));
        assert!(matches!(parse(&index), Ok(Document::Index(_))));
        let mut both = manifest.clone();
        both["manifests"] = json!([]);
        let many: Vec<_> = (0..200).map(descriptor).collect();
        let table = [
            (both, "ambiguous"),
            (json!({"schemaVersion": 1, "fsLayers": []}), "schema 1"),
            (json!({}), "neither"),
            (json!([]), "not JSON"),
            (json!({"schemaVersion": 2, "config": descriptor(1), "layers": many}), "200 layers"),
            (json!({"schemaVersion": 2, "config": descriptor(5 << 20), "layers": []}), "too large"),
            (json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(1 << 50)]}), "claims"),
            (json!({"schemaVersion": 2, "manifests": [{"mediaType": "a", "size": 1, "digest": "../../etc"}]}), "index"),
        ];
        for (value, expected) in table {
            let error = parse(&value).unwrap_err();
            assert!(error.contains(expected), "{expected}: {error}");
        }
        let deep = "[".repeat(100_000);
        assert!(Document::parse(deep.as_bytes()).is_err());
        let deep = format!("{{\"manifests\": {}{}}}", "[".repeat(50_000), "]".repeat(50_000));
        assert!(Document::parse(deep.as_bytes()).is_err());
    }

    #[test]
    fn a_configuration_must_match_its_manifest() {
        let manifest = json!({"schemaVersion": 2, "config": descriptor(1), "layers": [descriptor(2)]});
        let manifest: ImageManifest = serde_json::from_value(manifest).unwrap();
        let config = |ids: serde_json::Value| {
            let json = json!({"architecture": "amd64", "os": "linux", "rootfs": {"type": "layers", "diff_ids": ids},
                "config": {"Entrypoint": null, "Cmd": ["sh"], "Env": null, "Volumes": null, "ExposedPorts": null}});
            parse_config(json.to_string().as_bytes(), &manifest)
        };
        assert!(config(json!([sha256(b"x")])).is_ok(), "{:?}", config(json!([sha256(b"x")])));
        assert!(config(json!([])).unwrap_err().contains("configuration 0"));
        assert!(config(json!(["sha256:../x"])).unwrap_err().contains("layer id"));
    }
}
