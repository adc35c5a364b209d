//! The apiserver's copy of the status that the node reports, so that changes by other clients are detected and
//! corrected. kube-controller-manager sets `Ready` to false in every pod of a node that it considers lost, and only
//! the node sets it to true again (kubelet's `needsReconcile`). Pure.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use serde_json::Value;

use crate::status::observed::ObservedPod;

/// The conditions that only the node sets.
const CONDITIONS: [&str; 4] = ["PodReadyToStartContainers", "Initialized", "ContainersReady", "Ready"];
/// The lists of containers.
const CONTAINERS: [&str; 3] = ["initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"];

/// A status at the apiserver, or one that is sent there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoredStatus {
    /// The version of the object; `None` if it is not a number, so that it cannot be ordered.
    version: Option<u64>,
    /// A digest of what only the node decides, and of which no form has two spellings.
    digest: u64,
    /// Whether a container runs according to it.
    runs: bool,
}

impl StoredStatus {
    /// The status of a Pod of the apiserver.
    pub fn of_pod(pod: &Value) -> Self {
        Self { version: version(pod), ..Self::of_patch(pod) }
    }

    /// The status in a patch before it is sent.
    pub fn of_patch(patch: &Value) -> Self {
        let status = &patch["status"];
        Self { version: None, digest: digest(status), runs: runs(status) }
    }

    /// Whether a container runs according to it.
    pub fn runs(self) -> bool {
        self.runs
    }

    /// The same once the apiserver has accepted it with `answer`.
    pub fn taken(self, answer: &Value) -> Self {
        Self { version: version(answer), ..self }
    }

    /// Whether this is later than the `reported` status, and differs.
    fn differs_since(self, reported: Self) -> bool {
        let later = self.version.zip(reported.version).is_some_and(|(now, then)| now > then);
        later && self.digest != reported.digest
    }
}

/// A status that the apiserver has accepted.
#[derive(Debug, Clone)]
pub struct Reported {
    /// The UID of the apiserver's Pod.
    pub uid: String,
    /// The pod as it was then.
    pub pod: Arc<ObservedPod>,
    /// What was stored.
    pub stored: StoredStatus,
}

/// How the apiserver's status of a pod compares with the node's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StatusComparison {
    Newest,
    /// The node has a newer one.
    Outdated,
    /// Another client has changed it since.
    Overwritten,
}

/// How `stored`, the status of the Pod of that UID, compares with `pod`.
pub fn compare_status(
    reported: Option<&Reported>,
    uid: &str,
    stored: StoredStatus,
    pod: &Arc<ObservedPod>,
) -> StatusComparison {
    let is_newest = |before: &Arc<ObservedPod>| {
        Arc::ptr_eq(before, pod) || (before.status == pod.status && before.record == pod.record)
    };
    match reported.filter(|reported| reported.uid == uid && is_newest(&reported.pod)) {
        None => StatusComparison::Outdated,
        Some(reported) if stored.differs_since(reported.stored) => StatusComparison::Overwritten,
        Some(_) => StatusComparison::Newest,
    }
}

