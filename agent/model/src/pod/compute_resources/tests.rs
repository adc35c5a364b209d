#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::fixtures::record_of_spec as record;

#[test]
fn shares_follow_millicores() {
    for (milli, shares) in [
        (-5, 2),
        (0, 2),
        (1, 2),
        (2, 2),
        (100, 102),
        (999, 1_022),
        (1_000, 1_024),
        (256_000, 262_144),
        (i64::MAX, 262_144),
    ] {
        assert_eq!(cpu_shares(milli), shares, "{milli}");
    }
}

#[test]
fn quota_follows_millicores() {
    for (milli, quota) in [
        (0, None),
        (1, Some(1_000)),
        (5, Some(1_000)),
        (10, Some(1_000)),
        (50, Some(5_000)),
        (100, Some(10_000)),
        (1_500, Some(150_000)),
        (10_000, Some(1_000_000)),
    ] {
        assert_eq!(cpu_quota(milli), quota, "{milli}");
    }
}

fn container(name: &str, requests: Value, limits: Value) -> Value {
    json!({"name": name, "resources": {"requests": requests, "limits": limits}})
}

#[test]
fn pods_are_limited_when_all_their_containers_are() {
    let requests = json!({"cpu": "100m", "memory": "100Mi"});
    let limits = json!({"cpu": "200m", "memory": "200Mi"});
    let none = json!({});
    let mebi = 1 << 20;
    let cases = [
        ("best effort", json!({"containers": [container("c", none.clone(), none.clone())]}), (2, None, None)),
        ("requests alone", json!({"containers": [container("c", requests.clone(), none.clone())]}), (102, None, None)),
        (
            "one container",
            json!({"containers": [container("c", requests.clone(), limits.clone())]}),
            (102, Some(20_000), Some(200 * mebi)),
        ),
        (
            "one of two limited",
            json!({"containers": [container("a", requests.clone(), limits.clone()), container("b", requests.clone(), none.clone())]}),
            (204, None, None),
        ),
        (
            "memory limited in both",
            json!({"containers": [container("a", requests.clone(), limits.clone()), container("b", requests.clone(), json!({"memory": "1Gi"}))]}),
            (204, None, Some(1_224 * mebi)),
        ),
        (
            "guaranteed",
            json!({"containers": [container("c", limits.clone(), limits.clone())]}),
            (204, Some(20_000), Some(200 * mebi)),
        ),
        (
            "an init container that needs more",
            json!({"containers": [container("c", requests.clone(), limits.clone())],
                   "initContainers": [container("i", json!({"cpu": "1"}), json!({"cpu": "2", "memory": "50Mi"}))]}),
            (1_024, Some(200_000), Some(200 * mebi)),
        ),
        (
            "an init container without limits",
            json!({"containers": [container("c", requests.clone(), limits.clone())], "initContainers": [container("i", none.clone(), none.clone())]}),
            (102, None, None),
        ),
        (
            "overhead",
            json!({"containers": [container("c", requests.clone(), limits.clone())], "overhead": {"cpu": "50m", "memory": "1Mi"}}),
            (153, Some(25_000), Some(201 * mebi)),
        ),
        (
            "pod level",
            json!({"containers": [container("c", none.clone(), none.clone())],
                   "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "memory": "1Gi"}}}),
            (1_024, Some(200_000), Some(1_024 * mebi)),
        ),
    ];
    for (case, spec, (cpu_shares, cpu_quota, memory)) in cases {
        let made = pod_limits(&serde_json::from_value(spec).unwrap());
        assert_eq!(made, CgroupLimits { cpu_shares, cpu_quota, memory }, "{case}");
    }
}

#[test]
fn sidecars_run_together_with_all_later_containers() {
    let sidecar = |cpu: &str| json!({"name": cpu, "restartPolicy": "Always", "resources": {"requests": {"cpu": cpu}}});
    let plain = |cpu: &str| json!({"name": cpu, "resources": {"requests": {"cpu": cpu}}});
    let cases = [
        (json!([sidecar("100m"), plain("300m")]), json!([plain("200m")]), 400),
        (json!([plain("300m"), sidecar("100m")]), json!([plain("250m")]), 350),
        (json!([sidecar("1"), sidecar("1")]), json!([plain("1")]), 3_000),
        (json!([]), json!([plain("1"), plain("500m")]), 1_500),
    ];
    for (init, regular, milli) in cases {
        let spec = json!({"initContainers": init, "containers": regular});
        assert_eq!(pod_cpu_request(&serde_json::from_value(spec.clone()).unwrap()), milli, "{spec}");
    }
}

#[test]
fn a_container_without_limits_has_those_of_its_pod() {
    let mebi = 1 << 20;
    let resources = json!({ "requests": { "cpu": "20m" }, "limits": { "cpu": "200m", "memory": "40Mi" } });
    let cases = [
        (json!(null), json!({}), (2, None, None)),
        (json!({ "limits": { "cpu": "600m", "memory": "100Mi" } }), json!({}), (614, Some(60_000), Some(100 * mebi))),
        (
            json!({ "limits": { "cpu": "600m", "memory": "100Mi" } }),
            resources.clone(),
            (20, Some(20_000), Some(40 * mebi)),
        ),
        (json!({ "requests": { "cpu": "600m" } }), json!({}), (2, None, None)),
        (json!({ "limits": { "cpu": "1" } }), json!({ "requests": { "cpu": "100m" } }), (102, Some(100_000), None)),
        (json!({ "limits": { "cpu": "1" } }), json!({ "requests": { "cpu": "0" } }), (2, Some(100_000), None)),
    ];
    for (of_pod, of_container, (cpu_shares, cpu_quota, memory)) in cases {
        let pod = record(json!({ "resources": of_pod, "containers": [{ "name": "c", "resources": of_container }] }));
        let limits = container_limits(pod.spec(), &pod.spec().containers[0]);
        assert_eq!(limits, CgroupLimits { cpu_shares, cpu_quota, memory }, "{of_pod} {of_container}");
    }
}

#[test]
fn a_pods_resources_are_what_its_containers_need_together() {
    let amounts = |cpu: &str, memory: &str| json!({ "cpu": cpu, "memory": memory });
    let containers = json!([
        container("a", amounts("60m", "64Mi"), amounts("60m", "64Mi")),
        container("b", json!({ "cpu": "10m" }), json!({}))
    ]);
    let totals_of = |spec: Value| {
        let totals = pod_resources(record(spec).spec());
        (serde_json::to_value(totals.requests).unwrap(), serde_json::to_value(totals.limits).unwrap())
    };
    let spec = json!({ "containers": containers, "overhead": amounts("10m", "32Mi") });
    assert_eq!(totals_of(spec), (amounts("80m", "96Mi"), amounts("70m", "96Mi")));
    let of_pod = json!({ "requests": { "cpu": "200m" }, "limits": { "cpu": "1", "memory": "1Gi" } });
    let spec = json!({ "containers": containers, "resources": of_pod });
    assert_eq!(totals_of(spec), (amounts("200m", "64Mi"), amounts("1", "1Gi")));
    let parts_of_a_byte = json!({ "requests": { "cpu": "1500u", "memory": "25m" } });
    let spec = json!({ "containers": [{ "name": "a" }], "resources": parts_of_a_byte });
    assert_eq!(totals_of(spec).0, parts_of_a_byte["requests"]);
    assert_eq!(totals_of(json!({ "containers": [{ "name": "a" }] })), (Value::Null, Value::Null));
}
