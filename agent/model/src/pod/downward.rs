//! The downward API: fields of a pod in its environment or in files.

use k8s_openapi::api::core::v1::{Container, ResourceFieldSelector};

use crate::pod::PodRecord;
use crate::pod::qos::{all_containers, limit, request};
use crate::pod::quantity::{Amount, parse};

/// The limits that a container without limits sees: the node's allocatable resources.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLimits {
    /// Processors.
    pub cpu: Amount,
    /// Bytes of memory.
    pub memory: Amount,
    /// Bytes of the disk of containers and emptyDirs.
    pub ephemeral_storage: Amount,
}

impl NodeLimits {
    /// The same for the environment of a pod's containers, where the pod's own limits come before the node's. As in
    /// kubelet, this does not apply to its volumes.
    pub fn of_pod(self, pod: &PodRecord) -> Self {
        let of_pod = |name: &str, of_node: Amount| match pod.spec().resources.as_ref().map(|of_pod| limit(of_pod, name))
        {
            None | Some(Amount::ZERO) => of_node,
            Some(of_pod) => of_pod,
        };
        Self { cpu: of_pod("cpu", self.cpu), memory: of_pod("memory", self.memory), ..self }
    }
}

/// A field of the pod's metadata that environment and files may use; `None` if `path` is not one.
pub fn metadata_field(pod: &PodRecord, path: &str) -> Option<String> {
    let metadata = &pod.pod.metadata;
    match path {
        "metadata.name" => return Some(pod.key.name().to_owned()),
        "metadata.namespace" => return Some(pod.key.namespace().to_owned()),
        "metadata.uid" => return Some(pod.uid.as_str().to_owned()),
        _ => {}
    }
    let (map, key) = path.strip_suffix("']")?.split_once("['")?;
    let values = match map {
        "metadata.labels" => metadata.labels.as_ref(),
        "metadata.annotations" => metadata.annotations.as_ref(),
        _ => return None,
    };
    Some(values.and_then(|values| values.get(key)).cloned().unwrap_or_default())
}

/// A request or limit of a container (`resourceFieldRef`). An absent limit is that of the node. Without a container
/// name in the selector, `reader` is used. `None` if the container or the resource does not exist.
pub fn resource_field(
    pod: &PodRecord,
    reader: Option<&Container>,
    selector: &ResourceFieldSelector,
    node: NodeLimits,
) -> Option<String> {
    let container = match selector.container_name.as_deref().filter(|name| !name.is_empty()) {
        Some(name) => all_containers(pod.spec()).find(|other| other.name == name)?,
        None => reader?,
    };
    let resources = container.resources.clone().unwrap_or_default();
    let (kind, name) = selector.resource.split_once('.')?;
    let amount = match kind {
        "requests" => request(&resources, name),
        "limits" => match (limit(&resources, name), name) {
            (Amount::ZERO, "cpu") => node.cpu,
            (Amount::ZERO, "memory") => node.memory,
            (Amount::ZERO, "ephemeral-storage") => node.ephemeral_storage,
            (limit, _) => limit,
        },
        _ => return None,
    };
    let divisor = match selector.divisor.as_ref().map(|divisor| divisor.0.as_str()) {
        None | Some("") => Amount::ZERO,
        Some(text) => parse(text).ok()?,
    };
    Some(amount.divided_by(divisor).to_string())
}
