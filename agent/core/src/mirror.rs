//! Mirror pods: what the apiserver is to show of the pods that other sources define, and the next step towards it. Pure.
//!
//! Level triggered: [`step`] compares what is wanted with what the apiserver has and with what it has acknowledged. So
//! nothing is queued without a connection, and one comparison later finds all differences. A step never
//! concerns the pod itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::{Map, Value, json};

use crate::jitter;
use crate::status::observed::ObservedPod;
use crate::stored_status::{Reported, StatusComparison, StoredStatus, compare_status};
use limpet_model::pod::identity::{HASH_ANNOTATION, SOURCE_ANNOTATION};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;

/// kubelet's annotation that makes a Pod a mirror: the UID of the pod that it shows, by which events refer to it as well.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// kubelet's annotation with the time at which the pod was first seen.
const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
/// Conditions that a pod has at times: those that are gone must be removed by name.
const PASSING_CONDITIONS: [&str; 3] = ["PodResizePending", "PodResizeInProgress", "DisruptionTarget"];
/// Those of them that only the node sets. Others set `DisruptionTarget` on the apiserver's own pods.
const RESIZE_CONDITIONS: [&str; 2] = ["PodResizePending", "PodResizeInProgress"];

/// The pod that its mirror shows.
#[derive(Debug, Clone)]
pub struct DesiredMirror {
    /// The version of the pod that its worker has, or else the desired one.
    pub record: Arc<PodRecord>,
    /// What its worker reports; `None` before there is one.
    pub observed: Option<Arc<ObservedPod>>,
}

impl DesiredMirror {
    /// A pod as its worker reports it.
    pub fn observed(pod: &Arc<ObservedPod>) -> Self {
        Self { record: Arc::clone(&pod.record), observed: Some(Arc::clone(pod)) }
    }

    /// A pod that has no worker yet.
    pub fn desired(record: &Arc<PodRecord>) -> Self {
        Self { record: Arc::clone(record), observed: None }
    }

    fn is_ending(&self) -> bool {
        self.observed.as_ref().is_some_and(|pod| pod.terminating_since.is_some())
    }

    /// The labels and annotations by which an edit is found.
    fn marks(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let metadata = &self.record.pod.metadata;
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        let own = [
            (MIRROR_ANNOTATION, self.record.uid.to_string()),
            // Of the content, as kubelet's: an edit in place keeps the UID, and `kubeadm upgrade` waits for another hash.
            (HASH_ANNOTATION, self.record.fingerprint.to_string()),
            (SOURCE_ANNOTATION, self.record.source.to_string()),
        ];
        annotations.extend(own.map(|(name, value)| (name.to_owned(), value)));
        // A manifest may have its own.
        annotations.remove(SEEN_ANNOTATION);
        (metadata.labels.clone().unwrap_or_default(), annotations)
    }
}

/// The Node object, which owns the mirrors of its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub uid: String,
    /// Whether its deletion was requested. It gets no new mirrors, as under kubelet: they would go with it.
    pub deleting: bool,
}

/// A mirror pod as the apiserver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirror {
    /// The UID that the apiserver gave it.
    pub uid: String,
    /// The number of its spec's version; an edit raises it.
    pub generation: Option<i64>,
    /// Whether its deletion was requested.
    pub deleting: bool,
    /// The UID of the Node object that owns it.
    owner: String,
    /// The status that it shows.
    pub status: StoredStatus,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

