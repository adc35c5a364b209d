#![allow(clippy::unwrap_used)]

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::json;

use crate::pod::default::*;

fn defaulted(spec: serde_json::Value) -> PodSpec {
    let mut pod: Pod = serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": spec})).unwrap();
    default(&mut pod);
    pod.spec.unwrap()
}

#[test]
fn the_pull_policy_follows_the_tag() {
    let digest = format!("busybox@sha256:{}", "0".repeat(64));
    let tag_and_digest = format!("busybox:latest@sha256:{}", "0".repeat(64));
    for (image, policy) in [
        ("busybox", "Always"),
        ("busybox:latest", "Always"),
        ("busybox:1.36", "IfNotPresent"),
        ("localhost:5000/busybox", "Always"),
        ("localhost:5000/busybox:1", "IfNotPresent"),
        (&digest, "IfNotPresent"),
        (&tag_and_digest, "Always"),
        ("No Image", "IfNotPresent"),
    ] {
        let spec = defaulted(json!({"containers": [{"name": "a", "image": image}]}));
        assert_eq!(spec.containers[0].image_pull_policy.as_deref(), Some(policy), "{image}");
    }
}

#[test]
fn absent_fields_get_defaults_and_present_ones_are_kept() {
    let spec = defaulted(json!({
        "restartPolicy": "Never",
        "hostNetwork": true,
        "containers": [{
            "name": "a", "image": "a:1", "ports": [{"containerPort": 80}],
            "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}}
        }],
        "volumes": [{"name": "v"}, {"name": "h", "hostPath": {"path": "/x"}}]
    }));
    assert_eq!((spec.restart_policy.as_deref(), spec.dns_policy.as_deref()), (Some("Never"), Some("ClusterFirst")));
    assert_eq!(spec.termination_grace_period_seconds, Some(30));
    let container = &spec.containers[0];
    let port = &container.ports.as_ref().unwrap()[0];
    assert_eq!((port.protocol.as_deref(), port.host_port), (Some("TCP"), Some(80)));
    let requests = container.resources.as_ref().unwrap().requests.as_ref().unwrap();
    assert_eq!((requests["cpu"].0.as_str(), requests["memory"].0.as_str()), ("500m", "1Gi"));
    let volumes = spec.volumes.unwrap();
    assert!(volumes[0].empty_dir.is_some());
    assert_eq!(volumes[1].host_path.as_ref().unwrap().type_.as_deref(), Some(""));
}
