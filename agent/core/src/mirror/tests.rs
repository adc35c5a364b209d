#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::observed;
use limpet_model::pod::Fingerprint;

const NODE: &str = "node-uid";

fn owner() -> Owner {
    Owner { uid: NODE.to_owned(), deleting: false }
}

fn pod(image: &str) -> Arc<ObservedPod> {
    observed(json!({
        "metadata": { "name": "web-edge1", "uid": "0123", "labels": { "app": "web" }, "annotations": { "note": "a" } },
        "spec": { "containers": [{ "name": "main", "image": image }] },
        "status": { "phase": "Running", "podIP": "10.0.0.7", "podIPs": [{ "ip": "10.0.0.7" }] },
    }))
}

/// What an apiserver makes of a document.
fn created(wanted: &DesiredMirror, uid: &str) -> Value {
    let mut pod = document(wanted, "edge1", NODE, "2026-11-23T00:00:00Z");
    pod["metadata"]["uid"] = json!(uid);
    pod["metadata"]["generation"] = json!(1);
    pod
}

fn mirror(pod: &Value) -> Mirror {
    Mirror::read(pod).unwrap().1
}

fn replaced(uid: &str, why: &'static str) -> Option<Step> {
    Some(Step::Replace { uid: uid.to_owned(), why })
}

#[test]
fn a_mirror_is_made_kept_reported_and_deleted() {
    let wanted = DesiredMirror::observed(&pod("app:1"));
    let found = mirror(&created(&wanted, "m1"));
    let status = |uid: &str, pod: &Arc<ObservedPod>| Acknowledged {
        status: Some(Reported { uid: uid.to_owned(), pod: Arc::clone(pod), stored: StoredStatus::default() }),
        ..Acknowledged::default()
    };
    let now = wanted.observed.clone().unwrap();
    let equal = Arc::new((*now).clone());
    let older = {
        let mut older = (*now).clone();
        older.status.phase = Some("Pending".to_owned());
        Arc::new(older)
    };
    let report = Some(Step::Report { uid: "m1".to_owned() });
    let delete = Some(Step::Delete { uid: "m1".to_owned() });
    let nothing = Acknowledged::default();
    let table = [
        (Some(&wanted), None, &nothing, true, Some(Step::Create)),
        (Some(&wanted), None, &nothing, false, Some(Step::Create)),
        (Some(&wanted), Some(&found), &nothing, true, report.clone()),
        (Some(&wanted), Some(&found), &status("m1", &now), true, None),
        (Some(&wanted), Some(&found), &status("m1", &equal), true, None),
        (Some(&wanted), Some(&found), &status("m1", &older), true, report.clone()),
        (Some(&wanted), Some(&found), &status("m0", &now), true, report),
        (None, Some(&found), &nothing, true, delete),
        (None, Some(&found), &nothing, false, None),
        (None, None, &nothing, true, None),
    ];
    for (number, (wanted, found, known, all_sources_read, expected)) in table.into_iter().enumerate() {
        assert_eq!(step(wanted, found, known, &owner(), all_sources_read), expected, "case {number}");
    }
    let leaving = Owner { deleting: true, ..owner() };
    let none = step(Some(&wanted), None, &nothing, &leaving, true);
    let reported = step(Some(&wanted), Some(&found), &nothing, &leaving, true);
    assert_eq!((none, reported), (None, Some(Step::Report { uid: "m1".to_owned() })), "the Node is being deleted");
    let mut edited = created(&wanted, "m1");
    edited["metadata"]["labels"] = json!({});
    let removed = step(Some(&wanted), Some(&mirror(&edited)), &nothing, &leaving, true);
    assert!(matches!(removed, Some(Step::Replace { .. })), "what is wrong goes all the same: {removed:?}");
    let unobserved = DesiredMirror::desired(&wanted.record);
    assert_eq!(step(Some(&unobserved), None, &nothing, &owner(), true), Some(Step::Create));
    assert_eq!(step(Some(&unobserved), Some(&found), &nothing, &owner(), true), None, "nothing is known of it yet");
}

