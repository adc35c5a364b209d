//! A container's requests and limits as OCI resources.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Container, PodSpec};
use oci_spec::runtime::{LinuxCpu, LinuxHugepageLimit, LinuxMemory, LinuxResources};
use serde_json::Value;

use super::host::swap_limit;

use limpet_model::cpu_set::CpuSet;
use limpet_model::node::NodeFacts;
use limpet_model::pod::compute_resources;
use limpet_model::pod::huge_pages::{container_limits, kernel_name};
use limpet_model::pod::swap::{SwapBehavior, limited_swap};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerCpus {
    pub cpus: CpuSet,
    /// Whether no other container runs on them.
    pub exclusive: bool,
}

/// The limits that a resize sets on a running container: CPU, memory, and the share of swap that follows from the
/// memory request. Reads a small file.
pub fn resized(pod: &PodSpec, container: &Container, node: &NodeFacts, cpus: Option<&ContainerCpus>) -> LinuxResources {
    let mut resources = container_resources(pod, container, node, swap_limit(node.cgroup_v2), cpus);
    if node.swap_behavior == SwapBehavior::NoSwap {
        let kept = node.cgroup_v2.then(|| memory_files(pod, container, node));
        resources.set_unified(kept.filter(|files| !files.is_empty()));
    }
    resources
}

/// The limit of huge pages for each size that the kernel supports: zero for sizes that the container does not
/// request. `None` if the kernel cannot limit them.
pub(super) fn huge_page_limits(
    spec: &PodSpec,
    container: &Container,
    node: &NodeFacts,
) -> Option<Vec<LinuxHugepageLimit>> {
    if !node.limits_huge_pages {
        return None;
    }
    let limits = container_limits(spec, container);
    let limit = |size: &u64| {
        let mut limit = LinuxHugepageLimit::default();
        let bytes = limits.get(size).copied().unwrap_or(0);
        limit.set_page_size(kernel_name(*size)).set_limit(i64::try_from(bytes).unwrap_or(i64::MAX));
        limit
    };
    Some(node.huge_pages.keys().map(limit).collect())
}

/// Replaces CPU and memory in an OCI spec in JSON by those of `resources`.
///
/// # Errors
///
/// The text is not an OCI spec.
pub fn with_resources(spec: &[u8], resources: &LinuxResources) -> Result<Vec<u8>, serde_json::Error> {
    let mut spec: Value = serde_json::from_slice(spec)?;
    let Value::Object(resized) = serde_json::to_value(resources)? else { return serde_json::to_vec(&spec) };
    for (name, value) in resized {
        spec["linux"]["resources"][name] = value;
    }
    serde_json::to_vec(&spec)
}

/// The limits of a container's cgroup. If the kernel can limit `swap`, the container gets the share of the node's
/// `swapBehavior`. On v1 that is none, and needs a memory limit.
pub(super) fn container_resources(
    pod: &PodSpec,
    container: &Container,
    node: &NodeFacts,
    swap: bool,
    cpus: Option<&ContainerCpus>,
) -> LinuxResources {
    let limits = compute_resources::container_limits(pod, container);
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(Some(limits.cpu_shares));
    cpu.set_cpus(cpus.map(|cpus| cpus.cpus.to_string()));
    // Exclusive processors are limit enough.
    let quota = limits.cpu_quota.filter(|_| !cpus.is_some_and(|cpus| cpus.exclusive));
    if let Some((quota, period)) = node.cpu_quotas.scaled(quota) {
        cpu.set_quota(Some(quota)).set_period(Some(period));
    }
    let mut resources = LinuxResources::default();
    resources.set_cpu(Some(cpu));
    if let Some(memory_limit) = limits.memory {
        let mut memory = LinuxMemory::default();
        memory.set_limit(Some(memory_limit));
        if swap && !node.cgroup_v2 {
            memory.set_swap(Some(memory_limit)); // memory and swap together: no swap
        }
        resources.set_memory(Some(memory));
    }
    if node.cgroup_v2 {
        resources.set_unified(Some(unified(pod, container, node, swap)).filter(|files| !files.is_empty()));
    }
    resources
}

/// The memory that is protected for a container, and the usage from which it is throttled.
fn memory_files(pod: &PodSpec, container: &Container, node: &NodeFacts) -> HashMap<String, String> {
    let allocatable = u64::try_from(node.limits.memory.units()).unwrap_or(0);
    let files = node.memory_qos.of_container(pod, container, allocatable, rustix::param::page_size() as u64);
    files.named().map(|(file, bytes)| (file.to_owned(), bytes.to_string())).collect()
}

/// The files of a container's cgroup v2 for which OCI resources have no field.
fn unified(pod: &PodSpec, container: &Container, node: &NodeFacts, swap: bool) -> HashMap<String, String> {
    let mut files = memory_files(pod, container, node);
    if !node.single_process_oom_kill {
        // The OOM killer kills all processes of a container together.
        files.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    if swap {
        let most = match node.swap_behavior {
            SwapBehavior::NoSwap => 0,
            SwapBehavior::LimitedSwap => limited_swap(pod, container, node.memory_capacity, node.swap_capacity),
        };
        files.insert("memory.swap.max".to_owned(), most.to_string());
    }
    files
}
