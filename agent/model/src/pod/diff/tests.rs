#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use serde_json::{Value, json};

use crate::manifest::{read, restore};
use crate::pod::diff::*;
use crate::source::SourceKind;

fn base() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "labels": { "app": "web" }, "annotations": { "note": "a" } },
        "spec": {
            "initContainers": [{ "name": "prepare", "image": "tool:1" }],
            "containers": [
                { "name": "web", "image": "web:1", "resources": { "limits": { "memory": "64Mi" } } },
                { "name": "proxy", "image": "proxy:1" },
            ],
            "volumes": [{ "name": "data", "emptyDir": {} }],
        },
    })
}

/// The pod is restored and not read, because only differences matter here, not whether a field is allowed.
fn record(manifest: &Value, origin: &str) -> PodRecord {
    restore(manifest.to_string().as_bytes(), origin, SourceKind::File, "edge1").unwrap()
}

/// `base` with `value` at `pointer`. A missing last key is added, and `null` removes it.
fn edited(pointer: &str, value: Value) -> Value {
    let mut manifest = base();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match manifest.pointer_mut(parent).unwrap() {
        Value::Array(items) if key == "-" => items.push(value),
        Value::Array(items) => items[key.parse::<usize>().unwrap()] = value,
        map => map[key] = value,
    }
    manifest
}

#[test]
fn each_edit_is_named_and_only_some_need_a_new_pod() {
    // The edited field, the parts by name, whether the pod is recreated.
    let cases: &[(&str, Value, &str, bool)] = &[
        ("/metadata/labels/app", json!("shop"), "labels", false),
        ("/metadata/labels/tier", json!("front"), "labels", false),
        ("/metadata/labels", Value::Null, "labels", false),
        ("/metadata/annotations/note", json!("b"), "annotations", false),
        ("/metadata/annotations/other", json!("b"), "annotations", false),
        ("/metadata/annotations", Value::Null, "annotations", false),
        ("/metadata/finalizers", json!(["a/b"]), "finalizers", true),
        ("/metadata/uid", json!("0123"), "uid", true),
        ("/spec/containers/0/image", json!("web:2"), "image of container web", false),
        ("/spec/containers/1/image", json!("proxy"), "image of container proxy", false),
        ("/spec/initContainers/0/image", json!("tool:2"), "image of container prepare", true),
        ("/spec/containers/0/resources/limits/memory", json!("1Gi"), "resources of container web", false),
        // They are equal with defaults and differ as authored, which determines the container's fingerprint.
        ("/spec/containers/0/resources/requests", json!({ "memory": "64Mi" }), "resources of container web", false),
        ("/spec/containers/1/resources", json!({ "requests": { "cpu": "1" } }), "resources of container proxy", false),
        // The QoS class differs, and the pod's cgroup cannot move.
        ("/spec/containers/0/resources", Value::Null, "resources of container web", true),
        (
            "/spec/containers/0/resources",
            json!({ "limits": { "nvidia.com/gpu": 1 } }),
            "resources of container web",
            true,
        ),
        ("/spec/activeDeadlineSeconds", json!(9), "activeDeadlineSeconds", false),
        ("/spec/tolerations", json!([{ "key": "a", "operator": "Exists" }]), "tolerations", false),
        ("/spec/containers/0/imagePullPolicy", json!("Always"), "container web", true),
        ("/spec/containers/0/command", json!(["a"]), "container web", true),
        ("/spec/containers/1/env", json!([{ "name": "A", "value": "1" }]), "container proxy", true),
        ("/spec/initContainers/0/args", json!(["a"]), "container prepare", true),
        ("/spec/containers/-", json!({ "name": "more", "image": "m:1" }), "container more (new)", true),
        ("/spec/initContainers", Value::Null, "container prepare (removed)", true),
        ("/spec/volumes/0", json!({ "name": "data", "emptyDir": { "medium": "Memory" } }), "volume data", true),
        ("/spec/volumes/-", json!({ "name": "more" }), "volume more", true),
        ("/spec/volumes", Value::Null, "volume data", true),
        ("/spec/hostNetwork", json!(true), "hostNetwork", true),
        ("/spec/hostname", json!("a"), "hostname", true),
        ("/spec/dnsPolicy", json!("Default"), "dnsPolicy", true),
        ("/spec/shareProcessNamespace", json!(true), "shareProcessNamespace", true),
        ("/spec/securityContext", json!({ "runAsUser": 1 }), "securityContext", true),
        ("/spec/terminationGracePeriodSeconds", json!(1), "terminationGracePeriodSeconds", true),
        ("/spec/restartPolicy", json!("Never"), "restartPolicy", true),
        ("/spec/dnsPolicy", json!("ClusterFirst"), "formatting", true),
        ("/status", json!({ "message": "a" }), "status", false),
        ("/metadata/name", json!("web"), "", false),
    ];
    let old = record(&base(), "web.yaml");
    for (pointer, value, parts, new_pod) in cases {
        let new = record(&edited(pointer, value.clone()), "web.yaml");
        let diff = PodDiff::between(&old, &new);
        assert_eq!((diff.to_string().as_str(), diff.needs_new_pod()), (*parts, *new_pod), "{pointer} {value}");
        let back = PodDiff::between(&new, &old);
        let undone = parts.replace("(new)", "()").replace("(removed)", "(new)").replace("()", "(removed)");
        assert_eq!(back.to_string(), undone, "back: {pointer} {value}");
    }
}

