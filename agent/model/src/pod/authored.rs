//! The parts of a manifest that are compared and hashed as authored, borrowed from its canonical form.
//!
//! Changes in place are detected by these bytes and not by the defaulted object, so that an agent with other defaults
//! restarts nothing. Canonical bytes are equal exactly if the values are.

use std::borrow::Cow;

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::Deserialize;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::pod::qos::{CPU, MEMORY, limit, names_any};

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
    #[serde(borrow)]
    resources: Option<&'a RawValue>,
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
    /// The pod's own resources, if it has any that limit the container.
    #[serde(skip)]
    of_pod: Option<&'a RawValue>,
}

impl<'a> Authored<'a> {
    /// Parses a canonical manifest; an invalid one has no parts.
    pub fn parse(manifest: &'a [u8]) -> Self {
        let mut authored: Self = serde_json::from_slice(manifest).unwrap_or_default();
        let spec = &mut authored.spec;
        if spec.resources.is_some_and(|resources| parsed(resources).is_some_and(|resources| names_any(&resources))) {
            let containers = spec.init_containers.iter_mut().chain(&mut spec.containers);
            containers
                .filter(|container| container.has_limits_of_pod())
                .for_each(|container| container.of_pod = spec.resources);
        }
        authored
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
    /// A hash of image and resources, whose change restarts only this container. It includes the pod's own resources
    /// if those limit the container.
    pub fn fingerprint(&self) -> String {
        let mut hash = Sha256::new();
        for part in ["[", text(self.image), ",", text(self.resources)] {
            hash.update(part);
        }
        for part in self.of_pod.iter().flat_map(|resources| [",", resources.get()]) {
            hash.update(part);
        }
        hash.update("]");
        hex(&hash.finalize()[..16])
    }

    pub(super) fn same_image(&self, other: &Self) -> bool {
        same(self.image, other.image)
    }

    pub(super) fn same_resources(&self, other: &Self) -> bool {
        same(self.resources, other.resources) && same(self.of_pod, other.of_pod)
    }

    /// Whether its cpu or its memory has no limit of its own, so that the pod's limit applies.
    fn has_limits_of_pod(&self) -> bool {
        let resources = self.resources.and_then(parsed).unwrap_or_default();
        [CPU, MEMORY].iter().any(|name| limit(&resources, name).is_zero())
    }

    pub(super) fn same_pull_policy(&self, other: &Self) -> bool {
        same(self.image_pull_policy, other.image_pull_policy)
    }
}

fn same(a: Option<&RawValue>, b: Option<&RawValue>) -> bool {
    text(a) == text(b)
}

fn parsed(resources: &RawValue) -> Option<ResourceRequirements> {
    serde_json::from_str(resources.get()).ok()
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
        let authored = Authored::parse(manifest.as_bytes());
        let fingerprint = |name: &str| authored.container(name).unwrap().fingerprint();
        // These hashes are recorded on running containers, so they must never change.
        let hash_of = |value: serde_json::Value| -> String {
            Sha256::digest(value.to_string())[..16].iter().map(|byte| format!("{byte:02x}")).collect()
        };
        assert_eq!(fingerprint("web"), hash_of(json!(["web:\"1\"", { "limits": { "cpu": 0.5 } }])));
        assert_eq!(fingerprint("prepare"), "b565d29b13803477f3703a4dbdad4647");
        assert_eq!(fingerprint("none"), hash_of(json!([null, null])));
        assert!(authored.container("other").is_none());
    }

    #[test]
    fn the_pods_resources_are_part_of_a_container_that_has_its_limits_from_them() {
        let fingerprints = |pod: serde_json::Value| {
            let resources = json!({ "limits": { "cpu": "1", "memory": "1Mi" } });
            let manifest = json!({ "spec": { "resources": pod, "containers": [
                { "name": "none", "image": "a:1" },
                { "name": "half", "image": "a:1", "resources": { "limits": { "cpu": "1" } } },
                { "name": "own", "image": "a:1", "resources": resources },
            ]}});
            let manifest = manifest.to_string();
            let authored = Authored::parse(manifest.as_bytes());
            ["none", "half", "own"].map(|name| authored.container(name).unwrap().fingerprint())
        };
        let [none, half, whole] = fingerprints(json!(null));
        assert_eq!(fingerprints(json!({})), [none.clone(), half.clone(), whole.clone()], "a pod without resources");
        let limits = |cpu: &str| fingerprints(json!({ "limits": { "cpu": cpu } }));
        let [of_pod, half_of_pod, still_own] = limits("1");
        assert!(of_pod != none && half_of_pod != half && still_own == whole);
        assert!(limits("2")[0] != of_pod && limits("2")[2] == whole);
    }

    #[test]
    fn an_invalid_manifest_has_no_parts() {
        assert!(Authored::parse(b"[]").container("web").is_none());
        assert!(Authored::parse(b"").same_uid(&Authored::parse(b"{}")));
    }
}
