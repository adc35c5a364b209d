//! The metadata that limpet stores on each container in containerd, so that a restarted agent needs no database.
//!
//! Labels hold the short keys that other tools read. Extensions hold the rest: the pod's manifest, the container's
//! identity, its state, and its probe results. The last two change and have separate writers; the state is written
//! before the task is deleted. Manifest and identity change together when the container is resized.

use std::collections::HashMap;
use std::sync::Arc;

use prost_types::Any;
use serde::Serialize;

use limpet_model::container::{ContainerIdentity, ContainerState, Recorded};
use limpet_model::probe::ProbeRecord;

/// Label that marks a container as limpet's.
pub const LABEL_MANAGED: &str = "io.limpet.managed";
/// The pod's name. Like the following labels it is kubelet's, which other node tools read.
pub const LABEL_POD_NAME: &str = "io.kubernetes.pod.name";
pub const LABEL_POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
pub const LABEL_POD_UID: &str = "io.kubernetes.pod.uid";
/// The container's name in the pod.
pub const LABEL_CONTAINER_NAME: &str = "io.kubernetes.container.name";

/// The pod's manifest.
pub const EXTENSION_MANIFEST: &str = "io.limpet.manifest";
/// The container's identity.
pub const EXTENSION_IDENTITY: &str = "io.limpet.identity";
/// The container's state, which changes during its life.
pub const EXTENSION_STATE: &str = "io.limpet.state";

/// Probe results. A container without a changed result has none.
pub const EXTENSION_PROBES: &str = "io.limpet.probes";

pub fn labels(identity: &ContainerIdentity) -> HashMap<String, String> {
    [
        (LABEL_MANAGED, "container"),
        (LABEL_POD_NAME, &identity.pod),
        (LABEL_POD_NAMESPACE, &identity.namespace),
        (LABEL_POD_UID, &identity.uid),
        (LABEL_CONTAINER_NAME, &identity.container),
    ]
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

pub fn extensions(identity: &ContainerIdentity, manifest: &[u8]) -> HashMap<String, Any> {
    let mut extensions = version_extensions(identity, manifest);
    extensions.insert(EXTENSION_STATE.to_owned(), state_extension(&ContainerState::default()));
    extensions
}

/// The extensions for the version of the pod that a container belongs to.
pub fn version_extensions(identity: &ContainerIdentity, manifest: &[u8]) -> HashMap<String, Any> {
    HashMap::from([
        (EXTENSION_MANIFEST.to_owned(), any(EXTENSION_MANIFEST, manifest.to_vec())),
        (EXTENSION_IDENTITY.to_owned(), any(EXTENSION_IDENTITY, json(identity))),
    ])
}

pub fn state_extension(state: &ContainerState) -> Any {
    any(EXTENSION_STATE, json(state))
}

pub fn probes_extension(probes: &ProbeRecord) -> Any {
    any(EXTENSION_PROBES, json(probes))
}

/// Parses the extensions. The error names the missing or unreadable one.
pub fn recorded(extensions: &HashMap<String, Any>) -> Result<Recorded, String> {
    let bytes = |key: &str| {
        extensions.get(key).map(|any| any.value.as_slice()).ok_or_else(|| format!("extension {key} is missing"))
    };
    let parse_error = |key: &str, error: serde_json::Error| format!("extension {key}: {error}");
    let probes = extensions.get(EXTENSION_PROBES).map(|any| serde_json::from_slice(&any.value)).transpose();
    Ok(Recorded {
        identity: serde_json::from_slice(bytes(EXTENSION_IDENTITY)?)
            .map_err(|error| parse_error(EXTENSION_IDENTITY, error))?,
        state: serde_json::from_slice(bytes(EXTENSION_STATE)?).map_err(|error| parse_error(EXTENSION_STATE, error))?,
        probes: probes.map_err(|error| parse_error(EXTENSION_PROBES, error))?.unwrap_or_default(),
        manifest: Arc::from(bytes(EXTENSION_MANIFEST)?),
    })
}

fn any(type_url: &str, value: Vec<u8>) -> Any {
    Any { type_url: type_url.to_owned(), value }
}

fn json<T: Serialize>(value: &T) -> Vec<u8> {
    // Plain structs of strings and numbers always serialize.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
