//! The identity of a manifest's pod: key, UID, and the fields the node sets (`applyDefaults` in kubelet's
//! `pkg/kubelet/config/common.go`).

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::pod::{Fingerprint, NameError, PodKey, PodUid, is_terminal_phase};
use crate::source::SourceKind;

/// kubelet's annotation with the pod's hash; for a static pod it is the UID.
pub const HASH_ANNOTATION: &str = "kubernetes.io/config.hash";
/// kubelet's annotation with the pod's source.
pub const SOURCE_ANNOTATION: &str = "kubernetes.io/config.source";
/// On every pod that a controller of the node has made: the kind and name of its workload, such as `Deployment/web`.
pub const OWNER_ANNOTATION: &str = "limpet.dev/owner";
const DEFAULT_NAMESPACE: &str = "default";

/// The key of a pod called `name` on the node: `<name>-<node name, lower case>`.
///
/// # Errors
///
/// A part of it is not a valid name.
pub fn key(namespace: Option<&str>, name: &str, node_name: &str) -> Result<PodKey, NameError> {
    PodKey::parse(namespace_or_default(namespace), name_on_node(name, node_name))
}

/// The namespace that a manifest names, or the default one.
pub(crate) fn namespace_or_default(namespace: Option<&str>) -> &str {
    namespace.filter(|namespace| !namespace.is_empty()).unwrap_or(DEFAULT_NAMESPACE)
}

/// The name of a static pod, which contains that of its node.
pub(crate) fn name_on_node(name: &str, node_name: &str) -> String {
    format!("{name}-{}", node_name.to_lowercase())
}

/// Whether a pod's manifest says that a controller of the node has made it.
pub(crate) fn has_owner(manifest: &Value) -> bool {
    manifest["metadata"]["annotations"].get(OWNER_ANNOTATION).is_some_and(Value::is_string)
}

/// The UID derived from node, source, key and the fields that cannot change in place. Each part is hashed with its
/// length, so that different lists of parts never have the same input.
pub(crate) fn derive_uid(
    node_name: &str,
    source: SourceKind,
    (namespace, name): (&str, &str),
    immutable: Fingerprint,
) -> PodUid {
    let mut hash = Sha256::new();
    let node_name = node_name.to_lowercase();
    let parts = ["limpet pod uid 1", &node_name, source.as_str(), namespace, name, &immutable.to_string()];
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    PodUid::of_digest(&hash.finalize()[..16])
}

/// Sets the fields of the pod that the node determines.
pub(crate) fn set_node_fields(
    pod: &mut Pod,
    (namespace, name): (&str, &str),
    uid: &str,
    source: SourceKind,
    node_name: &str,
) {
    let metadata = &mut pod.metadata;
    metadata.name = Some(name.to_owned());
    metadata.namespace = Some(namespace.to_owned());
    metadata.uid = Some(uid.to_owned());
    let annotations = metadata.annotations.get_or_insert_default();
    if !source.traits().is_stored {
        annotations.insert(HASH_ANNOTATION.to_owned(), uid.to_owned());
    }
    annotations.insert(SOURCE_ANNOTATION.to_owned(), source.to_string());
    let spec = pod.spec.get_or_insert_default();
    spec.node_name = Some(node_name.to_owned());
    if source.traits().tolerates_all {
        tolerate_all(spec.tolerations.get_or_insert_default());
    }
    let phase = &mut pod.status.get_or_insert_with(PodStatus::default).phase;
    let is_over = source.traits().is_stored && phase.as_deref().is_some_and(is_terminal_phase);
    if !is_over {
        *phase = Some("Pending".to_owned());
    }
}

/// Makes a file's pod tolerate every taint, as kubelet does.
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
