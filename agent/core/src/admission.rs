//! Whether the node takes a pod: kubelet's predicates of resources and node selection, in kubelet's words, and which pods
//! end so that a critical one can start (`pkg/kubelet/lifecycle/predicate.go`, `pkg/kubelet/preemption`). Pure.
//!
//! kubelet refuses a pod for good. Here that holds for the apiserver's pods, whose controller makes another one; a pod of the
//! node's own sources waits and starts as soon as the reason is gone.

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::node_selector;
use limpet_model::pod::PodRecord;
use limpet_model::pod::qos::{QosClass, qos_class};
use limpet_model::pod::requests::Requests;
use limpet_model::source::SourceKind;
use limpet_model::verdict::PodVerdict;

use crate::eviction::rank::{is_critical, is_static, priority};

/// kubelet's reason for a pod that needs more of a resource than is left begins so; the resource's name follows.
pub const OUT_OF: &str = "OutOf";
/// kubelet's reason for a pod that names other nodes.
pub const NODE_AFFINITY: &str = "NodeAffinity";

/// kubelet's reason for a pod that cannot have what it needs, for a reason that no predicate knows.
pub const UNEXPECTED: &str = "UnexpectedAdmissionError";

/// Why the node does not take a pod now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// kubelet's reason.
    pub reason: String,
    /// kubelet's message, and what is in the way where that is known.
    pub message: String,
}

impl Refusal {
    /// What becomes of the pod: one of the apiserver's fails, any other waits.
    pub fn verdict(self, source: SourceKind) -> PodVerdict {
        let Self { reason, message } = self;
        let verdict = match source {
            SourceKind::Api => PodVerdict::rejected(OUT_OF, &message),
            _ => PodVerdict::waiting(OUT_OF, format!("{message}; it starts when that has changed")),
        };
        PodVerdict { reason: reason.into(), ..verdict }
    }
}

/// Whether the node's labels and name are those that the pod's `nodeSelector` and required node affinity ask for.
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

/// Whether the pod's requests fit into what the others leave of `allocatable`. What it does not ask for is never short.
pub fn fits(requested: &Requests, used: &Requests, allocatable: &Requests) -> Result<(), Refusal> {
    let missing = missing(requested, used, allocatable);
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

/// How much of each requested resource is not there.
fn missing(requested: &Requests, used: &Requests, allocatable: &Requests) -> Requests {
    let mut missing = used.clone().plus(requested).without(allocatable);
    for resource in missing.resources().filter(|resource| requested[*resource].is_zero()) {
        missing[resource] = requested[resource];
    }
    missing
}

/// Whether `one` may have `other` end in order to start. Pods of the node's own sources are not ended for one another.
fn preempts(one: &PodRecord, other: &PodRecord) -> bool {
    let critical = |pod: &PodRecord| is_static(pod) || is_critical(pod);
    other.source == SourceKind::Api && !critical(other) && critical(one)
}

/// The pods that end so that `pod` fits: as few as possible, those without guaranteed resources first. Empty where their end
/// would not be enough, or where nothing is short.
pub fn victims<'a>(
    pod: &PodRecord,
    others: impl Iterator<Item = &'a Arc<PodRecord>>,
    used: &Requests,
    allocatable: &Requests,
) -> Vec<Arc<PodRecord>> {
    let missing = missing(&Requests::of(pod.spec()), used, allocatable);
    let mut candidates: Vec<(Arc<PodRecord>, Requests)> = others
        .filter(|other| preempts(pod, other))
        .map(|other| (Arc::clone(other), Requests::of(other.spec())))
        .collect();
    // What comes last ends first.
    candidates.sort_by_cached_key(|(other, _)| {
        let class = match qos_class(other.spec()) {
            QosClass::Guaranteed => 0,
            QosClass::Burstable => 1,
            QosClass::BestEffort => 2,
        };
        (class, std::cmp::Reverse(priority(other)), other.key.clone())
    });
    // From the one that is to stay most: it is spared where the others alone are enough.
    let freed = |victims: &[(Arc<PodRecord>, Requests)]| {
        victims.iter().fold(Requests::default(), |sum, (_, requests)| sum.plus(requests))
    };
    if missing.is_zero() || !missing.clone().without(&freed(&candidates)).is_zero() {
        return Vec::new();
    }
    let mut at = 0;
    while at < candidates.len() {
        let spared = candidates.remove(at);
        if !missing.clone().without(&freed(&candidates)).is_zero() {
            candidates.insert(at, spared);
            at += 1;
        }
    }
    candidates.into_iter().map(|(other, _)| other).collect()
}

/// Whether there are enough devices of the extended resource `name`: `offered` healthy ones, `None` where no plugin has
/// registered it, of which others have `used`.
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
#[path = "admission_tests.rs"]
mod tests;
