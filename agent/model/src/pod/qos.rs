//! A pod's quality-of-service class, from its requests and limits (kubelet's `ComputePodQOS`).

use std::collections::BTreeMap;
use std::fmt;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::pod::quantity::{Amount, parse};

pub const CPU: &str = "cpu";
pub const MEMORY: &str = "memory";
/// The resources that have their own cgroup controller.
const RESOURCES: [&str; 2] = [CPU, MEMORY];

/// An amount of a list; zero if absent or not a quantity, which validation has already rejected.
pub fn amount(list: Option<&BTreeMap<String, Quantity>>, name: &str) -> Amount {
    list.and_then(|list| list.get(name)).and_then(|quantity| parse(&quantity.0).ok()).unwrap_or_default()
}

/// Kubernetes' three classes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QosClass {
    /// Every container has CPU and memory limits, and its requests equal them.
    Guaranteed,
    /// Something is requested or limited, but not all.
    Burstable,
    /// Nothing is requested or limited.
    BestEffort,
}

impl QosClass {
    /// The name in `status.qosClass`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Guaranteed => "Guaranteed",
            Self::Burstable => "Burstable",
            Self::BestEffort => "BestEffort",
        }
    }
}

impl fmt::Display for QosClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The class of a pod. Only CPU and memory count, init containers too; `spec.resources`, if set, replaces all of them.
pub fn qos_class(spec: &PodSpec) -> QosClass {
    let all: Vec<Option<&ResourceRequirements>> = match &spec.resources {
        Some(resources) if names_any(resources) => vec![Some(resources)],
        _ => all_containers(spec).map(|container| container.resources.as_ref()).collect(),
    };
    let total = |amount: fn(&ResourceRequirements, &str) -> Amount, name: &str| -> Amount {
        all.iter().flatten().map(|resources| amount(resources, name)).sum()
    };
    let requested = RESOURCES.map(|name| total(request, name));
    let limited = RESOURCES.map(|name| total(limit, name));
    if requested.iter().chain(&limited).all(|amount| amount.is_zero()) {
        return QosClass::BestEffort;
    }
    let all_limited = all.iter().all(|resources| {
        resources.is_some_and(|resources| RESOURCES.iter().all(|name| !limit(resources, name).is_zero()))
    });
    if all_limited && requested == limited { QosClass::Guaranteed } else { QosClass::Burstable }
}

/// Init containers and regular ones.
pub fn all_containers(spec: &PodSpec) -> impl Iterator<Item = &Container> {
    spec.init_containers.iter().flatten().chain(&spec.containers)
}

/// Whether CPU or memory is requested or limited.
pub fn names_any(resources: &ResourceRequirements) -> bool {
    RESOURCES.iter().any(|name| !request(resources, name).is_zero() || !limit(resources, name).is_zero())
}

/// The request for a resource. A limit without a request counts as one (the API's defaulting).
pub fn request(resources: &ResourceRequirements, name: &str) -> Amount {
    match resources.requests.as_ref().and_then(|requests| requests.get(name)) {
        Some(_) => amount(resources.requests.as_ref(), name),
        None => limit(resources, name),
    }
}

/// The limit of a resource; zero means no limit.
pub fn limit(resources: &ResourceRequirements, name: &str) -> Amount {
    amount(resources.limits.as_ref(), name)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use crate::pod::qos::*;

    fn spec(json: serde_json::Value) -> PodSpec {
        serde_json::from_value(json).unwrap()
    }

    fn container(requests: &[(&str, &str)], limits: &[(&str, &str)]) -> serde_json::Value {
        let map = |pairs: &[(&str, &str)]| -> serde_json::Map<String, serde_json::Value> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), serde_json::Value::from(*value))).collect()
        };
        serde_json::json!({"name": "c", "resources": {"requests": map(requests), "limits": map(limits)}})
    }

    #[test]
    fn classes_follow_requests_and_limits() {
        let full = [("cpu", "100m"), ("memory", "64Mi")];
        let none: [(&str, &str); 0] = [];
        let cases = [
            ("all limits equal requests", vec![container(&full, &full)], QosClass::Guaranteed),
            ("limits alone default the requests", vec![container(&none, &full)], QosClass::Guaranteed),
            (
                "equal in other words",
                vec![container(&[("cpu", "0.1"), ("memory", "65536Ki")], &full)],
                QosClass::Guaranteed,
            ),
            ("nothing", vec![container(&none, &none)], QosClass::BestEffort),
            ("zeros", vec![container(&[("cpu", "0")], &[("memory", "0")])], QosClass::BestEffort),
            ("other resources", vec![container(&none, &[("ephemeral-storage", "1Gi")])], QosClass::BestEffort),
            ("one container without", vec![container(&full, &full), container(&none, &none)], QosClass::Burstable),
            ("requests alone", vec![container(&full, &none)], QosClass::Burstable),
            ("memory alone", vec![container(&none, &[("memory", "1Mi")])], QosClass::Burstable),
            ("request below limit", vec![container(&[("cpu", "50m"), ("memory", "64Mi")], &full)], QosClass::Burstable),
        ];
        for (case, containers, class) in cases {
            assert_eq!(qos_class(&spec(serde_json::json!({"containers": containers}))), class, "{case}");
        }
    }

    #[test]
    fn init_containers_count() {
        let full = [("cpu", "1"), ("memory", "1Gi")];
        let pod = serde_json::json!({"containers": [container(&full, &full)], "initContainers": [container(&[], &[])]});
        assert_eq!(qos_class(&spec(pod)), QosClass::Burstable);
    }

    #[test]
    fn pod_level_resources_replace_those_of_containers() {
        let limits = serde_json::json!({"cpu": "1", "memory": "1Gi"});
        let pod = serde_json::json!({"containers": [container(&[], &[])], "resources": {"limits": limits}});
        assert_eq!(qos_class(&spec(pod)), QosClass::Guaranteed);
    }
}
