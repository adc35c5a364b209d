//! What is reported to the apiserver about a pod, whoever defined it: the next step, and the status. Pure.
//!
//! [`crate::mirror`] decides about the pods of the node's own sources, [`crate::api_pod`] about the apiserver's.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

use crate::status::observed::ObservedPod;
use crate::stored_status::StatusComparison;
use limpet_model::pod::PodKey;

/// Conditions that a pod has only at times. Those that are gone must be removed by name.
const PASSING_CONDITIONS: [&str; 3] = ["PodResizePending", "PodResizeInProgress", "DisruptionTarget"];
/// The conditions among them that only the node sets. Others set `DisruptionTarget` on the apiserver's own pods.
const RESIZE_CONDITIONS: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// The next thing to do about a pod at the apiserver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReportStep {
    /// Create a mirror that does not exist.
    Create,
    /// Delete this mirror at once, because it is not what it should be; another one is created afterwards.
    Replace {
        uid: String,
        /// The reason, as text.
        why: &'static str,
    },
    /// Delete it at once, because its pod is gone here.
    Delete { uid: String },
    /// Report the status, because its status is not the newest.
    Report { uid: String },
    /// Correct the status, because another client has overwritten it.
    Correct { uid: String },
}

impl ReportStep {
    /// The step for the status of the Pod with that UID.
    pub fn for_status(comparison: StatusComparison, uid: String) -> Option<Self> {
        match comparison {
            StatusComparison::Newest => None,
            StatusComparison::Outdated => Some(Self::Report { uid }),
            StatusComparison::Overwritten => Some(Self::Correct { uid }),
        }
    }
}

/// The key of a Pod of the apiserver; `None` if its names are not valid.
pub fn key_of(pod: &Value) -> Option<PodKey> {
    let metadata = &pod["metadata"];
    PodKey::parse(metadata["namespace"].as_str()?, metadata["name"].as_str()?).ok()
}

/// The strategic merge patch that gives the Pod of that UID the pod's status. It is refused for another Pod.
pub fn status_patch(pod: &ObservedPod, uid: &str, generation: Option<i64>) -> Value {
    let is_stored = pod.record.source.traits().is_stored;
    let passing: &[&str] = if is_stored { &RESIZE_CONDITIONS } else { &PASSING_CONDITIONS };
    // A manifest's pod has no generation, so its mirror has no observed one, as in kubelet.
    let generation = generation.filter(|_| is_stored);
    let mut shown = pod.status_with_resources();
    if let Some(ephemeral) = shown.ephemeral_container_statuses.take() {
        // Only those that the apiserver's Pod has.
        let authored = pod.record.authored_ephemeral();
        let known: Vec<_> = ephemeral.into_iter().filter(|status| authored.contains(&status.name)).collect();
        shown.ephemeral_container_statuses = (!known.is_empty()).then_some(known);
    }
    json!({ "metadata": { "uid": uid }, "status": status(&shown, generation, passing) })
}

/// Every field that the node owns, including those that are empty now. Conditions of other clients stay.
fn status(status: &PodStatus, generation: Option<i64>, passing: &[&str]) -> Value {
    let mut patch = Map::new();
    let texts = [
        ("phase", &status.phase),
        ("reason", &status.reason),
        ("message", &status.message),
        ("hostIP", &status.host_ip),
        ("podIP", &status.pod_ip),
    ];
    patch.extend(texts.map(|(name, value)| (name.to_owned(), json!(value))));
    patch.insert("startTime".to_owned(), json!(status.start_time));
    patch.insert("observedGeneration".to_owned(), json!(generation));
    let lists = [
        ("initContainerStatuses", &status.init_container_statuses),
        ("containerStatuses", &status.container_statuses),
        ("ephemeralContainerStatuses", &status.ephemeral_container_statuses),
    ];
    patch.extend(lists.map(|(name, value)| (name.to_owned(), json!(value))));
    // Maps are merged, so cpu and memory are named in case the pod had them before and no longer does.
    let amounts = |list: &Option<BTreeMap<String, Quantity>>| {
        let mut all = json!({ "cpu": null, "memory": null });
        list.iter().flatten().for_each(|(name, amount)| all[name] = json!(amount));
        all
    };
    let resources = status.resources.as_ref();
    let resources =
        resources.map(|held| json!({ "limits": amounts(&held.limits), "requests": amounts(&held.requests) }));
    patch.insert("resources".to_owned(), json!(resources));
    let allocated = status.resources.as_ref().map(|_| amounts(&status.allocated_resources));
    patch.insert("allocatedResources".to_owned(), json!(allocated));
    // These two are merged by address, unless the patch contains a directive.
    let replaced = |list: Value| {
        let all = list.as_array().cloned().unwrap_or_default();
        Value::from_iter(std::iter::once(json!({ "$patch": "replace" })).chain(all))
    };
    patch.insert("hostIPs".to_owned(), replaced(json!(status.host_ips)));
    patch.insert("podIPs".to_owned(), replaced(json!(status.pod_ips)));
    let conditions = status.conditions.iter().flatten();
    let mut all: Vec<Value> = conditions
        .map(|condition| {
            let mut patch = json!({
                "type": condition.type_,
                "status": condition.status,
                "reason": condition.reason,
                "message": condition.message,
                "lastTransitionTime": condition.last_transition_time,
                "observedGeneration": generation,
            });
            if let Some(probed) = &condition.last_probe_time {
                patch["lastProbeTime"] = json!(probed);
            }
            patch
        })
        .collect();
    let gone = passing.iter().filter(|name| all.iter().all(|condition| condition["type"] != **name));
    let gone: Vec<Value> = gone.map(|name| json!({ "$patch": "delete", "type": name })).collect();
    all.extend(gone);
    patch.insert("conditions".to_owned(), Value::Array(all));
    Value::Object(patch)
}

#[cfg(test)]
mod tests;