#[test]
fn what_was_edited_is_replaced_and_what_others_add_is_left_alone() {
    let wanted = DesiredMirror::observed(&pod("app:1"));
    let nothing = Acknowledged::default();
    let edited = |edit: fn(&mut Value)| {
        let mut pod = created(&wanted, "m1");
        edit(&mut pod);
        step(Some(&wanted), Some(&mirror(&pod)), &nothing, &owner(), true)
    };
    let marks = "its labels or annotations were edited";
    let report = Some(Step::Report { uid: "m1".to_owned() });
    assert_eq!(edited(|pod| pod["metadata"]["labels"]["app"] = json!("db")), replaced("m1", marks));
    assert_eq!(edited(|pod| pod["metadata"]["labels"] = json!({})), replaced("m1", marks));
    assert_eq!(edited(|pod| pod["metadata"]["annotations"]["note"] = json!("b")), replaced("m1", marks));
    assert_eq!(edited(|pod| pod["metadata"]["labels"]["more"] = json!("1")), report);
    assert_eq!(edited(|pod| pod["metadata"]["annotations"]["cni/ip"] = json!("1")), report);
    assert_eq!(edited(|pod| pod["metadata"]["annotations"][SEEN_ANNOTATION] = json!("1")), report);
    assert_eq!(edited(|pod| pod["metadata"]["generation"] = json!(2)), replaced("m1", "its spec was edited"));
    assert_eq!(edited(|pod| pod["metadata"]["generation"] = json!(null)), report, "an apiserver without generations");
    let deleted = edited(|pod| pod["metadata"]["deletionTimestamp"] = json!("2026-11-23T00:00:00Z"));
    assert_eq!(deleted, replaced("m1", "its deletion was requested"));
    let other = edited(|pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("old"));
    assert_eq!(other, replaced("m1", "it belongs to another Node object"));
}

#[test]
fn another_version_replaces_the_mirror_even_when_its_uid_stays() {
    let (old, mut new) = (DesiredMirror::observed(&pod("app:1")), DesiredMirror::observed(&pod("app:2")));
    new.record = Arc::new(PodRecord { fingerprint: Fingerprint([2; 16]), ..(*new.record).clone() });
    assert_eq!(old.record.uid, new.record.uid);
    let found = mirror(&created(&old, "m1"));
    let why = "it shows another version of the pod";
    assert_eq!(step(Some(&new), Some(&found), &Acknowledged::default(), &owner(), true), replaced("m1", why));
}

#[test]
fn what_admission_changed_is_no_edit_and_is_not_replaced_for_ever() {
    let wanted = DesiredMirror::observed(&pod("app:1"));
    let mut pod = created(&wanted, "m1");
    pod["metadata"]["labels"] = json!({ "app": "web-by-webhook" });
    pod["metadata"]["generation"] = json!(2);
    let admitted = Some(mirror(&pod));
    let known = Acknowledged { admitted, ..Acknowledged::default() };
    let steps = |pod: &Value, known: &Acknowledged| step(Some(&wanted), Some(&mirror(pod)), known, &owner(), true);
    assert_eq!(steps(&pod, &known), Some(Step::Report { uid: "m1".to_owned() }));
    let marks = "its labels or annotations were edited";
    assert_eq!(steps(&pod, &Acknowledged::default()), replaced("m1", marks), "after a restart of the agent, once");
    pod["metadata"]["labels"]["app"] = json!("by hand");
    assert_eq!(steps(&pod, &known), replaced("m1", marks));
    pod["metadata"]["uid"] = json!("m2");
    assert_eq!(steps(&pod, &known), replaced("m2", marks), "admitted was another one");
}

