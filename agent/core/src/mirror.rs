//! Mirror pods: how the apiserver should show the pods that other sources define, and the next step towards that.
//! Pure.
//!
//! It is level triggered: [`step`] compares what is wanted with what the apiserver has and with what it has
//! acknowledged. So nothing is queued without a connection, and one comparison later finds all differences. A step
//! never concerns the pod itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use crate::reported_pod::{ReportStep, key_of};
use crate::status::observed::ObservedPod;
use crate::stored_status::{Reported, StoredStatus, compare_status};
use limpet_model::pod::identity::{HASH_ANNOTATION, SOURCE_ANNOTATION};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;

/// kubelet's annotation that makes a Pod a mirror: the UID of the pod that it shows, by which events refer to the pod
/// as well.
pub const MIRROR_ANNOTATION: &str = "kubernetes.io/config.mirror";
/// kubelet's annotation with the time at which the pod was first seen.
const SEEN_ANNOTATION: &str = "kubernetes.io/config.seen";
/// The pod that a mirror should show.
#[derive(Debug, Clone)]
pub struct DesiredMirror {
    /// The version that the pod's worker has, or else the desired one.
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

    /// The labels and annotations by which an edit is detected.
    fn marks(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let metadata = &self.record.pod.metadata;
        let mut annotations = metadata.annotations.clone().unwrap_or_default();
        let annotations_of_mirror = [
            (MIRROR_ANNOTATION, self.record.uid.to_string()),
            // It is a hash of the content, like kubelet's: an edit in place keeps the UID, and `kubeadm upgrade`
            // waits for another hash.
            (HASH_ANNOTATION, self.record.fingerprint.to_string()),
            (SOURCE_ANNOTATION, self.record.source.to_string()),
        ];
        annotations.extend(annotations_of_mirror.map(|(name, value)| (name.to_owned(), value)));
        // A manifest may have its own.
        annotations.remove(SEEN_ANNOTATION);
        (metadata.labels.clone().unwrap_or_default(), annotations)
    }
}

/// The Node object, which owns the mirrors of its pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub uid: String,
    /// Whether its deletion was requested. As in kubelet, it then gets no new mirrors, because they would be deleted
    /// with it.
    pub deleting: bool,
}

/// A mirror pod as the apiserver has it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mirror {
    /// The UID that the apiserver gave it.
    pub uid: String,
    /// The number of its spec's version, which an edit raises.
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
    /// Reads a Pod of the apiserver, with its key; `None` if it is not a mirror.
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

    /// What is wrong with it as a picture of the pod, if anything. Labels and annotations of other clients are
    /// ignored. What admission changed when it was created (`admitted`) counts as right.
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

/// What the apiserver has acknowledged about one pod and its mirror.
#[derive(Debug, Clone, Default)]
pub struct Acknowledged {
    /// The mirror as it was admitted when this agent created it.
    pub admitted: Option<Mirror>,
    /// The status that was last reported.
    pub status: Option<Reported>,
    /// The UID of the mirror that was last deleted. Later events of a watch about it are outdated.
    pub deleted: Option<String>,
}

/// The next step for one pod, if there is one. `current` is the mirror of its key. `all_sources_read`: every source has
/// been read, so that a pod that none of them has is gone.
pub fn step(
    wanted: Option<&DesiredMirror>,
    current: Option<&Mirror>,
    known: &Acknowledged,
    owner: &Owner,
    all_sources_read: bool,
) -> Option<ReportStep> {
    let Some(wanted) = wanted else {
        return current.filter(|_| all_sources_read).map(|mirror| ReportStep::Delete { uid: mirror.uid.clone() });
    };
    let Some(mirror) = current else {
        return (!wanted.is_ending() && !owner.deleting).then_some(ReportStep::Create);
    };
    let uid = mirror.uid.clone();
    if !wanted.is_ending()
        && let Some(why) = mirror.fault(wanted, known.admitted.as_ref(), &owner.uid)
    {
        return Some(ReportStep::Replace { uid, why });
    }
    let observed = wanted.observed.as_ref()?;
    ReportStep::for_status(compare_status(known.status.as_ref(), &uid, mirror.status, observed), uid)
}

/// The mirror pod to create. `seen` is the time since when the pod is known, as text.
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
        // The apiserver refuses a mirror with what `limpet debug` has added.
        "spec": Arc::clone(record).without_added().spec(),
    })
}

#[cfg(test)]
mod tests;
