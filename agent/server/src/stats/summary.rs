//! kubelet's Summary (`stats.k8s.io/v1alpha1`): a pure function of one reading and the disks' last measurement.
//!
//! Unknown values are left out.

mod file_systems;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use self::file_systems::FileSystems;
use limpet_host::cgroup::usage::GroupUsage;
use limpet_host::proc_files::{Interface, ProcessIds, Stall, Stalls};
use limpet_telemetry::usage::disks::Disks;
use limpet_telemetry::usage::rates::NanoCores;
use limpet_telemetry::usage::{ContainerUsage, NodeUsage, PodUsage};

/// The interface whose counters are a pod's own in kubelet's Summary.
const DEFAULT_INTERFACE: &str = "eth0";

/// The document. Without `disks`, the usage of images and pods is unknown.
pub(super) fn summary(node_name: &str, usage: &NodeUsage, rates: &NanoCores, disks: Option<&Disks>) -> Value {
    let file_systems = FileSystems::new(usage, disks);
    let all_pods = usage.all_pods.as_ref().map(|group| of_container("pods", None, group, rates));
    let node = object([
        ("nodeName", json!(node_name)),
        ("startTime", time(usage.booted)),
        ("systemContainers", json!(all_pods.map(|pods| [pods]))),
        ("cpu", cpu(&usage.group, rates)),
        ("memory", memory(&usage.group, usage.huge_pages)),
        ("swap", swap(&usage.group)),
        ("io", io(&usage.group)),
        ("network", network(usage.interfaces.as_deref(), &usage.group)),
        ("fs", file_systems.of_node()),
        ("runtime", file_systems.of_images()),
        ("rlimit", process_ids(usage.process_ids, &usage.group)),
    ]);
    let pods: Vec<Value> = usage.pods.iter().map(|pod| of_pod(pod, rates, file_systems)).collect();
    json!({ "node": node, "pods": pods })
}

fn of_pod(pod: &PodUsage, rates: &NanoCores, file_systems: FileSystems<'_>) -> Value {
    let (key, disk) = (&pod.record.key, file_systems.of_pod(&pod.record.uid));
    let container = |container_usage: &ContainerUsage| {
        let mut container = of_container(&container_usage.name, container_usage.started, &container_usage.group, rates);
        let (layer, logs) = disk.of_container(&container_usage.name, &container_usage.id);
        for (name, stats) in [("rootfs", layer), ("logs", logs)] {
            if !stats.is_null() {
                container[name] = stats;
            }
        }
        container
    };
    let processes: Option<u64> = pod.containers.iter().map(|container| container.group.processes).sum();
    let group = pod.group.as_ref();
    let of_group = |value: fn(&GroupUsage) -> Value| group.map_or(Value::Null, value);
    object([
        ("podRef", json!({ "name": key.name(), "namespace": key.namespace(), "uid": pod.record.uid.as_str() })),
        ("startTime", time(pod.started)),
        ("containers", pod.containers.iter().map(container).collect()),
        ("cpu", group.map_or(Value::Null, |group| cpu(group, rates))),
        ("memory", of_group(|group| memory(group, 0))),
        ("swap", of_group(swap)),
        ("io", of_group(io)),
        ("network", group.map_or(Value::Null, |group| network(pod.interfaces.as_deref(), group))),
        ("volume", disk.volumes(key.namespace())),
        ("ephemeral-storage", disk.ephemeral()),
        ("process_stats", processes.map_or(Value::Null, |count| json!({ "process_count": count }))),
    ])
}

fn of_container(name: &str, started: Option<Timestamp>, group: &GroupUsage, rates: &NanoCores) -> Value {
    object([
        ("name", json!(name)),
        ("startTime", time(started)),
        ("cpu", cpu(group, rates)),
        ("memory", memory(group, 0)),
        ("swap", swap(group)),
        ("io", io(group)),
    ])
}

fn cpu(group: &GroupUsage, rates: &NanoCores) -> Value {
    let Some(cpu) = &group.cpu else { return Value::Null };
    object([
        ("time", taken(group)),
        ("usageNanoCores", json!(rates.get(&group.path))),
        ("usageCoreNanoSeconds", json!(cpu.total)),
        ("psi", psi(group.pressure.cpu)),
    ])
}

/// Memory statistics. `set_aside` is the part of the limit, in bytes, that processes cannot have because it is
/// reserved for huge pages.
fn memory(group: &GroupUsage, set_aside: u64) -> Value {
    let Some(memory) = &group.memory else { return Value::Null };
    let available = memory.limit.map(|limit| limit.saturating_sub(memory.working_set).saturating_sub(set_aside));
    object([
        ("time", taken(group)),
        ("availableBytes", json!(available)),
        ("usageBytes", json!(memory.usage)),
        ("workingSetBytes", json!(memory.working_set)),
        ("rssBytes", json!(memory.rss)),
        ("pageFaults", json!(memory.page_faults)),
        ("majorPageFaults", json!(memory.major_page_faults)),
        ("psi", psi(group.pressure.memory)),
    ])
}

fn swap(group: &GroupUsage) -> Value {
    let Some(swap) = group.swap else { return Value::Null };
    object([
        ("time", taken(group)),
        ("swapAvailableBytes", json!(swap.limit.map(|limit| limit.saturating_sub(swap.usage)))),
        ("swapUsageBytes", json!(swap.usage)),
    ])
}

fn io(group: &GroupUsage) -> Value {
    match group.pressure.io {
        Some(stalls) => object([("time", taken(group)), ("psi", psi(Some(stalls)))]),
        None => Value::Null,
    }
}

/// Like kubelet, passes on the kernel's microseconds.
fn psi(stalls: Option<Stalls>) -> Value {
    let stall = |stall: Stall| json!({ "total": stall.total, "avg10": stall.avg10, "avg60": stall.avg60, "avg300": stall.avg300 });
    stalls.map_or(Value::Null, |stalls| json!({ "full": stall(stalls.full), "some": stall(stalls.some) }))
}

fn network(interfaces: Option<&[Interface]>, group: &GroupUsage) -> Value {
    let Some(interfaces) = interfaces else { return Value::Null };
    let counters = |interface: &Interface| {
        json!({
            "name": interface.name,
            "rxBytes": interface.received.bytes, "rxErrors": interface.received.errors,
            "txBytes": interface.sent.bytes, "txErrors": interface.sent.errors,
        })
    };
    let default_interface = interfaces.iter().find(|interface| interface.name == DEFAULT_INTERFACE).map(counters);
    // kubelet's default interface has a name even when there is none.
    let mut network = default_interface.unwrap_or_else(|| json!({ "name": "" }));
    network["time"] = taken(group);
    if !interfaces.is_empty() {
        network["interfaces"] = interfaces.iter().map(counters).collect();
    }
    network
}

fn process_ids(ids: Option<ProcessIds>, group: &GroupUsage) -> Value {
    ids.map_or(Value::Null, |ids| json!({ "time": taken(group), "maxpid": ids.limit, "curproc": ids.used }))
}

fn taken(group: &GroupUsage) -> Value {
    time(Some(group.taken.at))
}

fn time(time: Option<Timestamp>) -> Value {
    json!(time.map(Time))
}

/// The fields that have a value. `startTime` stays without one, as in kubelet.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let present = |(name, value): &(&str, Value)| !value.is_null() || *name == "startTime";
    fields.into_iter().filter(present).map(|(name, value)| (name.to_owned(), value)).collect()
}
