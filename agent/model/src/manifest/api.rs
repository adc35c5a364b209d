//! Pods as an apiserver stores them: the part that a node acts on, and whether this node can run it.
//!
//! An apiserver has validated its Pods, and a newer one may have fields that this agent does not know; like kubelet,
//! it ignores those. A field that limpet knows and does not act on is refused, as in a manifest. So is a name that
//! would leave the pod's directory, because what answers may not be the apiserver.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::pod::draft::{DELETION, Draft};
use crate::pod::{Fault, PodRecord, Severity, decode, is_terminal_phase, unsupported};
use crate::source::SourceKind;

/// The origin of all such pods.
pub const ORIGIN: &str = "apiserver";
/// The metadata that a node acts on. The rest changes with every status that it reports itself.
const METADATA: [&str; 5] = ["name", "namespace", "uid", "labels", "annotations"];

/// Reads a Pod as an apiserver stores it.
///
/// # Errors
///
/// It uses something that this node does not support, one of its names is not valid, or it is not a Pod.
pub fn read(pod: &Value, node_name: &str) -> Result<PodRecord, Vec<Fault>> {
    let desired = desired(pod);
    let (decoded, faults) = decode::decode_with_value(&desired);
    let Some((pod, value)) = decoded else { return Err(faults.finish()) };
    let unsupported: Vec<Fault> = unsupported::check(&desired, SourceKind::Api)
        .into_iter()
        .filter(|fault| fault.severity == Severity::Error)
        .collect();
    if !unsupported.is_empty() {
        return Err(unsupported);
    }
    Draft::new(&value, pod, Arc::from(ORIGIN), SourceKind::Api, node_name).record()
}

/// The part of a stored Pod that a node acts on. Of its status, that is only its end and the conditions of its
/// readiness gates.
fn desired(pod: &Value) -> Value {
    let metadata: Map<String, Value> = METADATA
        .iter()
        .chain(&DELETION)
        .filter_map(|field| Some(((*field).to_owned(), pod["metadata"].get(field)?.clone())))
        .collect();
    let mut desired =
        serde_json::json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod["spec"] });
    // What has ended for good does not run again, even if nothing of it is left here.
    if let Some(phase) = pod["status"]["phase"].as_str().filter(|phase| is_terminal_phase(phase)) {
        desired["status"] = serde_json::json!({ "phase": phase });
    }
    let conditions = gate_conditions(pod);
    if !conditions.is_empty() {
        desired["status"]["conditions"] = Value::Array(conditions);
    }
    desired
}

