//! Whether the node admits a pod: kubelet's predicates of resources and node selection, in kubelet's words, the node's
//! shortages and its shutdown, and what the host lacks. Also which pods end so that a critical one can start, and which
//! resizes wait (`pkg/kubelet/lifecycle/predicate.go`, `pkg/kubelet/preemption`, `pkg/kubelet/allocation`). Pure.
//!
//! [`crate::allocation`] asks, with what the other pods have, and makes the verdict.
//!
//! kubelet refuses a pod for good. Here that holds only for the apiserver's pods, whose controller makes another one.
//! A pod of the node's own sources waits, and starts as soon as the reason is gone.

mod host;
mod preemption;
mod shortage;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Container, Taint};
use limpet_model::node_selector;
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::requests::Requests;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;
use serde_json::{Value, json};

use crate::priority::priority;
use crate::taint::tolerates;

pub use host::HostLack;
pub use preemption::{Candidate, may_preempt, preempts, victims};
pub use shortage::{refuse_start, waits};

/// The prefix of kubelet's reason for a pod that needs more of a resource than is left; the resource's name follows.
pub const OUT_OF: &str = "OutOf";
/// kubelet's reason for a pod beyond `maxPods`.
pub const OUT_OF_PODS: &str = "OutOfpods";
/// kubelet's reason for a pod that selects other nodes.
pub const NODE_AFFINITY: &str = "NodeAffinity";

/// kubelet's reason for a pod that does not tolerate a taint of the node.
pub const TAINT_TOLERATION: &str = "TaintToleration";
const NO_EXECUTE: &str = "NoExecute";

/// kubelet's reason for a pod with a sysctl that is not allowed.
pub const SYSCTL_FORBIDDEN: &str = "SysctlForbidden";
/// kubelet's reason for a pod whose label names another operating system.
pub const OTHER_OS_LABEL: &str = "PodOSSelectorNodeLabelDoesNotMatch";
/// kubelet's reason for a pod whose field names another operating system.
pub const OTHER_OS: &str = "PodOSNotSupported";
/// kubelet's reason for a pod that cannot have what it needs, for a reason outside the predicates.
pub const UNEXPECTED: &str = "UnexpectedAdmissionError";

/// Why the node does not admit a pod now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// kubelet's reason.
    pub reason: String,
    /// kubelet's message, and what is in the way if that is known.
    pub message: String,
}

impl Refusal {
    /// What happens to the pod: one of the apiserver's fails, any other waits.
    pub(crate) fn verdict(self, source: SourceKind) -> PodVerdict {
        if source.traits().is_replaced { self.for_good() } else { self.waiting() }
    }

    /// The pod waits, whatever its source.
    pub(crate) fn waiting(self) -> PodVerdict {
        let message = format!("{}; it starts when that has changed", self.message);
        PodVerdict::waiting(self.reason, message)
    }

    /// The pod fails, whatever its source, because nothing that changes on the node would help.
    pub(crate) fn for_good(self) -> PodVerdict {
        PodVerdict::rejected(self.reason, &self.message)
    }
}

/// Labels and taints of the Node that admission checks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Selectable {
    pub labels: BTreeMap<String, String>,
    pub taints: Vec<Taint>,
}

/// Whether the pod tolerates the taints with the effect `NoExecute`, which a pod must tolerate to run at all. The
/// node's own pods tolerate all, like kubelet's static pods, because a cluster taints a node that it cannot reach.
pub fn tolerates_node(record: &PodRecord, taints: &[Taint]) -> Result<(), Refusal> {
    let tolerations = || record.spec().tolerations.iter().flatten();
    let mut no_execute = taints.iter().filter(|taint| taint.effect == NO_EXECUTE);
    if !record.source.traits().is_scheduled
        || no_execute.all(|taint| tolerations().any(|toleration| tolerates(toleration, taint)))
    {
        return Ok(());
    }
    let message = "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate";
    Err(Refusal { reason: TAINT_TOLERATION.to_owned(), message: message.to_owned() })
}

/// Whether the node's labels and name match the pod's `nodeSelector` and required node affinity.
pub fn selects_node(record: &PodRecord, node_name: &str, labels: &BTreeMap<String, String>) -> Result<(), Refusal> {
    let spec = record.spec();
    let selected = spec.node_selector.iter().flatten().all(|(key, value)| labels.get(key) == Some(value));
    let required = spec.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = required.and_then(|nodes| nodes.required_during_scheduling_ignored_during_execution.as_ref());
    if selected && required.is_none_or(|selector| node_selector::matches(selector, node_name, labels)) {
        return Ok(());
    }
    let message = "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector";
    Err(Refusal { reason: NODE_AFFINITY.to_owned(), message: message.to_owned() })
}

