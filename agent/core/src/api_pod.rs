//! Pods of the apiserver: which status is reported, and when the node deletes one. Pure.
//!
//! Deletion takes two steps, as in kubelet: the apiserver marks the pod, the node ends it, and only when nothing of
//! it runs any more does the node delete it. So a successor never runs beside its predecessor.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::reported_pod::{self, ReportStep, key_of};
use crate::status::observed::ObservedPod;
use crate::stored_status::{Reported, StatusComparison, StoredStatus, compare_status};
use limpet_model::pod::{Fault, PodKey, is_terminal_phase};

/// The reason of a pod that is not run because it uses what this node does not support.
pub const UNSUPPORTED: &str = "UnsupportedPodSpec";

/// A Pod as the apiserver has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiPod {
    pub uid: String,
    /// The number of its spec's version.
    pub generation: Option<i64>,
    /// Whether its deletion was requested.
    pub deleting: bool,
    /// Whether it has ended for good, as reported by the node or another client. Its phase and the reason for it
    /// stay, and the node reports on its containers only until all of them have ended here.
    pub over: bool,
    /// The status it has there.
    status: StoredStatus,
    /// The refusal that was last reported.
    refusal: Option<String>,
}

impl ApiPod {
    /// Reads a Pod, with its key.
    pub fn read(pod: &Value) -> Option<(PodKey, Self)> {
        let (metadata, status) = (&pod["metadata"], &pod["status"]);
        let refused = status["reason"] == UNSUPPORTED;
        let api_pod = Self {
            uid: metadata["uid"].as_str()?.to_owned(),
            generation: metadata["generation"].as_i64(),
            deleting: metadata["deletionTimestamp"].is_string(),
            over: status["phase"].as_str().is_some_and(is_terminal_phase),
            status: StoredStatus::of_pod(pod),
            refusal: status["message"].as_str().filter(|_| refused).map(str::to_owned),
        };
        Some((key_of(pod)?, api_pod))
    }

    /// Records that the apiserver has accepted the refusal.
    pub fn refusal_reported(&mut self, faults: &[Fault]) {
        self.refusal = Some(message(faults));
    }
}

/// The node's own state of a pod of the apiserver.
#[derive(Debug, Clone, Copy)]
pub enum LocalPod<'a> {
    /// Its worker reports this, or reported it last before the pod was gone.
    Observed(&'a Arc<ObservedPod>, Ended),
    /// The node does not run it, for these reasons.
    Refused(&'a [Fault]),
    /// Nothing of it runs here or will: another pod has its place, or it ended when the node had another disk.
    Gone,
    /// It has no worker yet.
    Nothing,
}

/// Whether anything of a pod may still run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// All of it has ended and is removed.
    Yes,
    /// It has a worker.
    No,
}

/// The next step for one pod, if there is one. `acknowledged` is the status that the apiserver has accepted. The last
/// status is reported before the pod is deleted.
pub fn step(listed: &ApiPod, known: LocalPod<'_>, acknowledged: Option<&Reported>) -> Option<ReportStep> {
    let uid = listed.uid.clone();
    match known {
        LocalPod::Nothing => None,
        LocalPod::Gone => listed.deleting.then_some(ReportStep::Delete { uid }),
        LocalPod::Refused(_) if listed.deleting => Some(ReportStep::Delete { uid }),
        LocalPod::Refused(faults) => (listed.refusal != Some(message(faults))).then_some(ReportStep::Report { uid }),
        LocalPod::Observed(pod, ended) => {
            // A name may be reused at once.
            if *pod.record.uid.to_string() != *listed.uid {
                return None;
            }
            let comparison = compare_status(acknowledged, &uid, listed.status, pod);
            let is_reported = !listed.over || (listed.status.runs() && comparison == StatusComparison::Outdated);
            let of_status = is_reported.then(|| ReportStep::for_status(comparison, uid.clone())).flatten();
            of_status.or_else(|| (ended == Ended::Yes && listed.deleting).then_some(ReportStep::Delete { uid }))
        }
    }
}

