//! What a pod requests of the resources of which a node has a limited amount.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::{Index, IndexMut};

use k8s_openapi::api::core::v1::PodSpec;

use super::huge_pages::{self, HUGE_PAGES};
use super::qos::{CPU, MEMORY};
use super::quantity::Amount;
use super::totals::pod_request;

/// The name of the resource "number of pods on the node".
pub const PODS: &str = "pods";
/// The name of the disk space of volumes, logs and writable layers.
pub const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// Whether a pod can have this resource in `spec.resources`.
pub(super) fn is_of_pods(name: &str) -> bool {
    name == CPU || name == MEMORY || name.starts_with(HUGE_PAGES)
}

/// A resource that pods share, in the order in which kubelet checks them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resource {
    /// Places among the node's pods.
    Pods,
    /// Processor time.
    Cpu,
    Memory,
    /// Disk space.
    EphemeralStorage,
    /// Huge pages of so many bytes each.
    HugePages(u64),
}

impl Resource {
    /// Those that a container may request on every node.
    pub const BASIC: [Self; 3] = [Self::Cpu, Self::Memory, Self::EphemeralStorage];

    /// Kubernetes' name.
    pub fn name(self) -> Cow<'static, str> {
        match self {
            Self::Pods => PODS.into(),
            Self::Cpu => CPU.into(),
            Self::Memory => MEMORY.into(),
            Self::EphemeralStorage => EPHEMERAL_STORAGE.into(),
            Self::HugePages(size) => huge_pages::resource_name(size).into(),
        }
    }

    /// kubelet's reason for refusing a pod that needs more of it than is left.
    pub fn out_of(self) -> String {
        format!("OutOf{}", self.name())
    }

    /// The number in kubelet's messages: millicores, bytes.
    pub fn number(self, amount: Amount) -> i64 {
        match self {
            Self::Cpu => amount.milli(),
            Self::Pods | Self::Memory | Self::EphemeralStorage | Self::HugePages(_) => amount.units(),
        }
    }
}

/// An amount of each resource.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Requests {
    /// No spec has it; the caller that counts pods sets it.
    pods: Amount,
    basic: [Amount; 3],
    /// By page size in bytes.
    huge_pages: BTreeMap<u64, Amount>,
}

impl Requests {
    /// The most that the pod requests at one time, with its overhead.
    pub fn from_spec(spec: &PodSpec) -> Self {
        let basic = Resource::BASIC.map(|resource| pod_request(spec, &resource.name()));
        Self { pods: Amount::ZERO, basic, huge_pages: huge_pages::requests(spec) }
    }

    /// The sum of both.
    pub fn plus(self, other: &Self) -> Self {
        self.combined(other, |left, other| left + other)
    }

    /// What is left of these without `other`; never negative.
    pub fn without(self, other: &Self) -> Self {
        self.combined(other, |left, other| (left - other).max(Amount::ZERO))
    }

    /// Whether it is nothing.
    pub fn is_zero(&self) -> bool {
        self.resources().all(|resource| self[resource].is_zero())
    }

    /// The resources of which it has an amount, even zero; the number of pods only if it is not zero.
    pub fn resources(&self) -> impl Iterator<Item = Resource> + use<> {
        let sizes: Vec<u64> = self.huge_pages.keys().copied().collect();
        let pods = (!self.pods.is_zero()).then_some(Resource::Pods);
        pods.into_iter().chain(Resource::BASIC).chain(sizes.into_iter().map(Resource::HugePages))
    }

    fn combined(mut self, other: &Self, combine: impl Fn(Amount, Amount) -> Amount) -> Self {
        for resource in other.resources() {
            self[resource] = combine(self[resource], other[resource]);
        }
        self
    }
}

impl Index<Resource> for Requests {
    type Output = Amount;

    fn index(&self, resource: Resource) -> &Amount {
        match resource {
            Resource::Pods => &self.pods,
            Resource::Cpu => &self.basic[0],
            Resource::Memory => &self.basic[1],
            Resource::EphemeralStorage => &self.basic[2],
            Resource::HugePages(size) => self.huge_pages.get(&size).unwrap_or(&Amount::ZERO),
        }
    }
}

impl IndexMut<Resource> for Requests {
    fn index_mut(&mut self, resource: Resource) -> &mut Amount {
        match resource {
            Resource::Pods => &mut self.pods,
            Resource::Cpu => &mut self.basic[0],
            Resource::Memory => &mut self.basic[1],
            Resource::EphemeralStorage => &mut self.basic[2],
            Resource::HugePages(size) => self.huge_pages.entry(size).or_default(),
        }
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
        let requests = Requests::from_spec(&spec);
        let numbers = Resource::BASIC.map(|resource| resource.number(requests[resource]));
        assert_eq!(numbers, [2_100, 128 << 20, 1 << 30]);
        assert!(Requests::from_spec(&PodSpec::default()).is_zero());
        let mut less = Requests::default();
        less[Resource::Cpu] = parse("3").unwrap();
        let left = requests.clone().without(&less);
        assert!(left[Resource::Cpu].is_zero() && !left.is_zero());
        assert_eq!(left.plus(&less)[Resource::Cpu], less[Resource::Cpu]);
        let huge = Resource::HugePages(2 << 20);
        assert_eq!(
            (requests[huge], &*huge.name(), huge.out_of()),
            (Amount::ZERO, "hugepages-2Mi", "OutOfhugepages-2Mi".to_owned())
        );
        less[Resource::Pods] = Amount::from_units(2);
        assert_eq!(
            less.resources().next().map(Resource::out_of).as_deref(),
            Some("OutOfpods"),
            "the first, as with kubelet"
        );
        assert_eq!(requests.clone().plus(&less)[Resource::Pods], Amount::from_units(2));
        less[huge] = parse("4Mi").unwrap();
        assert_eq!(requests.clone().plus(&less)[huge], less[huge]);
        assert_eq!(requests.without(&less).resources().last(), Some(huge), "an amount of zero is one");
    }
}
