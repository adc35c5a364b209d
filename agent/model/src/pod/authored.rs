//! The parts of a manifest that are compared and hashed as authored, borrowed from its canonical form.
//!
//! Changes in place are detected by these bytes and not by the defaulted object, so that an agent with other defaults
//! restarts nothing. Canonical bytes are equal exactly when the values are.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The parts of one canonical manifest.
#[derive(Debug, Default, Deserialize)]
pub struct Authored<'a> {
    #[serde(borrow, default)]
    metadata: Metadata<'a>,
    #[serde(borrow, default)]
    spec: Spec<'a>,
}

#[derive(Debug, Default, Deserialize)]
struct Metadata<'a> {
    #[serde(borrow)]
    uid: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec<'a> {
    #[serde(borrow, default)]
    init_containers: Vec<AuthoredContainer<'a>>,
    #[serde(borrow, default)]
    containers: Vec<AuthoredContainer<'a>>,
}

/// The fields of one container that can change in place, and the pull policy, whose default depends on the image.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AuthoredContainer<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    image: Option<&'a RawValue>,
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
    #[serde(borrow)]
    image_pull_policy: Option<&'a RawValue>,
}

impl<'a> Authored<'a> {
    /// Reads a canonical manifest; an invalid one has no parts.
    pub fn of(manifest: &'a [u8]) -> Self {
        serde_json::from_slice(manifest).unwrap_or_default()
    }

    /// The container called `name`, init containers included.
    pub fn container(&self, name: &str) -> Option<&AuthoredContainer<'a>> {
        self.spec.init_containers.iter().chain(&self.spec.containers).find(|container| container.name == name)
    }

    pub(super) fn same_uid(&self, other: &Self) -> bool {
        same(self.metadata.uid, other.metadata.uid)
    }
}

impl AuthoredContainer<'_> {
    /// Hash of image and resources: a change restarts this container and no other.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in ["[", text(self.image), ",", text(self.resources), "]"] {
            hash.update(part);
        }
        hash.finalize()[..16].iter().map(|byte| format!("{byte:02x}")).collect()
    }

    pub(super) fn same_image(&self, other: &Self) -> bool {
        same(self.image, other.image)
    }

    pub(super) fn same_resources(&self, other: &Self) -> bool {
        same(self.resources, other.resources)
    }

    pub(super) fn same_pull_policy(&self, other: &Self) -> bool {
        same(self.image_pull_policy, other.image_pull_policy)
    }
}

fn same(a: Option<&RawValue>, b: Option<&RawValue>) -> bool {
    text(a) == text(b)
}

/// An absent key and `null` are the same.
fn text(value: Option<&RawValue>) -> &str {
    value.map_or("null", RawValue::get)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use crate::pod::authored::*;

    #[test]
    fn a_containers_fingerprint_is_pinned() {
        let manifest = json!({ "spec": {
            "containers": [{ "name": "web", "image": "web:\"1\"", "resources": { "limits": { "cpu": 0.5 } } }],
            "initContainers": [{ "name": "prepare", "image": "web:1" }, { "name": "none" }],
        }});
        let manifest = manifest.to_string();
        let authored = Authored::of(manifest.as_bytes());
        let fingerprint = |name: &str| authored.container(name).unwrap().fingerprint();
        // Recorded on running containers: must never change.
        let of = |value: serde_json::Value| -> String {
            Sha256::digest(value.to_string())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(fingerprint("web"), of(json!(["web:\"1\"", { "limits": { "cpu": 0.5 } }])));
        assert_eq!(fingerprint("prepare"), "b565d29b13803477f3703a4dbdad4647");
        assert_eq!(fingerprint("none"), of(json!([null, null])));
        assert!(authored.container("other").is_none());
    }

    #[test]
    fn an_invalid_manifest_has_no_parts() {
        assert!(Authored::of(b"[]").container("web").is_none());
        assert!(Authored::of(b"").same_uid(&Authored::of(b"{}")));
    }
}
