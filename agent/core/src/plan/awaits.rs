//! What a pod or a container waits for from outside the pod, and the message about it.

use std::collections::BTreeSet;
use std::fmt;

use k8s_openapi::api::core::v1::Container;

use super::containers_to_run;
use crate::node_state::NodeState;
use crate::state::{CONFIG_ERROR, ContainerSlot, PodState, SandboxState};
use limpet_model::object::{ObjectKey, in_environment, of_sandbox, pull_secrets};
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

/// What does not exist yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// An address of the node.
    Address {
        /// The environment variable that refers to it.
        variable: String,
        /// The field it names.
        field: String,
    },
    /// A ConfigMap or Secret that its source has not reported on.
    Object {
        key: ObjectKey,
        /// The pod's source.
        source: SourceKind,
    },
    /// The container whose processes an ephemeral container should see.
    Target { container: String },
}

impl Awaited {
    /// kubelet's reason for the container's waiting state.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Address { .. } | Self::Target { .. } => CONFIG_ERROR,
            Self::Object { .. } => "ContainerCreating",
        }
    }
}

impl fmt::Display for Awaited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address { variable, field } => {
                write!(f, "waits for the node to have an address: env {variable} refers to {field}")
            }
            Self::Target { container } => {
                write!(f, "waits for container {container} to run: targetContainerName refers to it")
            }
            Self::Object { key, source } => write!(f, "waits for {key}: the source {source} has not reported it yet"),
        }
    }
}

/// What the sandbox waits for: the objects in the pod's volumes, and its runtime class.
pub fn by_sandbox(pod: &PodState) -> Option<Awaited> {
    object(pod, of_sandbox)
}

/// What the images wait for: the Secrets with which they are pulled.
pub fn by_images(pod: &PodState) -> Option<Awaited> {
    object(pod, pull_secrets)
}

/// What the start of a container waits for: the objects and addresses in its environment, an ephemeral container's target.
pub fn by_container(pod: &PodState, slot: &ContainerSlot, node: NodeState) -> Option<Awaited> {
    let container = pod.container_spec(&slot.name)?;
    object(pod, |record| in_environment(record, container))
        .or_else(|| address(pod, container, node))
        .or_else(|| target(pod, slot))
}

/// The containers that should start now but wait for an address.
pub fn addresses(pod: &PodState, node: NodeState) -> Vec<(&ContainerSlot, Awaited)> {
    if pod.ending.is_some() || !node.runtime_ready || !matches!(pod.sandbox, SandboxState::Ready(_)) {
        return Vec::new();
    }
    let slots =
        containers_to_run(pod).into_iter().map(|index| &pod.containers[index]).filter(|slot| !slot.is_running());
    slots.filter_map(|slot| Some((slot, address(pod, pod.container_spec(&slot.name)?, node)?))).collect()
}

/// The first of the pod's objects selected by `references` that is not known yet.
fn object(pod: &PodState, references: impl FnOnce(&PodRecord) -> BTreeSet<ObjectKey>) -> Option<Awaited> {
    if !pod.objects.has_unknown() {
        return None;
    }
    let key = pod.objects.first_unknown(references(&pod.record))?;
    Some(Awaited::Object { key, source: pod.record.source })
}

/// The target of an ephemeral container, if it does not run.
fn target(pod: &PodState, slot: &ContainerSlot) -> Option<Awaited> {
    let target = pod.target_of(slot)?;
    let runs = pod.containers.iter().any(|other| other.name == target && other.is_running());
    (!runs).then(|| Awaited::Target { container: target.to_owned() })
}

/// The first variable that refers to an address of a node without one. With `hostNetwork`, the pod's addresses are
/// the node's.
fn address(pod: &PodState, container: &Container, node: NodeState) -> Option<Awaited> {
    if !node.network.addresses.is_empty() {
        return None;
    }
    let fields = container.env.iter().flatten().filter_map(|variable| {
        let field = variable.value_from.as_ref()?.field_ref.as_ref()?;
        Some((&variable.name, &field.field_path))
    });
    let of_node = |field: &str| match field {
        "status.hostIP" | "status.hostIPs" => true,
        "status.podIP" | "status.podIPs" => pod.record.host_network(),
        _ => false,
    };
    let mut awaiting = fields.filter(|(_, field)| of_node(field));
    awaiting.next().map(|(variable, field)| Awaited::Address { variable: variable.clone(), field: field.clone() })
}