/// The strategic merge patch that reports the pod's status. If the pod is `over` at the apiserver, phase and reason
/// stay, because what has ended never runs again, whoever has reported it.
pub fn status_patch(pod: &ObservedPod, uid: &str, generation: Option<i64>, over: bool) -> Value {
    let mut patch = reported_pod::status_patch(pod, uid, generation);
    if over && let Some(status) = patch["status"].as_object_mut() {
        ["phase", "reason", "message"].iter().for_each(|field| _ = status.remove(*field));
    }
    patch
}

/// The strategic merge patch for a refused pod. It stays pending, because a controller would replace a failed one by
/// another that is also refused, without end.
pub fn refusal_patch(faults: &[Fault], uid: &str, generation: Option<i64>) -> Value {
    let mut status = Map::new();
    status.insert("phase".to_owned(), json!("Pending"));
    status.insert("reason".to_owned(), json!(UNSUPPORTED));
    status.insert("message".to_owned(), json!(message(faults)));
    status.insert("observedGeneration".to_owned(), json!(generation));
    json!({ "metadata": { "uid": uid }, "status": status })
}

fn message(faults: &[Fault]) -> String {
    faults.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::fixtures::observed;
    use crate::stored_status::Reported;

    fn api_pod(more: Value) -> ApiPod {
        let mut pod = json!({"metadata": {"name": "web", "namespace": "shop", "uid": "u-1", "generation": 1}});
        for (name, value) in more.as_object().unwrap() {
            pod["metadata"][name] = value.clone();
        }
        ApiPod::read(&pod).unwrap().1
    }

    fn pod(uid: &str) -> Arc<ObservedPod> {
        observed(json!({"metadata": {"name": "web", "uid": uid}}))
    }

    /// The pod's empty status, accepted in that version.
    fn reported(pod: &Arc<ObservedPod>, version: &str) -> Reported {
        let answer = json!({"metadata": {"resourceVersion": version}});
        let stored = StoredStatus::of_patch(&json!({"status": {}})).taken(&answer);
        Reported { uid: pod.record.uid.to_string(), pod: Arc::clone(pod), stored }
    }

    #[test]
    fn a_status_that_another_client_changed_is_corrected_but_not_one_of_a_pod_that_has_ended() {
        let pod = pod("u-1");
        let known = reported(&pod, "17");
        let stored = |version: &str, status: Value| {
            let metadata = json!({"name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": version});
            ApiPod::read(&json!({"metadata": metadata, "status": status})).unwrap().1
        };
        let step_of = |api_pod: &ApiPod| step(api_pod, LocalPod::Observed(&pod, Ended::No), Some(&known));
        let not_ready = json!({"conditions": [{"type": "Ready", "status": "False"}]});
        assert_eq!(step_of(&stored("18", not_ready.clone())), Some(ReportStep::Correct { uid: "u-1".to_owned() }));
        assert_eq!(step_of(&stored("16", not_ready)), None);
        assert_eq!(step_of(&stored("18", json!({"phase": "Failed"}))), None);
    }

    #[test]
    fn a_pod_is_deleted_once_its_last_status_is_known_and_nothing_of_it_runs() {
        let (observed, other, uid) = (pod("u-1"), pod("u-2"), "u-1".to_owned());
        let report = Some(ReportStep::Report { uid: uid.clone() });
        let delete = Some(ReportStep::Delete { uid: uid.clone() });
        let there = reported(&observed, "17");
        let (nothing, known_there) = (None, Some(&there));
        let (stays, goes) = (api_pod(json!({})), api_pod(json!({"deletionTimestamp": "2026-01-01T00:00:00Z"})));
        let over = ApiPod { over: true, ..goes.clone() };
        let table = [
            (&stays, LocalPod::Nothing, nothing, None),
            (&goes, LocalPod::Nothing, nothing, None),
            (&stays, LocalPod::Gone, nothing, None),
            (&goes, LocalPod::Gone, nothing, delete.clone()),
            (&stays, LocalPod::Observed(&observed, Ended::No), nothing, report.clone()),
            (&stays, LocalPod::Observed(&observed, Ended::No), known_there, None),
            (&stays, LocalPod::Observed(&other, Ended::No), nothing, None),
            (&goes, LocalPod::Observed(&observed, Ended::No), known_there, None),
            (&goes, LocalPod::Observed(&observed, Ended::Yes), nothing, report),
            (&goes, LocalPod::Observed(&observed, Ended::Yes), known_there, delete.clone()),
            (&over, LocalPod::Observed(&observed, Ended::No), nothing, None),
            (&over, LocalPod::Observed(&observed, Ended::Yes), nothing, delete),
            (&goes, LocalPod::Observed(&other, Ended::Yes), known_there, None),
            (&stays, LocalPod::Observed(&observed, Ended::Yes), known_there, None),
        ];
        for (number, (api_pod, known, acknowledged, expected)) in table.into_iter().enumerate() {
            assert_eq!(step(api_pod, known, acknowledged), expected, "row {number}");
        }
    }

    #[test]
    fn of_a_pod_that_another_client_has_ended_the_containers_are_reported_until_none_runs_there() {
        let (observed, later) = (pod("u-1"), {
            let mut later = (*pod("u-1")).clone();
            later.status.phase = Some("Succeeded".to_owned());
            later.status.reason = Some("own".to_owned());
            Arc::new(later)
        });
        let known = reported(&observed, "17");
        let ended = |state: &str, deleting: bool| {
            let metadata = json!({"name": "web", "namespace": "shop", "uid": "u-1", "resourceVersion": "18"});
            let state = json!({ state: {}, "waiting": null });
            let status = json!({"phase": "Failed", "containerStatuses": [{"name": "main", "state": state}]});
            let api_pod = ApiPod::read(&json!({"metadata": metadata, "status": status})).unwrap().1;
            ApiPod { deleting, ..api_pod }
        };
        let uid = "u-1".to_owned();
        let (report, delete) = (Some(ReportStep::Report { uid: uid.clone() }), Some(ReportStep::Delete { uid }));
        let table = [
            // What was last reported is still true.
            (ended("running", false), &observed, Ended::No, None),
            (ended("running", false), &later, Ended::No, report.clone()),
            (ended("running", true), &later, Ended::Yes, report),
            (ended("running", true), &observed, Ended::Yes, delete.clone()),
            (ended("terminated", false), &later, Ended::No, None),
            (ended("terminated", true), &later, Ended::Yes, delete),
        ];
        for (number, (api_pod, pod, ended, expected)) in table.into_iter().enumerate() {
            assert_eq!(step(&api_pod, LocalPod::Observed(pod, ended), Some(&known)), expected, "row {number}");
        }
        let fields = |over| {
            let patch = status_patch(&later, "u-1", None, over);
            (patch["status"]["phase"].clone(), patch["status"]["reason"].clone())
        };
        assert_eq!((fields(false), fields(true)), ((json!("Succeeded"), json!("own")), (Value::Null, Value::Null)));
        assert!(status_patch(&later, "u-1", None, true)["status"].get("phase").is_none());
    }

    #[test]
    fn a_refused_pod_says_so_once_and_is_deleted_at_once() {
        let faults = [Fault::error("spec.volumes[0].nfs", "is not supported yet")];
        let patch = refusal_patch(&faults, "u-1", Some(3));
        assert_eq!((&patch["status"]["phase"], &patch["metadata"]["uid"]), (&json!("Pending"), &json!("u-1")));
        assert!(patch["status"]["message"].as_str().unwrap().contains("spec.volumes[0].nfs"));
        let known = LocalPod::Refused(&faults);
        let mut pod = api_pod(json!({}));
        assert_eq!(step(&pod, known, None), Some(ReportStep::Report { uid: "u-1".to_owned() }));
        pod.refusal_reported(&faults);
        assert_eq!(step(&pod, known, None), None);
        pod.deleting = true;
        assert_eq!(step(&pod, known, None), Some(ReportStep::Delete { uid: "u-1".to_owned() }));
    }
}