impl Mirror {
    /// A Pod of the apiserver, with its key; `None` when it is not a mirror.
    pub fn read(pod: &Value) -> Option<(PodKey, Self)> {
        let metadata = &pod["metadata"];
        let texts = |field: &str| -> BTreeMap<String, String> {
            let map = metadata[field].as_object().into_iter().flatten();
            map.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned()))).collect()
        };
        let annotations = texts("annotations");
        annotations.get(MIRROR_ANNOTATION)?;
        let mirror = Self {
            uid: metadata["uid"].as_str()?.to_owned(),
            generation: metadata["generation"].as_i64(),
            deleting: metadata["deletionTimestamp"].is_string(),
            status: StoredStatus::of_pod(pod),
            owner: metadata["ownerReferences"][0]["uid"].as_str().unwrap_or_default().to_owned(),
            labels: texts("labels"),
            annotations,
        };
        Some((key_of(pod)?, mirror))
    }

    /// The source of the pod it shows.
    pub fn source(&self) -> Option<SourceKind> {
        self.annotations.get(SOURCE_ANNOTATION).and_then(|name| SourceKind::from_name(name))
    }

    /// What is wrong with it as a picture of the pod, if anything is. Labels and annotations of others are left alone. What
    /// admission made of ours when it was made counts as right: `admitted`.
    fn fault(&self, wanted: &DesiredMirror, admitted: Option<&Self>, node_uid: &str) -> Option<&'static str> {
        let (labels, annotations) = wanted.marks();
        let admitted = admitted.filter(|admitted| admitted.uid == self.uid);
        let kept = |ours: &BTreeMap<String, String>,
                    now: &BTreeMap<String, String>,
                    then: Option<&BTreeMap<String, String>>| {
            ours.iter().all(|(name, value)| match then {
                Some(then) => now.get(name) == then.get(name),
                None => now.get(name) == Some(value),
            })
        };
        let of_pod = [MIRROR_ANNOTATION, HASH_ANNOTATION]
            .iter()
            .all(|name| self.annotations.get(*name) == annotations.get(*name));
        if self.deleting {
            return Some("its deletion was requested");
        }
        if !of_pod {
            return Some("it shows another version of the pod");
        }
        if self.owner != node_uid {
            return Some("it belongs to another Node object");
        }
        if !kept(&labels, &self.labels, admitted.map(|admitted| &admitted.labels))
            || !kept(&annotations, &self.annotations, admitted.map(|admitted| &admitted.annotations))
        {
            return Some("its labels or annotations were edited");
        }
        let first = admitted.map_or(1, |admitted| admitted.generation.unwrap_or(1));
        (self.generation.unwrap_or(first) != first).then_some("its spec was edited")
    }
}

/// The key of a Pod of the apiserver's; `None`: its names are none.
pub fn key_of(pod: &Value) -> Option<PodKey> {
    let metadata = &pod["metadata"];
    PodKey::parse(metadata["namespace"].as_str()?, metadata["name"].as_str()?).ok()
}

/// What the apiserver has acknowledged about one pod.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    /// The mirror as it was admitted when this agent made it.
    pub admitted: Option<Mirror>,
    /// The status that was reported last.
    pub status: Option<Reported>,
    /// The UID of the mirror that was deleted last: later events of a watch about it are outdated.
    pub deleted: Option<String>,
}

/// The next thing to do about one pod's mirror.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// It does not exist: create it.
    Create,
    /// It is not what it should be: delete it at once, this very one, and make another.
    Replace {
        uid: String,
        /// Why, for people.
        why: &'static str,
    },
    /// Its pod is gone: delete it at once.
    Delete { uid: String },
    /// Its status is not the newest.
    Report { uid: String },
    /// Somebody else has written over its status.
    Correct { uid: String },
}

impl Step {
    /// The step for the status of the Pod with that UID.
    pub fn for_status(comparison: StatusComparison, uid: String) -> Option<Self> {
        match comparison {
            StatusComparison::Newest => None,
            StatusComparison::Outdated => Some(Self::Report { uid }),
            StatusComparison::Overwritten => Some(Self::Correct { uid }),
        }
    }
}

/// The next step for one pod, if there is one. `found`: the mirror of its key. `all_sources_read`: every source has
/// been read, so that a pod that is in none of them is gone.
pub fn step(
    wanted: Option<&DesiredMirror>,
    found: Option<&Mirror>,
    known: &Acknowledged,
    owner: &Owner,
    all_sources_read: bool,
) -> Option<Step> {
    let Some(wanted) = wanted else {
        return found.filter(|_| all_sources_read).map(|mirror| Step::Delete { uid: mirror.uid.clone() });
    };
    let Some(mirror) = found else {
        return (!wanted.is_ending() && !owner.deleting).then_some(Step::Create);
    };
    let uid = mirror.uid.clone();
    if !wanted.is_ending()
        && let Some(why) = mirror.fault(wanted, known.admitted.as_ref(), &owner.uid)
    {
        return Some(Step::Replace { uid, why });
    }
    let observed = wanted.observed.as_ref()?;
    Step::for_status(compare_status(known.status.as_ref(), &uid, mirror.status, observed), uid)
}

