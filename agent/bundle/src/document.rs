//! The documents of a bundle. It is an OCI image layout: `index.json` lists the bundle's own manifest, and beside it the
//! images under the names by which the pods need them.

use oci_spec::image::{Descriptor, DescriptorBuilder, MediaType};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// What the bundle's own manifest is.
pub const ARTIFACT_TYPE: &str = "application/vnd.limpet.bundle.v1";
/// The media type of [`BundleConfig`].
pub(crate) const CONFIG_TYPE: &str = "application/vnd.limpet.bundle.config.v1+json";
/// The media type of the manifests: a `List` of Kubernetes, in JSON.
pub(crate) const MANIFESTS_TYPE: &str = "application/vnd.limpet.bundle.manifests.v1+json";
/// The media type of [`SealedSecrets`](crate::sealed::SealedSecrets).
pub(crate) const SECRETS_TYPE: &str = "application/vnd.limpet.bundle.secrets.v1+json";
/// The media type of a bundle as the one layer of an artifact in a registry.
pub const LAYER_TYPE: &str = "application/vnd.limpet.bundle.v1+tar";
/// The annotation with an image's name, by which containerd imports it.
pub(crate) const IMAGE_NAME: &str = "io.containerd.image.name";

/// The longest name and version in bytes: they are part of the signature's comment.
const MAX_NAME: usize = 128;
/// What a name and a version must have.
pub(crate) const NAME_RULE: &str = "1 to 128 bytes, and no characters of control";

/// Whether it may be a bundle's name or version. They are shown, and label a metric.
pub(crate) fn is_name(text: &str) -> bool {
    (1..=MAX_NAME).contains(&text.len()) && !text.chars().any(char::is_control)
}

/// The configuration of the artifact: what identifies a bundle, and what it brings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleConfig {
    /// What it is for: a fleet, a product.
    pub name: String,
    /// The version that is shown to people. Only the serial decides which bundle is newer.
    pub version: String,
    /// Increases with every bundle for a node: a lower one is old.
    pub serial: u64,
    /// For how many of the nodes it is, in percent; without it for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<u8>,
    /// The images that it brings.
    pub images: Vec<BundledImage>,
}

/// One image of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundledImage {
    /// The name that the archive had for it, normalized.
    pub name: String,
    /// Of its manifest or index.
    pub digest: String,
}

/// The digest of a document in the form `sha256:…`, by which descriptors name it.
pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", limpet_model::hex::hex(&Sha256::digest(bytes)))
}

/// A descriptor of a document of that media type.
pub(crate) fn descriptor(media_type: &str, bytes: &[u8]) -> Result<Descriptor, String> {
    let digest = digest(bytes).parse().map_err(|error: oci_spec::OciSpecError| error.to_string())?;
    let descriptor = DescriptorBuilder::default()
        .media_type(MediaType::from(media_type))
        .digest::<oci_spec::image::Digest>(digest)
        .size(bytes.len() as u64);
    descriptor.build().map_err(|error| error.to_string())
}
