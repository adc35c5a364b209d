//! The payload that cosign 2 signs. It names an image by its digest.

use serde::Deserialize;

/// The value of `critical.type` in a signature by cosign.
const TYPE: &str = "cosign container image signature";

#[derive(Deserialize)]
struct Payload {
    critical: Critical,
}

#[derive(Deserialize)]
struct Critical {
    image: Image,
    r#type: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Image {
    docker_manifest_digest: String,
}

/// The digest of the image that a payload is about. As in cosign, the name in it is not verified, so a copy of an
/// image in another registry keeps its signature.
///
/// # Errors
///
/// It is not a payload of cosign.
pub(crate) fn signed_digest(payload: &[u8]) -> Result<String, String> {
    let payload: Payload = serde_json::from_slice(payload).map_err(|error| format!("its payload is {error}"))?;
    match payload.critical.r#type.as_str() {
        TYPE => Ok(payload.critical.image.docker_manifest_digest),
        other => Err(format!("its payload is of type {other:?}")),
    }
}
