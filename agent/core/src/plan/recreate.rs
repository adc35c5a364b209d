//! Edits that the manifests alone would let a pod take in place, and that are to run in a new pod: what they concern has ended,
//! or has processors for itself.

use std::fmt;

use super::{is_finished, wants_restart};
use crate::cpu_allocation::changes_exclusive;
use crate::state::PodState;
use limpet_model::pod::{PodDiff, PodRecord, Role};
use limpet_model::verdict::PodVerdict;

/// Why a pod is recreated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RecreationCause {
    /// Its containers have finished.
    Finished,
    /// The node has ended it, for that reason.
    Failed(String),
    /// This container has finished.
    ContainerFinished(String),
    /// Its containers are to have another number of exclusive processors.
    ExclusiveCpus,
}

impl fmt::Display for RecreationCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Finished => f.write_str("the pod has finished"),
            Self::Failed(reason) => write!(f, "the pod has failed: {reason}"),
            Self::ContainerFinished(name) => write!(f, "container {name} has finished"),
            Self::ExclusiveCpus => f.write_str("exclusive processors cannot change in place"),
        }
    }
}

/// Whether `pod` can become `next` without being terminated.
pub fn takes_in_place(pod: &PodState, next: &PodRecord) -> bool {
    pod.record.is_same_incarnation(next) && recreation_cause(pod, next).is_none()
}

/// Why a pod is recreated for `next`: image or resources of a container differ, and the pod has ended, or the container has
/// finished for good; the deadline differs that has ended the pod; or its exclusive processors differ, for which kubelet
/// recreates a pod of the node's own, too.
pub fn recreation_cause(pod: &PodState, next: &PodRecord) -> Option<RecreationCause> {
    // Pods of the apiserver are identified by their UID, so one that has ended stays ended, and ignores edits.
    if next.source.traits().is_stored {
        return None;
    }
    let over = match &pod.verdict {
        Some(verdict) if pod.is_failed() => Some(RecreationCause::Failed(verdict.reason.to_string())),
        _ => is_finished(pod).then_some(RecreationCause::Finished),
    };
    let diff = PodDiff::between(&pod.record, next);
    if let Some(over) = over {
        let is_answered = diff.touched().next().is_some() || changes_deadline_of_failed(pod, next);
        return is_answered.then_some(over);
    }
    let finished = diff.touched().find(|name| has_finished(pod, name));
    let exclusive = pod.static_cpus && changes_exclusive(pod.record.spec(), next.spec());
    finished
        .map(|name| RecreationCause::ContainerFinished(name.to_owned()))
        .or_else(|| exclusive.then_some(RecreationCause::ExclusiveCpus))
}

/// Whether the pod's deadline has ended it, and `next` has another one or none.
fn changes_deadline_of_failed(pod: &PodState, next: &PodRecord) -> bool {
    pod.verdict.as_ref().is_some_and(PodVerdict::is_deadline_exceeded)
        && pod.record.spec().active_deadline_seconds != next.spec().active_deadline_seconds
}

/// Whether a regular container has exited and is not restarted.
fn has_finished(pod: &PodState, name: &str) -> bool {
    let slot = pod.containers.iter().find(|slot| slot.name == name && slot.role == Role::Main);
    slot.is_some_and(|slot| {
        slot.instance.as_ref().is_some_and(|instance| !instance.is_running()) && !wants_restart(pod, slot)
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use limpet_model::source::SourceKind;
    use std::sync::Arc;

    use super::*;
    use crate::fixtures::{exit, instance, now, pod, ready, version};

    fn edited(pod: &PodState, field: &str) -> Arc<PodRecord> {
        let mut edited = pod.record.pod.clone();
        match field {
            "image" => edited.spec.as_mut().unwrap().containers[0].image = Some("app:2".into()),
            "labels" => edited.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into()),
            "deadline" => edited.spec.as_mut().unwrap().active_deadline_seconds = Some(9),
            _ => {}
        }
        version(edited)
    }

    fn exited(policy: &str, code: i32) -> PodState {
        let mut pod = ready(pod(policy, &[], &["a"]));
        let mut first = instance(&pod.containers[0], 0);
        first.end(exit(code), now());
        pod.containers[0].instance = Some(first);
        pod
    }

    #[test]
    fn an_image_recreates_a_pod_that_has_ended_and_a_deadline_one_that_it_has_ended() {
        let mut failed = exited("Always", 0);
        failed.fail(PodVerdict::deadline_exceeded());
        let mut evicted = exited("Always", 0);
        evicted.fail(PodVerdict::evicted(String::new()));
        let mut waiting = pod("Always", &[], &["a"]);
        waiting.verdict = Some(PodVerdict::waiting("OutOfpods", String::new()));
        let cases = [
            ("failed", failed, Some(RecreationCause::Failed("DeadlineExceeded".into()))),
            ("evicted", evicted, Some(RecreationCause::Failed("Evicted".into()))),
            ("waits", waiting, None),
            ("restarts", exited("Always", 0), None),
            ("finished", exited("Never", 0), Some(RecreationCause::Finished)),
            ("crashed", exited("OnFailure", 1), None),
        ];
        for (case, pod, over) in cases {
            assert_eq!(recreation_cause(&pod, &edited(&pod, "image")), over, "{case}");
            let of_api = PodRecord { source: SourceKind::Api, ..(*edited(&pod, "image")).clone() };
            assert_eq!(recreation_cause(&pod, &of_api), None, "{case}");
            for field in ["", "labels", "deadline"] {
                let is_recreated = (case, field) == ("failed", "deadline");
                assert_eq!(!takes_in_place(&pod, &edited(&pod, field)), is_recreated, "{case}: {field}");
            }
        }
    }

    #[test]
    fn other_exclusive_processors_recreate_a_pod_of_the_nodes_own() {
        let mut pod = exited("Always", 0);
        let with = |cpu: &str| {
            let mut edited = pod.record.pod.clone();
            let limits = serde_json::json!({ "cpu": cpu, "memory": "1Mi" });
            let resources = serde_json::json!({ "requests": limits, "limits": limits });
            edited.spec.as_mut().unwrap().containers[0].resources = Some(serde_json::from_value(resources).unwrap());
            version(edited)
        };
        let (first, two) = (with("1"), with("2"));
        pod.record = first;
        assert!(takes_in_place(&pod, &two), "processors are not exclusive here");
        pod.static_cpus = true;
        assert_eq!(recreation_cause(&pod, &two), Some(RecreationCause::ExclusiveCpus));
        let of_api = PodRecord { source: SourceKind::Api, ..(*two).clone() };
        assert_eq!(recreation_cause(&pod, &of_api), None);
    }
}
