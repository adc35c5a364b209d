//! Which pod ends when the node is short of something: kubelet's ranking for each signal, and its messages.
//!
//! kubelet never ends the pods that it calls static (of a manifest file or a URL). Here such a pod ends after all
//! others, if its end alone is enough: what the kernel would do otherwise is worse, and the pod runs again once the
//! shortage is over. If something else has used up the node, ending the pods of manifests would not help.

use std::cmp::Reverse;
use std::fmt::Write as _;
use std::sync::Arc;

use super::{Observation, Signal, Threshold};
use crate::priority::{is_critical, priority};
use crate::storage::in_binary;
use limpet_model::pod::PodRecord;
use limpet_model::pod::totals::pod_request;

/// A pod that runs, and how much it uses of what is short.
#[derive(Debug, Clone)]
pub struct Candidate {
    pub record: Arc<PodRecord>,
    /// How much it uses in total.
    pub used: u64,
    /// How much each of its containers uses, by name; empty if kubelet leaves it out.
    pub containers: Vec<(String, u64)>,
}

/// Whether the pod comes from a manifest of this node, that is a file or a URL: kubelet's static pods.
pub fn is_static(record: &PodRecord) -> bool {
    record.source.traits().is_static
}

/// A pod that uses less than this does not end, because its end would change nothing.
fn worth(signal: Signal) -> u64 {
    match signal {
        Signal::MemoryAvailable
        | Signal::AllocatableMemoryAvailable
        | Signal::NodefsAvailable
        | Signal::ImagefsAvailable => 1 << 20,
        Signal::NodefsInodesFree | Signal::ImagefsInodesFree => 100,
        Signal::PidAvailable => 1,
    }
}

/// The pods that may end for the signal, in order: pods that are not from a manifest, those above their request, the
/// lowest priority, those that are furthest above their request.
///
/// `missing` is how much more must become available. A manifest's pod that uses less than that does not end.
pub fn order(signal: Signal, missing: u64, mut pods: Vec<Candidate>) -> Vec<Candidate> {
    let suffices = |pod: &Candidate| !is_static(&pod.record) || pod.used >= missing;
    pods.retain(|pod| !is_critical(&pod.record) && pod.used >= worth(signal) && suffices(pod));
    pods.sort_by_cached_key(|pod| {
        let requested = match signal.resource() {
            resource @ ("memory" | "ephemeral-storage") => pod_request(pod.record.spec(), resource).units(),
            _ => 0,
        };
        let above = i128::from(pod.used) - i128::from(requested);
        // Process ids cannot be requested.
        let exceeds = above > 0 || signal == Signal::PidAvailable;
        (is_static(&pod.record), !exceeds, priority(&pod.record), Reverse(above), pod.record.key.clone())
    });
    pods
}

/// kubelet's message about the pod's end.
pub fn message(threshold: &Threshold, seen: Observation, pod: &Candidate) -> String {
    let resource = threshold.signal.resource();
    let (quantity, available) = (in_binary(threshold.value.resolve(seen.capacity)), in_binary(seen.available));
    let mut text =
        format!("The node was low on resource: {resource}. Threshold quantity: {quantity}, available: {available}. ");
    for (name, used) in &pod.containers {
        let container = pod.record.container(name);
        let requests = container.and_then(|container| container.resources.as_ref()?.requests.as_ref());
        let request = requests.and_then(|requests| requests.get(resource));
        let amount = request.and_then(|request| limpet_model::pod::quantity::bytes(request).ok()).unwrap_or_default();
        if i128::from(*used) > i128::from(amount) {
            let request = request.map_or("0", |request| &request.0);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "Container {name} was using {}, request is {request}, has larger consumption of {resource}. ",
                in_binary(*used)
            );
        }
    }
    text
}
