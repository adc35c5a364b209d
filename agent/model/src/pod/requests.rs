//! What a pod requests of the resources that a node has a certain amount of.

use std::ops::{Index, IndexMut};

use k8s_openapi::api::core::v1::PodSpec;

use super::compute_resources::pod_request;
use super::qos::{CPU, MEMORY};
use super::quantity::Amount;

/// The name of the disk space of volumes, logs and writable layers.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// A resource that pods share, in the order in which kubelet checks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Processor time.
    Cpu,
    /// Memory.
    Memory,
    /// Disk space.
    EphemeralStorage,
}

impl Resource {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Cpu, Self::Memory, Self::EphemeralStorage];

    /// Kubernetes' name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => CPU,
            Self::Memory => MEMORY,
            Self::EphemeralStorage => EPHEMERAL_STORAGE,
        }
    }

    /// kubelet's reason for a pod that needs more of it than is left.
    pub fn out_of(self) -> &'static str {
        match self {
            Self::Cpu => "OutOfcpu",
            Self::Memory => "OutOfmemory",
            Self::EphemeralStorage => "OutOfephemeral-storage",
        }
    }

    /// The number in kubelet's messages: millicores, bytes.
    pub fn number(self, amount: Amount) -> i64 {
        match self {
            Self::Cpu => amount.milli(),
            Self::Memory | Self::EphemeralStorage => amount.units(),
        }
    }
}

/// An amount of each resource.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requests([Amount; 3]);

impl Requests {
    /// What the pod requests at most at one time, with its overhead.
    pub fn of(spec: &PodSpec) -> Self {
        Self(Resource::ALL.map(|resource| pod_request(spec, resource.as_str())))
    }

    /// Both together.
    pub fn plus(self, other: Self) -> Self {
        self.combined(other, |own, other| own + other)
    }

    /// What is left of these without `other`; never less than nothing.
    pub fn without(self, other: Self) -> Self {
        self.combined(other, |own, other| (own - other).max(Amount::ZERO))
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.0.iter().all(|amount| amount.is_zero())
    }

    fn combined(mut self, other: Self, combine: impl Fn(Amount, Amount) -> Amount) -> Self {
        for resource in Resource::ALL {
            self[resource] = combine(self[resource], other[resource]);
        }
        self
    }
}

impl Index<Resource> for Requests {
    type Output = Amount;

    fn index(&self, resource: Resource) -> &Amount {
        &self.0[resource as usize]
    }
}

impl IndexMut<Resource> for Requests {
    fn index_mut(&mut self, resource: Resource) -> &mut Amount {
        &mut self.0[resource as usize]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::pod::quantity::parse;

    #[test]
    fn a_pod_requests_what_it_needs_at_one_time() {
        let container =
            |requests: serde_json::Value| serde_json::json!({"name": "a", "resources": {"requests": requests}});
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [container(serde_json::json!({"cpu": "2", "ephemeral-storage": "1Gi"}))],
            "containers": [
                container(serde_json::json!({"cpu": "250m", "memory": "64Mi"})),
                {"name": "b", "resources": {"limits": {"memory": "64Mi"}}},
            ],
            "overhead": {"cpu": "100m"},
        }))
        .unwrap();
        let requests = Requests::of(&spec);
        let numbers = Resource::ALL.map(|resource| resource.number(requests[resource]));
        assert_eq!(numbers, [2_100, 128 << 20, 1 << 30]);
        assert!(Requests::of(&PodSpec::default()).is_zero());
        let mut less = Requests::default();
        less[Resource::Cpu] = parse("3").unwrap();
        assert!(requests.without(less)[Resource::Cpu].is_zero() && !requests.without(less).is_zero());
        assert_eq!(requests.without(less).plus(less)[Resource::Cpu], less[Resource::Cpu]);
    }
}
