//! The identity of a manifest's pod: key, UID, and the fields the node sets (`applyDefaults` in kubelet's
//! `pkg/kubelet/config/common.go`).

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use sha2::{Digest, Sha256};

use crate::hex::hex;
use crate::pod::{Fingerprint, PodKey, PodUid, is_terminal_phase};
use crate::source::SourceKind;

/// kubelet's annotation with the pod's hash; for a static pod it is the UID.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// kubelet's annotation with the pod's source.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
const DEFAULT_NAMESPACE: &str = "default";

/// The key of a pod called `name` on the node: `<name>-<node name, lower case>`.
pub fn key(namespace: Option<&str>, name: &str, node_name: &str) -> PodKey {
    let namespace = namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(DEFAULT_NAMESPACE);
    PodKey::new(namespace, format!("{name}-{}", node_name.to_lowercase()))
}

/// The UID derived from node, source, key and the fields that cannot change in place. Each part is hashed with its
/// length, so that no two lists of parts hash the same input.
pub fn derive_uid(node_name: &str, source: SourceKind, key: &PodKey, immutable: Fingerprint) -> PodUid {
    let mut hash = Sha256::new();
    let node_name = node_name.to_lowercase();
    let parts = ["limpet pod uid 1", &node_name, source.as_str(), key.namespace(), key.name(), &immutable.to_string()];
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digits = hex(&hash.finalize()[..16]);
    PodUid::new(digits)
}

/// Sets the fields of the pod that the node owns.
pub fn set_node_fields(pod: &mut Pod, key: &PodKey, uid: &PodUid, source: SourceKind, node_name: &str) {
    let metadata = &mut pod.metadata;
    metadata.name = Some(key.name().to_owned());
    metadata.namespace = Some(key.namespace().to_owned());
    metadata.uid = Some(uid.to_string());
    let annotations = metadata.annotations.get_or_insert_default();
    if source != SourceKind::Api {
        annotations.insert(HASH_ANNOTATION.to_owned(), uid.to_string());
    }
    annotations.insert(SOURCE_ANNOTATION.to_owned(), source.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if source == SourceKind::File {
        tolerate_all(spec.tolerations.get_or_insert_default());
    }
    let phase = &mut pod.status.get_or_insert_with(PodStatus::default).phase;
    let is_over = source == SourceKind::Api && phase.as_deref().is_some_and(is_terminal_phase);
    if !is_over {
        *phase = Some("Pending".to_owned());
    }
}

/// A file's pod tolerates every taint, as kubelet's does.
fn tolerate_all(tolerations: &mut Vec<Toleration>) {
    let all = Toleration {
        effect: Some("NoExecute".to_owned()),
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    };
    if !tolerations.contains(&all) {
        tolerations.push(all);
    }
}
