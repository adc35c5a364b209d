#![allow(clippy::unwrap_used)]

use crate::manifest;
use serde_json::{Value, json};

use crate::pod::Severity;
use crate::source::SourceKind;

/// The errors of a Pod whose spec is a valid one with `change` merged in.
fn errors(change: &Value) -> Vec<String> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "web", "image": "web:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}]
        }
    });
    merge(&mut pod, change);
    let manifest = manifest::read(pod.to_string().as_bytes(), "web.json", SourceKind::File, "edge1");
    let errors = manifest.faults.into_iter().filter(|fault| fault.severity == Severity::Error);
    errors.map(|fault| format!("{}: {}", fault.path, fault.message)).collect()
}

fn merge(value: &mut Value, change: &Value) {
    match (value, change) {
        (Value::Object(map), Value::Object(changes)) => {
            for (key, change) in changes {
                merge(map.entry(key.clone()).or_insert(Value::Null), change);
            }
        }
        (Value::Array(items), Value::Array(changes)) if items.len() == changes.len() => {
            items.iter_mut().zip(changes).for_each(|(item, change)| merge(item, change));
        }
        (value, change) => *value = change.clone(),
    }
}

fn container(change: Value) -> Value {
    json!({"spec": {"containers": [change]}})
}

#[test]
fn a_valid_pod_has_no_faults() {
    assert_eq!(errors(&json!({})), Vec::<String>::new());
}

/// The corpus covers each rule, and this test covers the text of the faults.
#[test]
fn a_fault_has_kubernetes_field_name_and_message() {
    let cases = [
        (json!({"metadata": {"name": "Web"}}), "metadata.name: Invalid value: \"Web-edge1\": must be a DNS subdomain"),
        (json!({"metadata": {"name": null}}), "metadata.name: Required value"),
        (json!({"metadata": {"uid": "../x"}}), "metadata.uid: Invalid value: \"../x\""),
        (json!({"metadata": {"labels": {"a": "b c"}}}), "metadata.labels[a]: Invalid value: \"b c\""),
        (
            json!({"spec": {"restartPolicy": "Sometimes"}}),
            "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
        ),
        (json!({"spec": {"containers": []}}), "spec.containers: Required value: a Pod needs at least one container"),
        (container(json!({"image": null})), "spec.containers[0].image: Required value"),
        (
            container(json!({"ports": [{"containerPort": 80800}]})),
            "spec.containers[0].ports[0].containerPort: Invalid value: 80800: must be between 1 and 65535, inclusive",
        ),
        (
            container(json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]})),
            "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
        ),
        (
            container(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1001m"}}})),
            "spec.containers[0].resources.requests: Invalid value: \"1001m\": must be less than or equal to cpu limit of 1",
        ),
        (
            container(json!({"volumeMounts": [{"name": "dat"}]})),
            "spec.containers[0].volumeMounts[0].name: Not found: \"dat\"",
        ),
        (
            container(json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}})),
            "spec.containers[0].securityContext: Invalid value: false: cannot set `allowPrivilegeEscalation` to false",
        ),
    ];
    for (change, expected) in cases {
        let errors = errors(&change);
        assert!(
            errors.len() == 1 && errors[0].starts_with(expected),
            "{change}\n  wanted {expected}\n  got {errors:?}"
        );
    }
}