/// The conditions of other clients for the pod's readiness gates: type and status of each condition that a gate names.
fn gate_conditions(pod: &Value) -> Vec<Value> {
    let gates = pod["spec"]["readinessGates"].as_array().map(Vec::as_slice).unwrap_or_default();
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_gate = |condition: &&Value| {
        condition["type"].is_string() && gates.iter().any(|gate| gate["conditionType"] == condition["type"])
    };
    let of_gates = conditions.iter().filter(is_gate);
    of_gates.map(|condition| serde_json::json!({ "type": condition["type"], "status": condition["status"] })).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::*;

    fn stored() -> Value {
        json!({
            "metadata": {"name": "web-7f", "namespace": "shop", "uid": "u-1", "resourceVersion": "17", "generation": 1,
                "labels": {"app": "web"}, "managedFields": [{"manager": "kubectl"}], "ownerReferences": [{"kind": "Job"}]},
            "spec": {"nodeName": "edge1", "serviceAccountName": "default", "serviceAccount": "default",
                "containers": [{"name": "main", "image": "app:1"}], "fieldOfTomorrow": true,
                "volumes": [{"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}}]},
            "status": {"phase": "Running"},
        })
    }

    #[test]
    fn a_stored_pod_keeps_its_name_and_uid_and_its_version_while_its_status_changes() {
        let pod = read(&stored(), "edge1").unwrap();
        assert_eq!((pod.key.to_string(), pod.uid.to_string()), ("shop/web-7f".to_owned(), "u-1".to_owned()));
        let mut later = stored();
        later["metadata"]["resourceVersion"] = json!("18");
        later["status"] = json!({"phase": "Pending", "podIP": "10.0.0.2"});
        assert!(read(&later, "edge1").unwrap() == pod && !pod.has_ended());
        later["status"] = json!({"phase": "Failed"});
        let over = read(&later, "edge1").unwrap();
        assert!(over.has_ended() && over.fingerprint == pod.fingerprint && over.is_same_incarnation(&pod));
        later["spec"]["containers"][0]["image"] = json!("app:2");
        let edited = read(&later, "edge1").unwrap();
        assert!(edited.fingerprint != pod.fingerprint && edited.is_same_incarnation(&pod));
    }

    #[test]
    fn of_the_conditions_those_of_readiness_gates_count_and_change_no_version() {
        let mut pod = stored();
        pod["spec"]["readinessGates"] = json!([{"conditionType": "example.com/dns"}]);
        let before = read(&pod, "edge1").unwrap();
        assert!(before.pod.status.as_ref().is_none_or(|status| status.conditions.is_none()));
        pod["status"]["conditions"] = json!([
            {"type": "Ready", "status": "False"},
            {"type": "example.com/dns", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            {"type": "example.com/other", "status": "True"},
        ]);
        let after = read(&pod, "edge1").unwrap();
        let conditions = after.pod.status.as_ref().unwrap().conditions.as_ref().unwrap();
        let kept: Vec<_> =
            conditions.iter().map(|condition| (condition.type_.as_str(), condition.status.as_str())).collect();
        assert_eq!(kept, [("example.com/dns", "True")]);
        assert!(after != before && after.fingerprint == before.fingerprint && after.is_same_incarnation(&before));
        pod["status"]["conditions"][0]["status"] = json!("True");
        assert!(read(&pod, "edge1").unwrap() == after, "the node's own conditions change nothing");
    }

    #[test]
    fn a_deletion_keeps_the_version_and_is_stored_with_it() {
        let before = read(&stored(), "edge1").unwrap();
        let mut deleted = stored();
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        deleted["metadata"]["deletionGracePeriodSeconds"] = json!(5);
        let deleted = read(&deleted, "edge1").unwrap();
        assert_eq!(
            (deleted.fingerprint, deleted.is_deleting(), deleted.deletion().1),
            (before.fingerprint, true, Some(5))
        );
        assert!(before.is_same_incarnation(&deleted));
        let restored = super::super::restore(&deleted.manifest, ORIGIN, SourceKind::Api, "edge1").unwrap();
        assert!(restored == deleted && restored.is_deleting());
    }

    #[test]
    fn what_the_node_does_not_support_is_refused_by_name() {
        let mut pod = stored();
        pod["spec"]["volumes"][0] = json!({"name": "data", "rbd": {"monitors": ["a"], "image": "i"}});
        let faults = read(&pod, "edge1").unwrap_err();
        assert_eq!(faults[0].path, "spec.volumes[0].rbd");
        // What is only for debugging keeps nothing else from running.
        pod = stored();
        pod["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "busybox", "stdin": true}]);
        assert!(read(&pod, "edge1").is_ok());
    }

    #[test]
    fn a_name_that_would_leave_the_pods_directory_is_refused_also_when_it_was_stored() {
        for (pointer, path, mut value) in [
            ("/metadata/uid", "metadata.uid", stored()),
            ("/metadata/name", "metadata.name", stored()),
            ("/metadata/namespace", "metadata.namespace", stored()),
            ("/spec/containers/0/name", "spec.containers[0].name", stored()),
            ("/spec/initContainers/0/name", "spec.initContainers[0].name", stored()),
            ("/spec/ephemeralContainers/0/name", "spec.ephemeralContainers[0].name", stored()),
            ("/spec/volumes/0/name", "spec.volumes[0].name", stored()),
        ] {
            value["spec"]["initContainers"] = json!([{"name": "first", "image": "app:1"}]);
            value["spec"]["ephemeralContainers"] = json!([{"name": "debug", "image": "app:1"}]);
            assert!(read(&value, "edge1").is_ok());
            for name in ["/", "..", "../../../etc", "a/b", ".", &"a".repeat(254)] {
                *value.pointer_mut(pointer).unwrap() = json!(name);
                let faults = read(&value, "edge1").unwrap_err();
                assert_eq!(faults[0].path, path, "{name}: {faults:?}");
                let text = value.to_string();
                let faults = super::super::restore(text.as_bytes(), ORIGIN, SourceKind::Api, "edge1").unwrap_err();
                assert_eq!(faults[0].path, path, "{name}: {faults:?}");
            }
        }
    }

    #[test]
    fn an_ephemeral_container_is_added_in_place_and_stored() {
        let before = read(&stored(), "edge1").unwrap();
        let mut pod = stored();
        pod["spec"]["ephemeralContainers"] =
            json!([{"name": "debug", "image": "busybox", "targetContainerName": "main"}]);
        let added = read(&pod, "edge1").unwrap();
        assert!(added != before && before.is_same_incarnation(&added));
        let restored = super::super::restore(&added.manifest, ORIGIN, SourceKind::Api, "edge1").unwrap();
        assert_eq!(restored.container("debug").unwrap().image_pull_policy.as_deref(), Some("Always"));
        assert_eq!(restored.target_of("debug"), Some("main"));
    }
}
