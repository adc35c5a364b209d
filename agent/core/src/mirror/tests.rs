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

/// What an apiserver stores for a document.
fn created(wanted: &DesiredMirror, uid: &str) -> Value {
    let mut pod = document(wanted, "edge1", NODE, "2026-11-23T00:00:00Z");
    pod["metadata"]["uid"] = json!(uid);
    pod["metadata"]["generation"] = json!(1);
    pod
}

fn mirror(pod: &Value) -> Mirror {
    Mirror::read(pod).unwrap().1
}

fn replaced(uid: &str, why: &'static str) -> Option<ReportStep> {
    Some(ReportStep::Replace { uid: uid.to_owned(), why })
}

#[test]
fn a_mirror_is_made_kept_reported_and_deleted() {
    let wanted = DesiredMirror::observed(&pod("app:1"));
    let current = mirror(&created(&wanted, "m1"));
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
    let report = Some(ReportStep::Report { uid: "m1".to_owned() });
    let delete = Some(ReportStep::Delete { uid: "m1".to_owned() });
    let nothing = Acknowledged::default();
    let table = [
        (Some(&wanted), None, &nothing, true, Some(ReportStep::Create)),
        (Some(&wanted), None, &nothing, false, Some(ReportStep::Create)),
        (Some(&wanted), Some(&current), &nothing, true, report.clone()),
        (Some(&wanted), Some(&current), &status("m1", &now), true, None),
        (Some(&wanted), Some(&current), &status("m1", &equal), true, None),
        (Some(&wanted), Some(&current), &status("m1", &older), true, report.clone()),
        (Some(&wanted), Some(&current), &status("m0", &now), true, report),
        (None, Some(&current), &nothing, true, delete),
        (None, Some(&current), &nothing, false, None),
        (None, None, &nothing, true, None),
    ];
    for (number, (wanted, current, known, all_sources_read, expected)) in table.into_iter().enumerate() {
        assert_eq!(step(wanted, current, known, &owner(), all_sources_read), expected, "case {number}");
    }
    let leaving = Owner { deleting: true, ..owner() };
    let none = step(Some(&wanted), None, &nothing, &leaving, true);
    let reported = step(Some(&wanted), Some(&current), &nothing, &leaving, true);
    assert_eq!(
        (none, reported),
        (None, Some(ReportStep::Report { uid: "m1".to_owned() })),
        "the Node is being deleted"
    );
    let mut edited = created(&wanted, "m1");
    edited["metadata"]["labels"] = json!({});
    let removed = step(Some(&wanted), Some(&mirror(&edited)), &nothing, &leaving, true);
    assert!(matches!(removed, Some(ReportStep::Replace { .. })), "what is wrong goes all the same: {removed:?}");
    let unobserved = DesiredMirror::desired(&wanted.record);
    assert_eq!(step(Some(&unobserved), None, &nothing, &owner(), true), Some(ReportStep::Create));
    assert_eq!(step(Some(&unobserved), Some(&current), &nothing, &owner(), true), None, "nothing is known of it yet");
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
    let report = Some(ReportStep::Report { uid: "m1".to_owned() });
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
    let current = mirror(&created(&old, "m1"));
    let why = "it shows another version of the pod";
    assert_eq!(step(Some(&new), Some(&current), &Acknowledged::default(), &owner(), true), replaced("m1", why));
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
    assert_eq!(steps(&pod, &known), Some(ReportStep::Report { uid: "m1".to_owned() }));
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
    let mut current = mirror(&created(&wanted, "m1"));
    assert_eq!(step(Some(&wanted), None, &Acknowledged::default(), &owner(), true), None);
    current.deleting = true;
    let report = Some(ReportStep::Report { uid: "m1".to_owned() });
    assert_eq!(step(Some(&wanted), Some(&current), &Acknowledged::default(), &owner(), true), report);
}

#[test]
fn a_mirror_has_kubelets_annotations_and_one_owner() {
    let wanted = DesiredMirror::observed(&pod("app:1"));
    let document = document(&wanted, "edge1", NODE, "2026-11-23T00:00:00Z");
    let metadata = &document["metadata"];
    let annotations = &metadata["annotations"];
    assert_eq!(annotations["kubernetes.io/config.mirror"], "0123");
    // It is a hash of the content, while the UID stays through edits.
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
