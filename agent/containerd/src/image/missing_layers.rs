//! Which layers an import would lack: of an image whose documents are at hand, before anything of it is stored.

use std::collections::{BTreeMap, BTreeSet};

use super::document::Document;
use super::error::ImageError;
use super::local::MAX_DEPTH;
use super::platform::{HostPlatform, ImagePlatform};
use super::{CallError, Images};

impl Images {
    /// The layers for this node of the image `name`, whose target is `digest`, that are neither `brought` nor in containerd.
    /// `documents` are the image's own, by digest.
    ///
    /// # Errors
    /// `Content`: the image has nothing for this node's platform. `Runtime` while containerd does not answer.
    pub async fn missing_layers(
        &self,
        name: &str,
        digest: &str,
        documents: &BTreeMap<String, Vec<u8>>,
        brought: &BTreeSet<String>,
    ) -> Result<Vec<String>, ImageError> {
        let layers = layers(digest, documents).map_err(|cause| ImageError::content(name, cause))?;
        let mut missing = Vec::new();
        for layer in layers.into_iter().filter(|layer| !brought.contains(layer)) {
            let info = self.inner.store.info(&layer).await;
            if info.map_err(|error: CallError| ImageError::call(name, error))?.is_none() {
                missing.push(layer);
            }
        }
        Ok(missing)
    }
}

/// The layers of the manifest that this node would use.
fn layers(target: &str, documents: &BTreeMap<String, Vec<u8>>) -> Result<Vec<String>, String> {
    let mut digest = target.to_owned();
    for _ in 0..=MAX_DEPTH {
        let bytes = documents.get(&digest).ok_or_else(|| format!("{digest} is not in it"))?;
        digest = match Document::parse(bytes)? {
            Document::Manifest(manifest) => {
                return Ok(manifest.layers().iter().map(|layer| layer.digest().to_string()).collect());
            }
            Document::Index(index) => {
                let chosen = HostPlatform::current().select(index.manifests(), ImagePlatform::Any)?;
                chosen.digest().to_string()
            }
        };
    }
    Err(format!("more than {MAX_DEPTH} nested indexes"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::image::document::sha256;

    #[test]
    fn the_layers_are_those_of_this_nodes_platform() {
        let descriptor = |media_type: &str, digest: &str| serde_json::json!({ "mediaType": media_type, "digest": digest, "size": 1 });
        let manifest = |layer: &str| {
            let layer = descriptor("application/vnd.oci.image.layer.v1.tar", &sha256(layer.as_bytes()));
            let config = descriptor("application/vnd.oci.image.config.v1+json", &sha256(b"config"));
            serde_json::json!({ "schemaVersion": 2, "config": config, "layers": [layer] }).to_string().into_bytes()
        };
        let (local, other) = (manifest("own"), manifest("other"));
        let entry = |bytes: &[u8], architecture: &str| {
            let mut entry = descriptor("application/vnd.oci.image.manifest.v1+json", &sha256(bytes));
            entry["platform"] = serde_json::json!({ "architecture": architecture, "os": "linux" });
            entry
        };
        let architecture = HostPlatform::current().architecture;
        let index = serde_json::json!({ "schemaVersion": 2, "manifests": [entry(&other, "s390x"), entry(&local, architecture)] });
        let index = index.to_string().into_bytes();
        let target = sha256(&index);
        let documents = [index, local.clone()].map(|bytes| (sha256(&bytes), bytes));
        assert_eq!(layers(&target, &BTreeMap::from(documents.clone())).unwrap(), [sha256(b"own")]);
        let [index, _] = documents;
        let error = layers(&target, &BTreeMap::from([index])).unwrap_err();
        assert!(error.contains(&sha256(&local)) && error.contains("is not in it"), "{error}");
    }
}
