//! Artifacts of a registry that are no images: one file as the layer of a manifest.

use super::document::Document;
use super::error::ImageError;
use super::registry::{Download, Session};
use super::{Images, MAX_CREDENTIALS_TRIED, PullAccess};
use limpet_model::image_name::ImageName;

/// An artifact whose manifest was read.
pub struct Artifact {
    session: Session,
    layer: String,
    size: u64,
}

impl std::fmt::Debug for Artifact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Artifact").field("layer", &self.layer).field("size", &self.size).finish_non_exhaustive()
    }
}

/// The content of a layer, as it arrives. It is not verified here.
pub struct ArtifactContent(Download);

impl std::fmt::Debug for ArtifactContent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArtifactContent").field("offset", &self.0.offset).finish_non_exhaustive()
    }
}

impl ArtifactContent {
    /// Where in the layer its first byte is: 0 if the registry cannot go on where that was asked for.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// The next bytes; `None` at the end.
    ///
    /// # Errors
    /// The connection broke, and why.
    pub async fn chunk(&mut self) -> Result<Option<bytes::Bytes>, String> {
        self.0.chunk().await
    }
}

impl Artifact {
    /// The digest of its layer.
    pub fn layer(&self) -> &str {
        &self.layer
    }

    /// The bytes of its layer.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Reads its layer from `offset` on.
    ///
    /// # Errors
    /// The registry does not send it.
    pub async fn read(&self, offset: u64) -> Result<ArtifactContent, ImageError> {
        Ok(ArtifactContent(self.session.blob(&self.layer, offset).await?))
    }

    /// Reads the first `count` bytes of its layer; more if the registry does not support ranges.
    ///
    /// # Errors
    /// The registry does not send them.
    pub async fn read_first(&self, count: u64) -> Result<ArtifactContent, ImageError> {
        Ok(ArtifactContent(self.session.blob_start(&self.layer, count).await?))
    }
}

impl Images {
    /// The artifact of that name, with the node's credentials and by its mirrors: a manifest with one layer of `layer_type`.
    ///
    /// # Errors
    /// `InvalidName`; `Content`: it is something else; otherwise why the registry does not answer.
    pub async fn artifact(&self, reference: &str, layer_type: &str) -> Result<Artifact, ImageError> {
        let name = ImageName::parse(reference)?;
        let access = PullAccess::default();
        let provided = self.inner.credentials(&name, &access).await;
        let mut turn = 0;
        loop {
            let (session, others) = self.inner.session(name.clone(), &access.secrets, &provided, turn).await?;
            turn += 1;
            let fetched = match session.manifest(name.target.as_str()).await {
                Err(ImageError::Unauthorized { .. }) if others && turn < MAX_CREDENTIALS_TRIED => continue,
                fetched => fetched?,
            };
            let (layer, size) =
                layer(&fetched.bytes, layer_type).map_err(|cause| ImageError::content(&name.whole, cause))?;
            return Ok(Artifact { session, layer, size });
        }
    }
}

/// Digest and size of the one layer of that type.
fn layer(manifest: &[u8], layer_type: &str) -> Result<(String, u64), String> {
    let Document::Manifest(manifest) = Document::parse(manifest)? else {
        return Err("it is an index, not an artifact".to_owned());
    };
    let mut layers = manifest.layers().iter().filter(|layer| layer.media_type().to_string() == layer_type);
    match (layers.next(), layers.next()) {
        (Some(layer), None) => Ok((layer.digest().to_string(), layer.size())),
        (None, _) => Err(format!("it has no layer of the type {layer_type}")),
        (Some(_), Some(_)) => Err(format!("it has several layers of the type {layer_type}")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::image::document::sha256;

    #[test]
    fn an_artifact_has_one_layer_of_its_type() {
        let descriptor =
            |media_type: &str| serde_json::json!({ "mediaType": media_type, "digest": sha256(b"x"), "size": 7 });
        let manifest = |layers: &[&str]| {
            let layers: Vec<_> = layers.iter().map(|layer| descriptor(layer)).collect();
            let config = descriptor("application/vnd.oci.empty.v1+json");
            serde_json::json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string().into_bytes()
        };
        assert_eq!(layer(&manifest(&["x/readme", "x/tar"]), "x/tar").unwrap(), (sha256(b"x"), 7));
        for (layers, part) in [(&["x/readme"][..], "no layer"), (&["x/tar", "x/tar"], "several layers")] {
            let error = layer(&manifest(layers), "x/tar").unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        assert!(layer(b"{\"manifests\": []}", "x/tar").is_err());
    }
}