fn version(object: &Value) -> Option<u64> {
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

fn runs(status: &Value) -> bool {
    let mut containers = CONTAINERS.iter().flat_map(|list| status[*list].as_array().into_iter().flatten());
    containers.any(|status| status["state"]["running"].is_object())
}

/// Times, amounts and last states are left out, because the apiserver writes times and amounts in another form.
fn digest(status: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    let mut add = |value: &Value| match value {
        Value::Number(number) => number.as_i64().hash(&mut hasher),
        Value::Bool(flag) => flag.hash(&mut hasher),
        // An empty text and none are the same in Kubernetes' API.
        other => other.as_str().unwrap_or_default().hash(&mut hasher),
    };
    ["phase", "reason", "message", "hostIP", "podIP"].iter().for_each(|field| add(&status[*field]));
    for list in ["hostIPs", "podIPs"] {
        // An element without an address is a directive of the patch.
        let all = status[list].as_array().into_iter().flatten().map(|address| &address["ip"]);
        all.filter(|address| address.is_string()).for_each(&mut add);
        add(&Value::Null);
    }
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    for name in CONDITIONS {
        let condition = conditions.iter().find(|condition| condition["type"] == name).unwrap_or(&Value::Null);
        ["type", "status", "reason", "message"].iter().for_each(|field| add(&condition[*field]));
    }
    for list in CONTAINERS {
        for status in status[list].as_array().into_iter().flatten() {
            ["name", "containerID", "restartCount", "ready", "started"].iter().for_each(|field| add(&status[*field]));
            for (state, detail) in
                status["state"].as_object().into_iter().flatten().filter(|(_, detail)| detail.is_object())
            {
                add(&Value::from(state.as_str()));
                ["reason", "exitCode"].iter().for_each(|field| add(&detail[*field]));
            }
        }
    }
    hasher.finish()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixtures::observed;

    fn status() -> Value {
        json!({
            "phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"$patch": "replace"}, {"ip": "10.0.0.7"}], "reason": null, "startTime": "2026-01-01T00:00:00.5Z",
            "conditions": [{"type": "Ready", "status": "True", "reason": null, "lastTransitionTime": "2026-01-01T00:00:00Z"}],
            "containerStatuses": [{"name": "main", "ready": true, "restartCount": 0,
                "state": {"running": {"startedAt": "2026-01-01T00:00:00.25Z"}, "waiting": null}}],
        })
    }

    /// The status as the apiserver has it in that version.
    fn stored(version: &str, edit: impl FnOnce(&mut Value)) -> StoredStatus {
        let mut status = status();
        // Without fractions of seconds and empty fields, and with the fields of other clients.
        status["startTime"] = json!("2026-01-01T00:00:00Z");
        status["containerStatuses"][0]["state"] = json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}});
        status["reason"].take();
        status["podIPs"] = json!([{"ip": "10.0.0.7"}]);
        status["conditions"].as_array_mut().unwrap().insert(0, json!({"type": "example.com/dns", "status": "True"}));
        status["qosClass"] = json!("BestEffort");
        edit(&mut status);
        StoredStatus::of_pod(&json!({"metadata": {"resourceVersion": version}, "status": status}))
    }

    #[test]
    fn what_another_client_wrote_over_a_reported_status_is_found() {
        let pod = observed(json!({"metadata": {"name": "web", "uid": "u-1"}}));
        let mut newer = (*pod).clone();
        newer.status.phase = Some("Failed".to_owned());
        let answer = json!({"metadata": {"resourceVersion": "17"}});
        let taken = StoredStatus::of_patch(&json!({"status": status()})).taken(&answer);
        let reported = Reported { uid: "u-1".to_owned(), pod: Arc::clone(&pod), stored: taken };
        let not_ready = |status: &mut Value| status["conditions"][1]["status"] = json!("False");
        let compared = |stored| compare_status(Some(&reported), "u-1", stored, &pod);
        assert_eq!(compared(stored("17", |_| {})), StatusComparison::Newest);
        assert_eq!(compared(stored("18", |_| {})), StatusComparison::Newest, "another part of the Pod was changed");
        assert_eq!(compared(stored("18", not_ready)), StatusComparison::Overwritten);
        assert_eq!(compared(stored("9", not_ready)), StatusComparison::Newest, "a watch that is behind");
        assert_eq!(compared(stored("17", not_ready)), StatusComparison::Newest, "the apiserver's own words for it");
        assert_eq!(compared(stored("none", not_ready)), StatusComparison::Newest);
        let edits: [fn(&mut Value); 5] = [
            |status| status["podIPs"] = json!([{"ip": "10.0.0.9"}]),
            |status| status["phase"] = json!("Unknown"),
            |status| status["reason"] = json!("NodeLost"),
            |status| status["containerStatuses"] = json!([]),
            |status| status["containerStatuses"][0]["state"] = json!({"waiting": {"reason": "ContainerCreating"}}),
        ];
        for edit in edits {
            assert_eq!(compared(stored("18", edit)), StatusComparison::Overwritten);
        }
        let later = stored("18", not_ready);
        assert_eq!(compare_status(Some(&reported), "u-1", later, &Arc::new(newer)), StatusComparison::Outdated);
        assert_eq!(compare_status(Some(&reported), "u-2", later, &pod), StatusComparison::Outdated);
        assert_eq!(compare_status(None, "u-1", later, &pod), StatusComparison::Outdated);
    }
}