#[test]
fn several_edits_are_all_named_and_a_container_is_restarted_once() {
    let mut manifest = base();
    manifest["metadata"]["labels"] = json!({ "app": "shop" });
    manifest["spec"]["containers"][0]["image"] = json!("web:2");
    manifest["spec"]["containers"][0]["resources"] = json!({ "limits": { "memory": "1Gi" } });
    manifest["spec"]["initContainers"][0]["image"] = json!("tool:2");
    let (old, new) = (record(&base(), "web.yaml"), record(&manifest, "web.yaml"));
    let diff = PodDiff::between(&old, &new);
    let expected = "labels, image of container prepare, image of container web, resources of container web";
    assert_eq!(diff.to_string(), expected);
    assert_eq!(diff.restarts().collect::<Vec<_>>(), ["prepare", "web"]);
    assert!(!diff.is_metadata_only() && diff.needs_new_pod());
}

#[test]
fn another_order_of_containers_is_named() {
    let mut manifest = base();
    manifest["spec"]["containers"].as_array_mut().unwrap().reverse();
    let (old, new) = (record(&base(), "web.yaml"), record(&manifest, "web.yaml"));
    assert_eq!(PodDiff::between(&old, &new).parts(), [Part::ContainerOrder]);
}

#[test]
fn metadata_touches_no_container() {
    let old = record(&base(), "web.yaml");
    for (pointer, origin) in [("/metadata/labels/app", "web.yaml"), ("/metadata/annotations/note", "shop.yaml")] {
        let new = record(&edited(pointer, json!("z")), origin);
        let diff = PodDiff::between(&old, &new);
        assert!(diff.is_metadata_only() && !diff.is_empty(), "{diff}");
        assert_eq!(diff.restarts().count(), 0);
    }
    let renamed = record(&base(), "shop.yaml");
    assert_eq!(PodDiff::between(&old, &renamed).parts(), [Part::Origin]);
}

#[test]
fn deletion_is_a_part_of_its_own() {
    let old = record(&base(), "web.yaml");
    let mut new = old.clone();
    new.pod.metadata.deletion_grace_period_seconds = Some(5);
    assert_eq!(PodDiff::between(&old, &new).parts(), [Part::Deletion]);
    new.pod.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-02T03:04:05Z")).unwrap();
    new.pod.metadata.deletion_grace_period_seconds = None;
    assert_eq!(PodDiff::between(&old, &new).parts(), [Part::Deletion]);
}

#[test]
fn a_manifest_in_another_format_is_equal() {
    let yaml = "kind: Pod\napiVersion: v1\nmetadata: {name: web}\nspec:\n  containers: [{image: 'a:1', name: a}]\n";
    let json = r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web"},"spec":{"containers":[{"name":"a","image":"a:1"}]}}"#;
    let pod_from = |text: &str| Arc::clone(&read(text.as_bytes(), "web.yaml", SourceKind::File, "edge1").pods[0]);
    assert!(PodDiff::between(&pod_from(yaml), &pod_from(json)).is_empty());
}
