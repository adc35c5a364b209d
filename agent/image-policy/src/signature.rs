//! Signatures of an image as registries keep them: manifests whose layers are signatures, in the two forms of cosign.
//!
//! cosign 2 tags the manifest `sha256-<digest>.sig`; each layer is a payload of simple signing, and its annotation the
//! signature. cosign 3 attaches a manifest to the image by the referrers API; its layer is a sigstore bundle.

use serde::Deserialize;

/// The media type of a layer with a signature by cosign 2.
const SIMPLE_SIGNING: &str = "application/vnd.dev.cosign.simplesigning.v1+json";
/// The annotation of such a layer that has the signature.
const SIGNATURE_ANNOTATION: &str = "dev.cosignproject.cosign/signature";
/// The beginning of the media type of sigstore bundles; a version follows.
const SIGSTORE_BUNDLE: &str = "application/vnd.dev.sigstore.bundle";
/// The artifact type of cosign 2's signatures where it uses the referrers API.
const COSIGN_ARTIFACT: &str = "application/vnd.dev.cosign.artifact.sig.v1+json";

/// The type of an empty configuration. cosign gives it as the artifact's type where a registry lacks the referrers
/// API.
const EMPTY: &str = "application/vnd.oci.empty.v1+json";

/// How many manifests with signatures are read for one image.
pub const MAX_MANIFESTS: usize = 16;
/// How many signatures are read from one manifest.
pub const MAX_SIGNATURES: usize = 32;
/// The largest signature, in bytes: a bundle with certificates and proofs of a log takes a few thousand.
pub const MAX_SIGNATURE: u64 = 256 << 10;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SignatureForm {
    SimpleSigning {
        /// In base64.
        signature: String,
    },
    /// A sigstore bundle with a DSSE envelope.
    SigstoreBundle,
}

/// One signature with its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signature {
    /// Where it comes from, for messages.
    pub place: String,
    pub form: SignatureForm,
    pub blob: Vec<u8>,
}

/// One signature of a manifest, not yet fetched.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignatureLayer {
    /// `sha256:…` of its blob.
    pub digest: String,
    /// The blob's size in bytes.
    pub size: u64,
    pub form: SignatureForm,
}

#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    layers: Vec<Layer>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Layer {
    media_type: String,
    digest: String,
    size: u64,
    #[serde(default)]
    annotations: Option<serde_json::Map<String, serde_json::Value>>,
}

#[derive(Deserialize)]
struct Index {
    manifests: Option<Vec<Referrer>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Referrer {
    digest: String,
    artifact_type: Option<String>,
}

/// The tag under which cosign 2 keeps the signatures of an image.
pub fn signature_tag(digest: &str) -> String {
    format!("{}.sig", referrers_tag(digest))
}

/// The tag that stands for the referrers API where a registry lacks it.
pub fn referrers_tag(digest: &str) -> String {
    digest.replacen(':', "-", 1)
}

/// The signatures of a manifest, at most [`MAX_SIGNATURES`]; layers of other kinds are ignored.
///
/// # Errors
///
/// It is not a manifest.
pub fn signature_layers(manifest: &[u8]) -> Result<Vec<SignatureLayer>, String> {
    let manifest: Manifest = serde_json::from_slice(manifest).map_err(|error| format!("is not a manifest: {error}"))?;
    Ok(manifest.layers.into_iter().filter_map(signature_layer).take(MAX_SIGNATURES).collect())
}

fn signature_layer(layer: Layer) -> Option<SignatureLayer> {
    let form = if layer.media_type == SIMPLE_SIGNING {
        let annotations = layer.annotations.unwrap_or_default();
        let signature = annotations.get(SIGNATURE_ANNOTATION)?.as_str()?.to_owned();
        SignatureForm::SimpleSigning { signature }
    } else if layer.media_type.starts_with(SIGSTORE_BUNDLE) {
        SignatureForm::SigstoreBundle
    } else {
        return None;
    };
    (layer.size <= MAX_SIGNATURE).then_some(SignatureLayer { digest: layer.digest, size: layer.size, form })
}

/// The digests of the manifests in a list of referrers that may be signatures, at most [`MAX_MANIFESTS`].
///
/// # Errors
///
/// It is not a list of referrers.
pub fn signature_referrers(index: &[u8]) -> Result<Vec<String>, String> {
    let index: Index = serde_json::from_slice(index).map_err(|error| format!("is not a list of referrers: {error}"))?;
    // An entry without a type may be anything, and so may one that cosign itself lists under the tag.
    let may_sign = |kind: &str| kind.starts_with(SIGSTORE_BUNDLE) || kind == COSIGN_ARTIFACT || kind == EMPTY;
    let referrers = index.manifests.unwrap_or_default().into_iter();
    let signatures = referrers.filter(|entry| entry.artifact_type.as_deref().is_none_or(may_sign));
    Ok(signatures.map(|entry| entry.digest).take(MAX_MANIFESTS).collect())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_layers_of_both_forms_are_found() {
        let manifest = json!({ "schemaVersion": 2, "layers": [
            { "mediaType": SIMPLE_SIGNING, "digest": "sha256:a", "size": 200, "annotations": { SIGNATURE_ANNOTATION: "c2ln" } },
            { "mediaType": SIMPLE_SIGNING, "digest": "sha256:b", "size": 200, "annotations": { "other": "c2ln" } },
            { "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "digest": "sha256:c", "size": 2000 },
            { "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json", "digest": "sha256:d", "size": MAX_SIGNATURE + 1 },
            { "mediaType": "application/spdx+json", "digest": "sha256:e", "size": 2 },
        ]});
        let layers = signature_layers(manifest.to_string().as_bytes()).unwrap();
        let simple = SignatureForm::SimpleSigning { signature: "c2ln".to_owned() };
        let expected = [
            SignatureLayer { digest: "sha256:a".into(), size: 200, form: simple },
            SignatureLayer { digest: "sha256:c".into(), size: 2000, form: SignatureForm::SigstoreBundle },
        ];
        assert_eq!(layers, expected);
        assert!(signature_layers(b"").is_err() && signature_layers(b"3").is_err());
        let many = json!({ "layers": vec![manifest["layers"][2].clone(); 100] });
        assert_eq!(signature_layers(many.to_string().as_bytes()).unwrap().len(), MAX_SIGNATURES);
    }

    #[test]
    fn referrers_of_other_kinds_are_passed_over() {
        let index = json!({ "schemaVersion": 2, "manifests": [
            { "digest": "sha256:a", "artifactType": "application/vnd.dev.sigstore.bundle.v0.3+json" },
            { "digest": "sha256:b", "artifactType": "application/spdx+json" },
            { "digest": "sha256:c", "artifactType": COSIGN_ARTIFACT },
            { "digest": "sha256:d" },
        ]});
        let digests = signature_referrers(index.to_string().as_bytes()).unwrap();
        assert_eq!(digests, ["sha256:a", "sha256:c", "sha256:d"]);
        assert_eq!(signature_referrers(br#"{"manifests":null}"#).unwrap(), [""; 0]);
        assert!(signature_referrers(b"<html>").is_err());
    }

    #[test]
    fn tags_are_those_of_cosign_and_of_the_distribution_specification() {
        assert_eq!(signature_tag("sha256:0a"), "sha256-0a.sig");
        assert_eq!(referrers_tag("sha256:0a"), "sha256-0a");
    }
}
