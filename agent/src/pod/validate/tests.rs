#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use crate::pod::{self, Severity};
use crate::source::SourceKind;

/// The errors of a Pod whose spec is a good one with `change` merged in.
fn errors(change: &Value) -> Vec<String> {
    let mut pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
        "spec": {
            "containers": [{"name": "web", "image": "web:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "emptyDir": {}}]
        }
    });
    merge(&mut pod, change);
    let manifest = pod::read(pod.to_string().as_bytes(), "web.json", SourceKind::File, "edge1");
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
fn a_good_pod_has_no_faults() {
    assert_eq!(errors(&json!({})), Vec::<String>::new());
}

#[test]
fn every_rule_names_its_field() {
    let cases = [
        (json!({"metadata": {"name": "Web"}}), "metadata.name: \"Web-edge1\" is no name"),
        (json!({"metadata": {"name": null}}), "metadata.name: required"),
        (json!({"metadata": {"namespace": "a.b"}}), "metadata.namespace: \"a.b\" is no namespace"),
        (json!({"metadata": {"uid": "../x"}}), "metadata.uid: "),
        (json!({"metadata": {"labels": {"a": "b c"}}}), "metadata.labels.a: \"b c\" is no label value"),
        (json!({"metadata": {"annotations": {"-": "x"}}}), "metadata.annotations.-: "),
        (json!({"spec": {"restartPolicy": "Sometimes"}}), "spec.restartPolicy: \"Sometimes\" is not one of"),
        (json!({"spec": {"terminationGracePeriodSeconds": -1}}), "spec.terminationGracePeriodSeconds: -1 is less"),
        (json!({"spec": {"dnsPolicy": "None"}}), "spec.dnsConfig.nameservers: required"),
        (json!({"spec": {"hostname": "a_b"}}), "spec.hostname: "),
        (json!({"spec": {"hostAliases": [{"ip": "x"}]}}), "spec.hostAliases[0].ip: "),
        (json!({"spec": {"containers": []}}), "spec.containers: required"),
        (container(json!({"name": ""})), "spec.containers[0].name: required"),
        (container(json!({"image": null})), "spec.containers[0].image: required"),
        (container(json!({"imagePullPolicy": "always"})), "spec.containers[0].imagePullPolicy: "),
        (
            container(json!({"ports": [{"containerPort": 80800}]})),
            "spec.containers[0].ports[0].containerPort: 80800 is not a port (1 to 65535)",
        ),
        (
            container(json!({"ports": [{"containerPort": 1, "name": "a"}, {"containerPort": 2, "name": "a"}]})),
            "spec.containers[0].ports[1].name: \"a\" is used twice",
        ),
        (container(json!({"env": [{"name": "A=B"}]})), "spec.containers[0].env[0].name: "),
        (
            container(json!({"env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]})),
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: ",
        ),
        (container(json!({"resources": {"limits": {"cpu": "1 core"}}})), "spec.containers[0].resources.limits.cpu: "),
        (
            container(json!({"resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1001m"}}})),
            "spec.containers[0].resources.requests.cpu: is more than the limit",
        ),
        (
            container(json!({"volumeMounts": [{"name": "dat"}]})),
            "spec.containers[0].volumeMounts[0].name: the pod has no volume \"dat\"",
        ),
        (container(json!({"volumeMounts": [{"mountPath": "data"}]})), "spec.containers[0].volumeMounts[0].mountPath: "),
        (
            json!({"spec": {"volumes": [{"emptyDir": null, "hostPath": {"path": "/a/../b"}}]}}),
            "spec.volumes[0].hostPath.path: ",
        ),
        (
            json!({"spec": {"volumes": [{"emptyDir": null, "hostPath": {"path": "/a", "type": "Dir"}}]}}),
            "spec.volumes[0].hostPath.type: \"Dir\" is not one of",
        ),
        (
            container(json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0}})),
            "spec.containers[0].securityContext.runAsNonRoot: ",
        ),
        (
            container(json!({"securityContext": {"privileged": true, "allowPrivilegeEscalation": false}})),
            "spec.containers[0].securityContext.allowPrivilegeEscalation: ",
        ),
        (
            json!({"spec": {"securityContext": {"seccompProfile": {"type": "Localhost"}}}}),
            "spec.securityContext.seccompProfile.localhostProfile: required",
        ),
        (
            json!({"spec": {"hostNetwork": true, "securityContext": {"sysctls": [{"name": "net.core.x", "value": "1"}]}}}),
            "spec.securityContext.sysctls[0].name: ",
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
