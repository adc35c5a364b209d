//! A pod's requests and limits as kernel settings: CPU shares and quota, memory (kubelet's formulas).

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::qos::{CPU, MEMORY, QosClass, all_containers, amount, limit, qos_class, request};
use crate::pod::huge_pages;
use crate::pod::quantity::Amount;
use crate::pod::requests::{EPHEMERAL_STORAGE, is_of_pods};
use crate::pod::totals::{pod_request, together, totals};

/// The minimum and maximum CPU shares of the kernel.
const CPU_SHARES_RANGE: (u64, u64) = (2, 262_144);

/// Length of a CPU quota's period in microseconds.
pub const CPU_PERIOD: u64 = 100_000;

/// The minimum CPU quota in microseconds.
const MIN_QUOTA: i64 = 1_000;

/// How limits of cpu are enforced (`cpuCFSQuota`, `cpuCFSQuotaPeriod`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CpuQuotas {
    /// They are not enforced.
    Off,
    /// By quotas in periods of so many microseconds.
    InPeriods(u64),
}

impl Default for CpuQuotas {
    fn default() -> Self {
        Self::InPeriods(CPU_PERIOD)
    }
}

impl CpuQuotas {
    /// The kernel's quota and its period, both in microseconds, for a quota per [`CPU_PERIOD`]; `None` for no limit.
    pub fn scaled(self, quota: Option<i64>) -> Option<(i64, u64)> {
        let (Self::InPeriods(period), Some(quota)) = (self, quota) else { return None };
        let scaled = i128::from(quota) * i128::from(period) / i128::from(CPU_PERIOD);
        Some((i64::try_from(scaled).unwrap_or(i64::MAX).max(MIN_QUOTA), period))
    }
}

/// CPU shares of a request in millicores: 1,024 per core, between 2 and 262,144.
pub fn cpu_shares(milli_cpu: i64) -> u64 {
    let shares = u64::try_from(milli_cpu).unwrap_or(0).saturating_mul(1_024) / 1_000;
    shares.clamp(CPU_SHARES_RANGE.0, CPU_SHARES_RANGE.1)
}

/// CPU quota in microseconds per [`CPU_PERIOD`] of a limit in millicores; `None` without a limit.
pub fn cpu_quota(milli_cpu: i64) -> Option<i64> {
    (milli_cpu > 0).then(|| (milli_cpu.saturating_mul(100_000) / 1_000).max(MIN_QUOTA))
}

/// The limits of the cgroup of a pod or of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CgroupLimits {
    pub cpu_shares: u64,
    /// CPU quota in microseconds per [`CPU_PERIOD`]; `None` for no limit.
    pub cpu_quota: Option<i64>,
    /// Bytes of memory; `None` for no limit.
    pub memory: Option<i64>,
}

impl CgroupLimits {
    /// Those of a pod that requests and limits nothing.
    pub const BEST_EFFORT: Self = Self { cpu_shares: CPU_SHARES_RANGE.0, cpu_quota: None, memory: None };

    /// The smallest limits that allow both these and `other`, with the CPU shares of `other`, because shares are a
    /// weight and do not restrict the cgroups below.
    pub fn raised_to(&self, other: &Self) -> Self {
        let higher = |a: Option<i64>, b: Option<i64>| Some(a?.max(b?));
        Self {
            cpu_shares: other.cpu_shares,
            cpu_quota: higher(self.cpu_quota, other.cpu_quota),
            memory: higher(self.memory, other.memory),
        }
    }

    /// The largest limits that both these and `other` allow, with the CPU shares of `other`.
    pub fn lowered_to(&self, other: &Self) -> Self {
        let lower = |a: Option<i64>, b: Option<i64>| a.into_iter().chain(b).min();
        Self {
            cpu_shares: other.cpu_shares,
            cpu_quota: lower(self.cpu_quota, other.cpu_quota),
            memory: lower(self.memory, other.memory),
        }
    }
}

/// A pod's limits (kubelet's `ResourceConfigForPod`): the pod has a limit if every container has one.
pub fn pod_limits(spec: &PodSpec) -> CgroupLimits {
    if qos_class(spec) == QosClass::BestEffort {
        return CgroupLimits::BEST_EFFORT;
    }
    CgroupLimits {
        cpu_shares: cpu_shares(pod_request(spec, CPU).milli()),
        cpu_quota: pod_limit(spec, CPU).and_then(|amount| cpu_quota(amount.milli())),
        memory: pod_limit(spec, MEMORY).map(Amount::units),
    }
}

