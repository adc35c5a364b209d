//! The devices of the node that a pod asks for: extended resources, as in `limits: {example.com/modem: 1}`.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};

use super::qos::all_containers;
use super::quantity;

/// Whether `name` is that of an extended resource: a name with a domain that is not Kubernetes' own.
pub fn is_device(name: &str) -> bool {
    name.contains('/') && !name.contains("kubernetes.io/")
}

/// The devices that the container asks for, and how many of each; at least one.
pub fn devices(container: &Container) -> impl Iterator<Item = (&str, i64)> {
    let limits = container.resources.iter().flat_map(|resources| resources.limits.iter().flatten());
    limits.filter(|(name, _)| is_device(name)).filter_map(|(name, amount)| {
        let count = quantity::parse(&amount.0).ok()?.units();
        (count > 0).then_some((name.as_str(), count))
    })
}

/// The devices that the pod needs at once, and how many of each: init containers run one by one, before the others.
pub fn pod_devices(spec: &PodSpec) -> BTreeMap<&str, i64> {
    let mut needed = BTreeMap::new();
    for (name, count) in spec.containers.iter().flat_map(devices) {
        let sum = needed.entry(name).or_insert(0_i64);
        *sum = sum.saturating_add(count);
    }
    for (name, count) in all_containers(spec).flat_map(devices) {
        let most = needed.entry(name).or_insert(count);
        *most = count.max(*most);
    }
    needed
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
}
