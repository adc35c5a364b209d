//! A container's requests and limits as OCI resources.

use std::collections::HashMap;

use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use oci_spec::runtime::{LinuxCpu, LinuxMemory, LinuxResources};

use limpet_model::pod::compute_resources::{CPU_PERIOD, cpu_quota, cpu_shares};
use limpet_model::pod::qos::{CPU, MEMORY, limit, request};

/// The limits of a container's cgroup. `swap`: the kernel can limit swap; if so, the container gets none, as with kubelet's
/// `NoSwap`. On v1 that needs a memory limit.
pub(super) fn container_resources(container: &Container, cgroup_v2: bool, swap: bool) -> LinuxResources {
    let empty = ResourceRequirements::default();
    let wanted = container.resources.as_ref().unwrap_or(&empty);
    let mut cpu = LinuxCpu::default();
    cpu.set_shares(Some(cpu_shares(request(wanted, CPU).milli())));
    if let Some(quota) = cpu_quota(limit(wanted, CPU).milli()) {
        cpu.set_quota(Some(quota)).set_period(Some(CPU_PERIOD));
    }
    let mut resources = LinuxResources::default();
    resources.set_cpu(Some(cpu));
    let memory_limit = limit(wanted, MEMORY).units();
    if memory_limit > 0 {
        let mut memory = LinuxMemory::default();
        memory.set_limit(Some(memory_limit));
        if swap && !cgroup_v2 {
            memory.set_swap(Some(memory_limit)); // memory and swap together: no swap
        }
        resources.set_memory(Some(memory));
    }
    if cgroup_v2 {
        // The OOM killer kills all processes of a container together.
        let mut unified = HashMap::from([("memory.oom.group".to_owned(), "1".to_owned())]);
        if swap {
            unified.insert("memory.swap.max".to_owned(), "0".to_owned());
        }
        resources.set_unified(Some(unified));
    }
    resources
}
