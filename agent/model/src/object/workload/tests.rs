//! Tests of the decoding of workloads.

use serde_json::{Value, json};

use super::*;
use crate::manifest::{self, Manifest};
use crate::object::{ObjectKind, ObjectRecord};

fn deployment(spec: Value) -> Value {
    let mut document = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {
            "selector": {"matchLabels": {"app": "web"}},
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "a", "image": "i:1"}]}},
        },
    });
    for (field, value) in spec.as_object().unwrap() {
        document["spec"][field] = value.clone();
    }
    document
}

fn read(document: &Value) -> Manifest {
    manifest::read(document.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1")
}

fn faults(document: &Value) -> Vec<String> {
    read(document).faults.iter().map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
}

fn accepted(document: &Value) -> Arc<ObjectRecord> {
    let manifest = read(document);
    assert_eq!(manifest.faults, []);
    Arc::clone(&manifest.objects[0])
}

fn replicated(document: &Value) -> Replicated {
    match &accepted(document).workload.as_ref().unwrap().spec {
        WorkloadSpec::Replicated(spec) => spec.clone(),
    }
}

#[test]
fn a_deployment_has_kubernetes_defaults() {
    let expected = Replicated {
        replicas: 1,
        update: Update::Rolling { surge: 1, unavailable: 0 },
        min_ready_seconds: 0,
        progress_deadline_seconds: Some(600),
        paused: false,
        history_limit: 10,
    };
    assert_eq!(replicated(&deployment(json!({}))), expected);
}

#[test]
fn amounts_of_a_rolling_update_are_resolved_as_kubernetes_rounds_them() {
    let update = |replicas: u32, surge: Value, unavailable: Value| {
        let rolling = json!({"maxSurge": surge, "maxUnavailable": unavailable});
        let strategy = json!({"type": "RollingUpdate", "rollingUpdate": rolling});
        match replicated(&deployment(json!({"replicas": replicas, "strategy": strategy}))).update {
            Update::Rolling { surge, unavailable } => (surge, unavailable),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(update(10, json!("25%"), json!("25%")), (3, 2));
    assert_eq!(update(4, json!(2), json!("50%")), (2, 2));
    assert_eq!(update(3, json!("0%"), json!("10%")), (0, 1), "without a surge one pod may be missing");
    assert_eq!(update(0, json!("25%"), json!("25%")), (0, 1));
}

#[test]
fn a_daemon_set_is_one_pod() {
    let daemon = |strategy: Value| {
        let mut document = deployment(json!({"updateStrategy": strategy}));
        document["kind"] = json!("DaemonSet");
        replicated(&document)
    };
    assert_eq!((daemon(Value::Null).replicas, daemon(Value::Null).update), (1, Update::Recreate));
    assert_eq!(daemon(json!({"type": "OnDelete"})).update, Update::Manual);
    let surge = json!({"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
    assert_eq!(daemon(surge).update, Update::Rolling { surge: 1, unavailable: 0 });
}

#[test]
fn faults_are_those_of_an_apiserver_at_their_places() {
    let container = json!({"name": "a", "image": "i:1", "livenesProbe": {}});
    let template = |spec: Value| json!({"metadata": {"labels": {"app": "web"}}, "spec": spec});
    for (spec, expected) in [
        (json!({"replica": 2}), "spec.replica: no such field"),
        (json!({"replicas": "2"}), "spec.replicas: has the wrong type"),
        (json!({"replicas": -1}), "spec.replicas: Invalid value: -1: must be at least 0"),
        (json!({"replicas": 100_000}), "spec.replicas: Invalid value: 100000: must be at most 1000 on one node"),
        (json!({"selector": null}), "spec.selector: required: it must select the template's pods"),
        (
            json!({"selector": {"matchLabels": {"app": "shop"}}}),
            "spec.template.metadata.labels: `selector` does not match template `labels`",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}}),
            "spec.template.metadata.labels: `selector` does not match template `labels`",
        ),
        (
            json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Near"}]}}),
            "spec.selector.matchExpressions[0]: is no requirement",
        ),
        (
            json!({"strategy": {"type": "Recreate", "rollingUpdate": {"maxSurge": 1}}}),
            "spec.strategy.rollingUpdate: Forbidden: may not be specified when strategy `type` is 'Recreate'",
        ),
        (
            json!({"strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": "0%"}}}),
            "spec.strategy.rollingUpdate.maxUnavailable: Invalid value: 0: may not be 0 when `maxSurge` is 0",
        ),
        (
            json!({"strategy": {"type": "Blue"}}),
            "spec.strategy.type: Unsupported value: \"Blue\": supported values: \"RollingUpdate\", \"Recreate\"",
        ),
        (
            json!({"progressDeadlineSeconds": 5, "minReadySeconds": 5}),
            "spec.progressDeadlineSeconds: Invalid value: 5: must be greater than minReadySeconds",
        ),
        (json!({"template": null}), "spec.template: required"),
        (
            json!({"template": template(json!({"containers": [container]}))}),
            "spec.template.spec.containers[0].livenesProbe: no such field",
        ),
        (
            json!({"template": template(json!({"containers": []}))}),
            "spec.template.spec.containers: Required value: a Pod needs at least one container",
        ),
        (
            json!({"template": template(json!({"restartPolicy": "Never", "containers": [{"name": "a", "image": "i"}]}))}),
            "spec.template.spec.restartPolicy: Unsupported value: \"Never\": supported values: \"Always\"",
        ),
    ] {
        let found = faults(&deployment(spec.clone()));
        assert_eq!(found, [expected], "{spec}");
    }
}