/// The mirror pod to create. `seen`: since when the pod is known, as text.
pub fn document(wanted: &DesiredMirror, node_name: &str, node_uid: &str, seen: &str) -> Value {
    let record = &wanted.record;
    let (labels, mut annotations) = wanted.marks();
    annotations.insert(SEEN_ANNOTATION.to_owned(), seen.to_owned());
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": record.key.name(),
            "namespace": record.key.namespace(),
            "labels": labels,
            "annotations": annotations,
            "ownerReferences": [
                { "apiVersion": "v1", "kind": "Node", "name": node_name, "uid": node_uid, "controller": true },
            ],
        },
        // The apiserver takes no mirror with what `limpet debug` has added.
        "spec": Arc::clone(record).without_added().spec(),
    })
}

/// The strategic merge patch that gives the Pod of that UID the pod's status; that of another is refused.
pub fn status_patch(pod: &ObservedPod, uid: &str, generation: Option<i64>) -> Value {
    let is_stored = pod.record.source.traits().is_stored;
    let own: &[&str] = if is_stored { &RESIZE_CONDITIONS } else { &PASSING_CONDITIONS };
    // A pod of a manifest has no generation, so its mirror has no observed one, as with kubelet.
    let generation = generation.filter(|_| is_stored);
    let mut shown = pod.status_with_resources();
    if let Some(ephemeral) = shown.ephemeral_container_statuses.take() {
        // Of those that the apiserver's Pod has.
        let authored = pod.record.authored_ephemeral();
        let known: Vec<_> = ephemeral.into_iter().filter(|one| authored.contains(&one.name)).collect();
        shown.ephemeral_container_statuses = (!known.is_empty()).then_some(known);
    }
    json!({ "metadata": { "uid": uid }, "status": status(&shown, generation, own) })
}

/// Every field the node owns, also those that are empty now. Conditions of others stay.
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
    // Maps are merged: cpu and memory are what a pod may have had and has no more.
    let amounts = |list: &Option<BTreeMap<String, Quantity>>| {
        let mut all = json!({ "cpu": null, "memory": null });
        list.iter().flatten().for_each(|(name, amount)| all[name] = json!(amount));
        all
    };
    let resources = status.resources.as_ref();
    let resources = resources.map(|of| json!({ "limits": amounts(&of.limits), "requests": amounts(&of.requests) }));
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
    let gone = passing.iter().filter(|name| all.iter().all(|one| one["type"] != **name));
    let gone: Vec<Value> = gone.map(|name| json!({ "$patch": "delete", "type": name })).collect();
    all.extend(gone);
    patch.insert("conditions".to_owned(), Value::Array(all));
    Value::Object(patch)
}

/// The pause after the `failures`th refusal in a row by the server's rules: only a change of them helps, or of the
/// manifest, which ends the pause.
pub fn refusal_pause(failures: u32, dice: u64) -> Duration {
    const INITIAL_PAUSE: Duration = Duration::from_secs(5);
    const MAX_PAUSE: Duration = Duration::from_secs(300);
    let doubled = INITIAL_PAUSE.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(MAX_PAUSE);
    jitter::around(doubled, 100, dice)
}

/// The pause before a missing namespace is looked up again: short at first, when it is probably about to be created, and
/// longer the longer it is missing. For ten minutes within 2 s, after an hour every 10.
pub fn namespace_pause(missing_for: Duration, dice: u64) -> Duration {
    const MIN_PAUSE: Duration = Duration::from_millis(1_600);
    const MAX_PAUSE: Duration = Duration::from_secs(10);
    let pause = (missing_for / 360).clamp(MIN_PAUSE, MAX_PAUSE);
    jitter::around(pause, 100, dice)
}

#[cfg(test)]
mod tests;