/// What limits a container's use of a resource: its own limit, or else that of its pod (kubelet's `getCPULimit` and
/// `getMemoryLimit`). Zero means no limit.
pub fn effective_limit(pod: &PodSpec, container: &Container, name: &str) -> Amount {
    let of_container = container.resources.as_ref().map(|resources| limit(resources, name)).unwrap_or_default();
    match &pod.resources {
        Some(resources) if of_container.is_zero() => limit(resources, name),
        _ => of_container,
    }
}

/// The limits of a container's cgroup (kubelet's `generateLinuxContainerResources`). Without a request, its CPU
/// shares follow from its limit.
pub fn container_limits(pod: &PodSpec, container: &Container) -> CgroupLimits {
    let cpu = effective_limit(pod, container, CPU);
    let requested = container.resources.as_ref().and_then(|resources| resources.requests.as_ref()?.get(CPU));
    let request = requested.map_or(cpu, |_| container.resources.iter().map(|resources| request(resources, CPU)).sum());
    CgroupLimits {
        cpu_shares: cpu_shares(request.milli()),
        cpu_quota: cpu_quota(cpu.milli()),
        memory: Some(effective_limit(pod, container, MEMORY).units()).filter(|memory| *memory > 0),
    }
}

/// The most that a pod requests and is limited to at one time, with its overhead (kubelet's `PodRequests` and
/// `PodLimits`). A container without a limit does not count for the limits.
pub fn pod_resources(spec: &PodSpec) -> ResourceRequirements {
    let of_pod = spec.resources.as_ref();
    let overhead = |name: &str| amount(spec.overhead.as_ref(), name);
    let mut requests = totals(spec, |resources| resources.requests.as_ref());
    let mut limits = totals(spec, |resources| resources.limits.as_ref());
    replace_with(&mut requests, of_pod.and_then(|of_pod| of_pod.requests.as_ref()));
    replace_with(&mut limits, of_pod.and_then(|of_pod| of_pod.limits.as_ref()));
    for name in spec.overhead.iter().flat_map(BTreeMap::keys) {
        let requested = requests.entry(name.clone()).or_default();
        *requested = *requested + overhead(name);
    }
    limits.iter_mut().filter(|(_, limit)| !limit.is_zero()).for_each(|(name, limit)| *limit = *limit + overhead(name));
    ResourceRequirements { requests: listed(requests), limits: listed(limits), claims: None }
}

fn replace_with(amounts: &mut BTreeMap<String, Amount>, written: Option<&BTreeMap<String, Quantity>>) {
    let of_pods = written.into_iter().flatten().filter(|(name, _)| is_of_pods(name));
    amounts.extend(of_pods.map(|(name, _)| (name.clone(), amount(written, name))));
}

fn listed(amounts: BTreeMap<String, Amount>) -> Option<BTreeMap<String, Quantity>> {
    let text = |name: &str, amount: Amount| {
        let is_binary = name == EPHEMERAL_STORAGE || is_of_pods(name) && name != CPU;
        // Fractions of a byte, such as a manifest's `memory: 10m`, stay as they are.
        let bytes = u64::try_from(amount.units()).ok().filter(|bytes| Amount::from_units(*bytes) == amount);
        bytes.filter(|_| is_binary).map_or_else(|| amount.to_string(), huge_pages::binary)
    };
    let amounts: BTreeMap<_, _> =
        amounts.into_iter().map(|(name, amount)| (name.clone(), Quantity(text(&name, amount)))).collect();
    Some(amounts).filter(|amounts| !amounts.is_empty())
}

/// Total millicores a pod requests.
pub fn pod_cpu_request(spec: &PodSpec) -> i64 {
    pod_request(spec, CPU).milli()
}

fn pod_limit(spec: &PodSpec, name: &str) -> Option<Amount> {
    let of_pod = spec.resources.as_ref().map(|resources| limit(resources, name)).unwrap_or_default();
    let declared =
        all_containers(spec).all(|c| c.resources.as_ref().is_some_and(|resources| !limit(resources, name).is_zero()));
    let needed = match (of_pod.is_zero(), declared) {
        (false, _) => of_pod,
        (true, true) => together(spec, |resources| limit(resources, name)),
        (true, false) => return None,
    };
    Some(needed + amount(spec.overhead.as_ref(), name))
}

#[cfg(test)]
mod tests;