#[test]
fn a_refused_workload_names_itself_alone() {
    let manifest = read(&deployment(json!({"replicas": -1})));
    let key = ObjectKey::new(ObjectKind::Deployment, "shop", "web");
    assert_eq!((manifest.refused_objects.into_iter().collect::<Vec<_>>(), manifest.objects.len()), (vec![key], 0));
    assert!(!manifest.unknown_pod_refused && manifest.refused.is_empty());
}

#[test]
fn another_api_version_is_refused_with_the_right_one() {
    let mut document = deployment(json!({}));
    document["apiVersion"] = json!("extensions/v1beta1");
    let manifest = read(&document);
    assert_eq!(manifest.faults[0].message, "extensions/v1beta1 has no Deployment");
    assert_eq!(manifest.faults[0].remedy, "apiVersion: apps/v1");
}

#[test]
fn a_workload_survives_the_store() {
    let record = accepted(&deployment(json!({"replicas": 2})));
    let value: Value = serde_json::from_slice(&record.manifest()).unwrap();
    let restored = crate::object::restore(&value, "web.yaml").unwrap().unwrap();
    assert_eq!(restored, *record);
    assert_eq!(restored.workload.unwrap().template, record.workload.as_ref().unwrap().template);
}

#[test]
fn the_selector_cannot_change() {
    let before = accepted(&deployment(json!({})));
    let next = deployment(json!({"selector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}));
    let fault = before.forbids(&accepted(&next)).unwrap();
    assert_eq!(
        (fault.path.as_str(), before.forbids(&accepted(&deployment(json!({"replicas": 3}))))),
        ("spec.selector", None)
    );
}

#[test]
fn a_pod_has_the_names_of_its_controller_and_gives_its_template_back() {
    let record = accepted(&deployment(json!({})));
    let template = &record.workload.as_ref().unwrap().template;
    let hash = template.hash();
    assert_eq!(hash, "mskjnddccs", "pinned: another one would restart every pod");
    let controller = format!("web-{hash}");
    let name = pod_name(&controller, &suffix("edge1", &record.key, &hash, 0));
    let added = std::collections::BTreeMap::from([(TEMPLATE_HASH, hash.clone())]);
    let of = (&record.origin, SourceKind::File, "edge1");
    let pod = template.pod(&record.key, &name, &added, ("apps/v1", "ReplicaSet", &controller), of).unwrap();
    assert_eq!((pod.key.namespace(), pod.key.name()), ("shop", name.as_str()));
    assert_eq!(pod.pod.metadata.labels.as_ref().unwrap()[TEMPLATE_HASH], hash);
    assert_eq!(pod.pod.metadata.owner_references.as_ref().unwrap()[0].name, controller);
    assert_eq!(PodTemplate::of_pod(&pod).as_ref(), Some(template));
    let again = manifest::restore(&pod.manifest, "web.yaml", SourceKind::File, "edge1").unwrap();
    assert_eq!((again.key, again.uid, again.fingerprint), (pod.key, pod.uid, pod.fingerprint));
    let authored = manifest::read(&pod.manifest, "web.yaml", SourceKind::File, "edge1");
    assert!(authored.pods.is_empty(), "a manifest cannot pass for a controller's pod");
}

#[test]
fn long_names_become_host_names() {
    let name = pod_name(&"a".repeat(100), "bcdfg");
    assert_eq!((name.len(), name.ends_with("a-bcdfg")), (63, true));
    assert_eq!(pod_name(&format!("{}.b", "a".repeat(56)), "bcdfg"), format!("{}-bcdfg", "a".repeat(56)));
}
