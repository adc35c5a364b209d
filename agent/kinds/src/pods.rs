//! The pods that a controller wants, as records: names, labels and owners as Kubernetes' controllers give them.

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::object::workload::{REVISION_HASH, TEMPLATE_HASH, pod_name, suffix};
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord};
use limpet_model::pod::{Fault, PodRecord};
use limpet_model::source::SourceKind;

use crate::memory::{Revision, WantedPod};

/// The name of a replica: of a Deployment `web-<hash>-<suffix>`, else `web-<suffix>`.
pub(crate) fn replica_name(node_name: &str, key: &ObjectKey, hash: &str, serial: u64) -> String {
    let suffix = suffix(node_name, key, hash, serial);
    match key.kind {
        ObjectKind::Deployment => pod_name(&key.name, &format!("{hash}-{suffix}")),
        _ => pod_name(&key.name, &suffix),
    }
}

/// The record of a wanted pod.
///
/// # Errors
/// The template is none of a Pod any more, for a version of the agent that no longer reads what an earlier one accepted.
pub(crate) fn record(
    owner: &ObjectRecord,
    pod: &WantedPod,
    revision: &Revision,
    source: SourceKind,
    node_name: &str,
) -> Result<Arc<PodRecord>, Vec<Fault>> {
    let key = &owner.key;
    let (label, controller) = match key.kind {
        ObjectKind::Deployment => {
            (Some(TEMPLATE_HASH), ("apps/v1", "ReplicaSet", format!("{}-{}", key.name, pod.hash)))
        }
        ObjectKind::DaemonSet => (Some(REVISION_HASH), ("apps/v1", "DaemonSet", key.name.to_string())),
        kind => (None, (kind.api_version(), kind.as_str(), key.name.to_string())),
    };
    let added: BTreeMap<&str, String> = label.into_iter().map(|label| (label, pod.hash.clone())).collect();
    let controller = (controller.0, controller.1, controller.2.as_str());
    let of = (&owner.origin, source, node_name);
    revision.template().pod(key, &pod.name, &added, controller, of).map(Arc::new)
}