#[test]
fn a_pod_that_ends_gets_no_mirror_again_and_its_last_states_are_reported() {
    let mut ending = (*pod("app:1")).clone();
    ending.terminating_since = Some(Timestamp::UNIX_EPOCH);
    let wanted = DesiredMirror::observed(&Arc::new(ending));
    let mut found = mirror(&created(&wanted, "m1"));
    assert_eq!(step(Some(&wanted), None, &Acknowledged::default(), &owner(), true), None);
    found.deleting = true;
    let report = Some(Step::Report { uid: "m1".to_owned() });
    assert_eq!(step(Some(&wanted), Some(&found), &Acknowledged::default(), &owner(), true), report);
}

#[test]
fn a_mirror_has_kubelets_annotations_and_one_owner() {
    let wanted = DesiredMirror::observed(&pod("app:1"));
    let document = document(&wanted, "edge1", NODE, "2026-11-23T00:00:00Z");
    let metadata = &document["metadata"];
    let annotations = &metadata["annotations"];
    assert_eq!(annotations["kubernetes.io/config.mirror"], "0123");
    // Of the content, where the UID stays through edits.
    let hash = annotations["kubernetes.io/config.hash"].as_str().unwrap();
    assert_eq!(hash, wanted.record.fingerprint.to_string());
    assert_eq!(annotations["kubernetes.io/config.source"], "file");
    assert_eq!(annotations["kubernetes.io/config.seen"], "2026-11-23T00:00:00Z");
    assert_eq!((&annotations["note"], &metadata["labels"]), (&json!("a"), &json!({ "app": "web" })));
    let owner = json!({ "apiVersion": "v1", "kind": "Node", "name": "edge1", "uid": NODE, "controller": true });
    assert_eq!(metadata["ownerReferences"], json!([owner]));
    assert!(metadata.get("uid").is_none() && document.get("status").is_none(), "the server's own");
    assert_eq!(document["spec"]["containers"][0]["image"], "app:1");
    let (key, read) = Mirror::read(&created(&wanted, "m1")).unwrap();
    assert_eq!((key.to_string(), read.source()), ("default/web-edge1".to_owned(), Some(SourceKind::File)));
    assert_eq!(Mirror::read(&json!({ "metadata": { "name": "web", "namespace": "default", "uid": "1" } })), None);
}

#[test]
fn a_status_clears_what_is_gone_and_leaves_others_conditions() {
    let mut pod = (*pod("app:1")).clone();
    pod.status = serde_json::from_value(json!({
        "phase": "Running",
        "podIPs": [{ "ip": "10.0.0.7" }],
        "conditions": [{ "type": "Ready", "status": "True", "lastTransitionTime": "2026-11-23T00:00:00Z" }],
    }))
    .unwrap();
    let patch = status_patch(&pod, "m1", Some(3));
    assert_eq!(patch["metadata"], json!({ "uid": "m1" }));
    let status = &patch["status"];
    // A pod of a manifest has no generation.
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
    let deleted: Vec<&Value> =
        conditions.iter().filter(|one| one["$patch"] == "delete").map(|one| &one["type"]).collect();
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

#[test]
fn refusals_are_tried_again_seldom() {
    let seconds: Vec<u64> = [1, 2, 3, 7, u32::MAX].map(|failures| refusal_pause(failures, 100).as_secs()).to_vec();
    assert_eq!(seconds, [5, 10, 20, 300, 300]);
    assert_eq!(refusal_pause(1, 0), Duration::from_millis(4_500));
}

#[test]
fn a_missing_namespace_is_asked_for_every_two_seconds_at_first() {
    let seconds = |minutes: u64| namespace_pause(Duration::from_secs(60 * minutes), 200).as_secs_f64();
    assert!(seconds(0) < 2.0 && seconds(10) < 2.0, "{} {}", seconds(0), seconds(10));
    assert!((3.0..4.0).contains(&seconds(20)) && seconds(10_000) <= 11.0, "{} {}", seconds(20), seconds(10_000));
}
