//! The devices of the node that a pod requests: extended resources, as in `limits: {example.com/modem: 1}`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::name::is_qualified_name;
use super::{Role, quantity};

/// Whether `name` is an extended resource: a name with a domain that is not Kubernetes' own.
pub fn is_device(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// Whether a plugin may register it: [`is_device`], and a valid name in Kubernetes.
pub fn is_extended_resource(name: &str) -> bool {
    is_device(name) && !name.starts_with("requests.") && is_qualified_name(name)
}

/// The devices that the container requests, and how many of each, at least one.
pub fn devices(container: &Container) -> impl Iterator<Item = (&str, i64)> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    limits.filter(|(name, _)| is_device(name)).filter_map(|(name, amount)| {
        let count = quantity::parse(&amount.0).ok()?.units();
        (count > 0).then_some((name.as_str(), count))
    })
}

/// The devices that the pod needs at the same time, and how many of each. Init containers run one by one, beside the
/// sidecars before them, and their devices are passed on to the containers after them.
pub fn pod_devices(spec: &PodSpec) -> BTreeMap<&str, i64> {
    let (mut lasting, mut most) = (BTreeMap::new(), BTreeMap::new());
    let add = |needed: &mut BTreeMap<_, i64>, name, count| {
        let sum: &mut i64 = needed.entry(name).or_insert(0);
        *sum = sum.saturating_add(count);
        *sum
    };
    for container in spec.init_containers.iter().flatten() {
        for (name, count) in devices(container) {
            let at_once = match Role::of_init(container) {
                Role::Sidecar => add(&mut lasting, name, count),
                _ => count.saturating_add(lasting.get(name).copied().unwrap_or(0)),
            };
            let most = most.entry(name).or_insert(at_once);
            *most = at_once.max(*most);
        }
    }
    for (name, count) in spec.containers.iter().flat_map(devices) {
        add(&mut lasting, name, count);
    }
    for (name, count) in lasting {
        let most = most.entry(name).or_insert(count);
        *most = count.max(*most);
    }
    most
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_extended_resources_and_init_containers_give_theirs_on() {
        let limits = |limits: serde_json::Value| serde_json::json!({"name": "c", "resources": {"limits": limits}});
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [limits(serde_json::json!({"example.com/a": "3"})), limits(serde_json::json!({"example.com/b": 1}))],
            "containers": [
                limits(serde_json::json!({"example.com/a": 1, "cpu": 1, "hugepages-2Mi": "2Mi", "example.com/none": 0})),
                limits(serde_json::json!({"example.com/a": "1"})),
            ],
        }))
        .unwrap();
        assert_eq!(pod_devices(&spec), BTreeMap::from([("example.com/a", 3), ("example.com/b", 1)]));
        assert!(!is_device("kubernetes.io/batch") && !is_device("cpu"));
    }

    #[test]
    fn a_sidecar_keeps_its_devices_beside_the_containers_after_it() {
        let container = |name: &str, count: u32, always: bool| serde_json::json!({"name": name, "restartPolicy": always.then_some("Always"), "resources": {"limits": {"x.io/a": count}}});
        let cases = [
            (vec![container("i", 3, false)], vec![container("a", 1, false), container("b", 1, false)], 3),
            (vec![container("i", 1, false)], vec![container("a", 1, false), container("b", 1, false)], 2),
            (vec![container("s", 1, true), container("i", 3, false)], vec![container("a", 1, false)], 4),
            (vec![container("i", 3, false), container("s", 1, true)], vec![container("a", 1, false)], 3),
            (vec![container("s", 1, true)], vec![container("a", 2, false)], 3),
        ];
        for (init, main, count) in cases {
            let spec = serde_json::json!({"initContainers": init, "containers": main});
            let spec: PodSpec = serde_json::from_value(spec).unwrap();
            assert_eq!(pod_devices(&spec), BTreeMap::from([("x.io/a", count)]));
        }
    }
}