/// Whether the pod's requests fit into what the others leave of `allocatable`. A resource that the pod does not
/// request is never short.
pub fn fits(requested: &Requests, used: &Requests, allocatable: &Requests) -> Result<(), Refusal> {
    let missing = preemption::missing(requested, used, allocatable);
    let Some(resource) = missing.resources().find(|resource| !missing[*resource].is_zero()) else {
        return Ok(());
    };
    let number = |requests: &Requests| resource.number(requests[resource]);
    let name = resource.name();
    let message = format!(
        "Node didn't have enough resource: {name}, requested: {}, used: {}, capacity: {}",
        number(requested),
        number(used),
        number(allocatable)
    );
    Err(Refusal { reason: resource.out_of(), message })
}

/// A resize that waits for room.
#[derive(Debug, Clone)]
pub struct PendingResize {
    /// The version with the resources that do not fit.
    pub desired: Arc<PodRecord>,
    /// Its place in the order in which resizes began to wait; the lowest is first.
    pub since: u64,
}

impl PendingResize {
    /// kubelet's order (`sortPendingResizes`): by priority, then by QoS class, then by the time spent waiting.
    fn rank(&self) -> (Reverse<i32>, bool, u64) {
        let guaranteed = self.desired.qos_class == QosClass::Guaranteed;
        (Reverse(priority(&self.desired)), !guaranteed, self.since)
    }
}

/// kubelet's message of a resize that is refused (`PodResizePendingMsg`).
pub fn pending_message(desired: &PodRecord, refusal: &Refusal) -> String {
    let spec = desired.spec();
    let list = |containers: &[Container]| -> Vec<Value> {
        let document = |container: &Container| json!({ "name": container.name, "resources": container.resources.clone().unwrap_or_default() });
        containers.iter().map(document).collect()
    };
    // The parts are in kubelet's order, which a map would not keep.
    let mut parts = Vec::new();
    if let Some(inits) = spec.init_containers.as_ref().filter(|list| !list.is_empty()) {
        parts.push(format!("\"initContainers\":{}", Value::from(list(inits))));
    }
    parts.push(format!("\"containers\":{}", Value::from(list(&spec.containers))));
    // A manifest's pod has no generation.
    parts.push(format!("\"generation\":{}", desired.pod.metadata.generation.unwrap_or(0)));
    parts.push(format!("\"error\":{}", Value::from(refusal.message.as_str())));
    format!("Pod resize {}: {{{}}}", refusal.reason, parts.join(","))
}

/// Whether the resize of the pod `key` fits into what the pods leave of `allocatable`, and what the pending resizes
/// before it leave, if they fit themselves. `assigned` is what each pod has now.
pub fn resize_fits(
    key: &PodKey,
    pending: &BTreeMap<PodKey, PendingResize>,
    mut assigned: BTreeMap<PodKey, Requests>,
    allocatable: &Requests,
) -> Result<(), Refusal> {
    let mut ranked: Vec<(&PodKey, &PendingResize)> = pending.iter().collect();
    ranked.sort_by_cached_key(|(_, resize)| resize.rank());
    for (resizing, resize) in ranked {
        let requested = Requests::from_spec(resize.desired.spec());
        let result = fits(&requested, &sum(assigned.iter().filter(|(other, _)| *other != resizing)), allocatable);
        if resizing == key {
            return result;
        }
        if result.is_ok() {
            assigned.insert(resizing.clone(), requested);
        }
    }
    Ok(())
}

fn sum<'a>(assigned: impl Iterator<Item = (&'a PodKey, &'a Requests)>) -> Requests {
    assigned.fold(Requests::default(), |sum, (_, requests)| sum.plus(requests))
}

/// Whether there are enough devices of the extended resource `name`. `offered` is the number of healthy ones, or
/// `None` if no plugin has registered the resource; `used` is how many of them other pods have.
pub fn has_devices(name: &str, wanted: usize, used: usize, offered: Option<usize>) -> Result<(), Refusal> {
    let Some(offered) = offered else {
        let message = format!(
            "Allocate failed due to can't allocate unregistered device {name}, which is unexpected: no device plugin has \
             registered it, and devices of the LimpetConfiguration does not name it"
        );
        return Err(Refusal { reason: UNEXPECTED.to_owned(), message });
    };
    if wanted <= offered.saturating_sub(used) {
        return Ok(());
    }
    let message =
        format!("Node didn't have enough resource: {name}, requested: {wanted}, used: {used}, capacity: {offered}");
    Err(Refusal { reason: format!("{OUT_OF}{name}"), message })
}

#[cfg(test)]
mod tests;
