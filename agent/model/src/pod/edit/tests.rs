#![allow(clippy::unwrap_used)]

use serde_json::json;

use crate::manifest::restore;
use crate::pod::edit::*;
use crate::source::SourceKind;

fn record(manifest: &Value) -> PodRecord {
    restore(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1").unwrap()
}

fn base() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "web" },
        "spec": { "containers": [
            { "name": "web", "image": "web:1", "env": [{ "name": "BAUD", "value": "9600" }], "command": ["a", "b"] },
            { "name": "proxy", "image": "proxy:1.4" },
        ]},
    })
}

/// `path: old -> new`, with a leading `!` if it needs a new pod, and the field that holds it at the end.
fn lines(edits: &[Edit]) -> Vec<String> {
    let text = |value: &Option<Value>| value.as_ref().map_or("-".to_owned(), ToString::to_string);
    let line_of = |edit: &Edit| {
        let mark = if edit.in_place { "" } else { "!" };
        format!("{mark}{}: {} -> {} ({})", edit.path, text(&edit.old), text(&edit.new), edit.field)
    };
    edits.iter().map(line_of).collect()
}

#[test]
fn each_edit_is_reported_at_its_field() {
    // The path, the value set there (`null` removes), the expected lines.
    let cases: &[(&str, Value, &[&str])] = &[
        ("/metadata/labels", json!({ "app": "web" }), &["metadata.labels.app: - -> \"web\" (labels)"]),
        ("/metadata/annotations", json!({ "a.b/c": "x" }), &["metadata.annotations[a.b/c]: - -> \"x\" (annotations)"]),
        ("/metadata/namespace", json!("default"), &["!metadata.namespace: - -> \"default\" (namespace)"]),
        (
            "/spec/containers/1/image",
            json!("proxy:1.5"),
            &["spec.containers[proxy].image: \"proxy:1.4\" -> \"proxy:1.5\" (image)"],
        ),
        (
            "/spec/containers/0/resources",
            json!({ "limits": { "memory": "1Gi" } }),
            &["spec.containers[web].resources.limits.memory: - -> \"1Gi\" (resources)"],
        ),
        ("/spec/containers/0/resources", json!({}), &["spec.containers[web].resources: - -> {} (resources)"]),
        (
            "/spec/containers/0/env/0/value",
            json!("19200"),
            &["!spec.containers[web].env[BAUD]: \"9600\" -> \"19200\" (env)"],
        ),
        ("/spec/containers/0/env", Value::Null, &["!spec.containers[web].env[BAUD]: \"9600\" -> - (env)"]),
        (
            "/spec/containers/0/env/0",
            json!({ "name": "BAUD", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }),
            &[
                "!spec.containers[web].env[BAUD].value: \"9600\" -> - (env)",
                "!spec.containers[web].env[BAUD].valueFrom.fieldRef.fieldPath: - -> \"spec.nodeName\" (env)",
            ],
        ),
        ("/spec/containers/1/env", json!([]), &["!spec.containers[proxy].env: - -> [] (env)"]),
        (
            "/spec/containers/1/env",
            json!([{ "name": "E" }]),
            &["!spec.containers[proxy].env[E]: - -> {\"name\":\"E\"} (env)"],
        ),
        (
            "/spec/containers/0/command",
            json!(["a"]),
            &["!spec.containers[web].command: [\"a\",\"b\"] -> [\"a\"] (command)"],
        ),
        (
            "/spec/containers/1",
            Value::Null,
            &["!spec.containers[proxy]: {\"image\":\"proxy:1.4\",\"name\":\"proxy\"} -> - (containers)"],
        ),
        (
            "/spec/containers",
            json!([base()["spec"]["containers"][1], base()["spec"]["containers"][0]]),
            &["!spec.containers: [\"web\",\"proxy\"] -> [\"proxy\",\"web\"] (containers)"],
        ),
        (
            "/spec/volumes",
            json!([{ "name": "data", "emptyDir": {} }]),
            &["!spec.volumes[data]: - -> {\"emptyDir\":{},\"name\":\"data\"} (volumes)"],
        ),
        ("/spec/hostNetwork", json!(true), &["!spec.hostNetwork: - -> true (hostNetwork)"]),
        (
            "/spec/tolerations",
            json!([{ "operator": "Exists" }]),
            &["spec.tolerations: - -> [{\"operator\":\"Exists\"}] (tolerations)"],
        ),
        ("/spec/ephemeralContainers", Value::Null, &[]),
    ];
    for (pointer, value, wanted) in cases {
        let mut manifest = base();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        match manifest.pointer_mut(parent).unwrap() {
            Value::Array(items) if value.is_null() => drop(items.remove(key.parse::<usize>().unwrap())),
            Value::Array(items) => items[key.parse::<usize>().unwrap()] = value.clone(),
            map => map[key] = value.clone(),
        }
        let (old, new) = (record(&base()), record(&manifest));
        let forth = edits(&old, &new);
        assert_eq!(lines(&forth), *wanted, "{pointer}");
        // The edit is in place exactly if the identity stays.
        let same_pod = forth.iter().all(|edit| edit.in_place);
        assert_eq!(same_pod, old.immutable_fingerprint == new.immutable_fingerprint, "{pointer}");
        assert_eq!(forth.is_empty(), old.fingerprint == new.fingerprint, "{pointer}");
        assert_eq!(edits(&new, &old).len(), forth.len(), "back: {pointer}");
    }
}

#[test]
fn items_without_a_unique_merge_key_are_reported_as_a_list() {
    let with = |containers: Value| {
        let mut manifest = base();
        manifest["spec"]["containers"][0]["ports"] = containers;
        record(&manifest)
    };
    let twice = json!([{ "containerPort": 53, "protocol": "TCP" }, { "containerPort": 53, "protocol": "UDP" }]);
    let forth = edits(&with(json!([{ "containerPort": 53 }])), &with(twice));
    assert_eq!(forth.len(), 1);
    assert_eq!(forth[0].path, "spec.containers[web].ports");
}
