//! CRI's statistics of pods and containers: pure functions of one measurement.

use limpet_core::status::observed::ObservedPods;
use limpet_host::cgroup::usage::GroupUsage;
use limpet_host::proc_files::{Interface, Stall, Stalls};
use limpet_node_api::runtime as cri;

use super::container::Run;
use super::identity::nanoseconds;
use super::sandbox;
use limpet_telemetry::usage::rates::NanoCores;
use limpet_telemetry::usage::{NodeUsage, PodUsage};

/// The interface whose counters are the pod's own, as in kubelet's Summary.
const DEFAULT_INTERFACE: &str = "eth0";

/// The statistics of running pods.
pub(super) fn pods(observed: &ObservedPods, usage: &NodeUsage, rates: &NanoCores) -> Vec<cri::PodSandboxStats> {
    usage.pods.iter().map(|pod| of_pod(observed, pod, rates)).collect()
}

/// The statistics of running containers, with their pods' ids.
pub(super) fn containers(observed: &ObservedPods, usage: &NodeUsage, rates: &NanoCores) -> Vec<cri::ContainerStats> {
    usage.pods.iter().flat_map(|pod| of_containers(observed, pod, rates)).collect()
}

/// Whether a pod's statistics pass a filter.
pub(super) fn lets_pod(filter: Option<&cri::PodSandboxStatsFilter>, stats: &cri::PodSandboxStats) -> bool {
    let (Some(filter), Some(attributes)) = (filter, &stats.attributes) else { return true };
    attributes.id.starts_with(&filter.id)
        && filter.label_selector.iter().all(|(key, value)| attributes.labels.get(key) == Some(value))
}

fn of_pod(observed: &ObservedPods, pod: &PodUsage, rates: &NanoCores) -> cri::PodSandboxStats {
    let group = pod.group.as_ref();
    let processes: Option<u64> = pod.containers.iter().map(|container| container.group.processes).sum();
    let taken = group.map_or(0, taken);
    let linux = cri::LinuxPodSandboxStats {
        cpu: group.and_then(|group| cpu(group, rates)),
        memory: group.and_then(memory),
        network: pod.interfaces.as_deref().map(|interfaces| network(interfaces, taken)),
        process: processes.map(|count| cri::ProcessUsage { timestamp: taken, process_count: value(count) }),
        containers: of_containers(observed, pod, rates).collect(),
        io: group.and_then(io),
    };
    cri::PodSandboxStats { attributes: Some(sandbox::attributes(&pod.record)), linux: Some(linux), windows: None }
}

fn of_containers<'a>(
    observed: &'a ObservedPods,
    pod: &'a PodUsage,
    rates: &'a NanoCores,
) -> impl Iterator<Item = cri::ContainerStats> + use<'a> {
    let runs = observed.pods.get(&pod.record.key).map(|pod| Run::all(pod)).unwrap_or_default();
    pod.containers.iter().filter_map(move |container| {
        let run = runs.iter().find(|run| run.id == container.id)?;
        let group = &container.group;
        Some(cri::ContainerStats {
            attributes: Some(run.attributes()),
            cpu: cpu(group, rates),
            memory: memory(group),
            // Measuring it would mean walking the layer's directory.
            writable_layer: None,
            swap: swap(group),
            io: io(group),
        })
    })
}

fn cpu(group: &GroupUsage, rates: &NanoCores) -> Option<cri::CpuUsage> {
    let cpu = group.cpu.as_ref()?;
    Some(cri::CpuUsage {
        timestamp: taken(group),
        usage_core_nano_seconds: value(cpu.total),
        usage_nano_cores: rates.get(&group.path).copied().and_then(value),
        psi: group.pressure.cpu.map(psi),
    })
}

fn memory(group: &GroupUsage) -> Option<cri::MemoryUsage> {
    let memory = group.memory.as_ref()?;
    Some(cri::MemoryUsage {
        timestamp: taken(group),
        working_set_bytes: value(memory.working_set),
        available_bytes: memory.limit.and_then(|limit| value(limit.saturating_sub(memory.working_set))),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.rss),
        page_faults: value(memory.page_faults),
        major_page_faults: value(memory.major_page_faults),
        psi: group.pressure.memory.map(psi),
    })
}

fn swap(group: &GroupUsage) -> Option<cri::SwapUsage> {
    let swap = group.swap?;
    Some(cri::SwapUsage {
        timestamp: taken(group),
        swap_available_bytes: swap.limit.and_then(|limit| value(limit.saturating_sub(swap.usage))),
        swap_usage_bytes: value(swap.usage),
    })
}

fn io(group: &GroupUsage) -> Option<cri::IoUsage> {
    Some(cri::IoUsage { timestamp: taken(group), psi: Some(psi(group.pressure.io?)) })
}

fn network(interfaces: &[Interface], timestamp: i64) -> cri::NetworkUsage {
    let counters = |interface: &Interface| cri::NetworkInterfaceUsage {
        name: interface.name.clone(),
        rx_bytes: value(interface.received.bytes),
        rx_errors: value(interface.received.errors),
        tx_bytes: value(interface.sent.bytes),
        tx_errors: value(interface.sent.errors),
    };
    let is_default = |interface: &&Interface| interface.name == DEFAULT_INTERFACE;
    cri::NetworkUsage {
        timestamp,
        default_interface: interfaces.iter().find(is_default).map(counters),
        interfaces: interfaces.iter().filter(|interface| !is_default(interface)).map(counters).collect(),
    }
}

/// CRI counts nanoseconds, the kernel microseconds.
fn psi(stalls: Stalls) -> cri::PsiStats {
    let data = |stall: Stall| cri::PsiData {
        total: stall.total.saturating_mul(1_000),
        avg10: stall.avg10,
        avg60: stall.avg60,
        avg300: stall.avg300,
    };
    cri::PsiStats { full: Some(data(stalls.full)), some: Some(data(stalls.some)) }
}

fn taken(group: &GroupUsage) -> i64 {
    nanoseconds(group.taken.at)
}

fn value(value: u64) -> Option<cri::UInt64Value> {
    Some(cri::UInt64Value { value })
}
