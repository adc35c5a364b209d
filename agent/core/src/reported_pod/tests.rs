#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

use super::*;
use crate::fixtures::observed;

#[test]
fn a_status_clears_what_is_gone_and_leaves_others_conditions() {
    let mut pod = (*observed(json!({ "metadata": { "name": "web-edge1", "uid": "0123" } }))).clone();
    pod.status = serde_json::from_value(json!({
        "phase": "Running",
        "podIPs": [{ "ip": "10.0.0.7" }],
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-23T00:00:00Z" }],
    }))
    .unwrap();
    let patch = status_patch(&pod, "m1", Some(3));
    assert_eq!(patch["metadata"], json!({ "uid": "m1" }));
    let status = &patch["status"];
    // A manifest's pod has no generation.
    assert_eq!((&status["phase"], &status["observedGeneration"]), (&json!("Running"), &Value::Null));
    for cleared in ["reason", "message", "containerStatuses", "podIP"] {
        assert!(status.get(cleared).is_some_and(Value::is_null), "{cleared}: {status}");
    }
    assert_eq!(status["podIPs"], json!([{ "$patch": "replace" }, { "ip": "10.0.0.7" }]));
    assert_eq!(status["hostIPs"], json!([{ "$patch": "replace" }]));
    let conditions = status["conditions"].as_array().unwrap();
    assert_eq!((&conditions[0]["type"], &conditions[0]["reason"]), (&json!("Ready"), &Value::Null));
    assert_eq!(conditions[0]["observedGeneration"], Value::Null);
    pod.record = Arc::new(PodRecord { source: SourceKind::Api, ..(*pod.record).clone() });
    let of_api = &status_patch(&pod, "m1", Some(3))["status"];
    assert_eq!((&of_api["observedGeneration"], &of_api["conditions"][0]["observedGeneration"]), (&json!(3), &json!(3)));
    let deleted: Vec<&Value> = conditions
        .iter()
        .filter(|condition| condition["$patch"] == "delete")
        .map(|condition| &condition["type"])
        .collect();
    assert_eq!(deleted, ["PodResizePending", "PodResizeInProgress", "DisruptionTarget"]);
    assert!(
        status["resources"].is_null() && status["allocatedResources"].is_null(),
        "of one that was refused: {status}"
    );

    pod.status.container_statuses = Some(Vec::new());
    pod.status.resources = serde_json::from_value(json!({ "limits": { "cpu": "1" } })).unwrap();
    let resources = &status_patch(&pod, "m1", None)["status"]["resources"];
    let none = json!({ "cpu": null, "memory": null });
    assert_eq!(*resources, json!({ "limits": { "cpu": "1", "memory": null }, "requests": none }), "maps are merged");
}
