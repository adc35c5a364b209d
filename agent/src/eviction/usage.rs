//! What each pod takes of what the node is short of.

use std::path::PathBuf;
use std::sync::Arc;

use super::meter::Measured;
use crate::executor::containerd::ContainerdExecutor;
use crate::executor::containerd::storage::PodDisk;
use limpet_core::eviction::Signal;
use limpet_core::eviction::rank::Candidate;
use limpet_core::status::observed::ObservedPod;
use limpet_host::blocking;
use limpet_host::cgroup::Cgroups;
use limpet_host::disk_usage::DiskUsage;

/// Measures the pods for the signal.
pub(super) async fn candidates(
    executor: &ContainerdExecutor,
    signal: Signal,
    node: &Measured,
    pods: &[Arc<ObservedPod>],
) -> Vec<Candidate> {
    if let Signal::MemoryAvailable | Signal::PidAvailable = signal {
        let (cgroups, pods) = (executor.cgroups.clone(), pods.to_vec());
        let look = move |_: &_| pods.iter().map(|pod| of_cgroup(&cgroups, signal, pod)).collect();
        return blocking::run(PathBuf::from("/sys/fs/cgroup"), blocking::DEADLINE, look).await.unwrap_or_default();
    }
    let mut candidates = Vec::new();
    for pod in pods {
        candidates.push(disk(executor, signal, node, pod).await);
    }
    candidates
}

fn of_cgroup(cgroups: &Cgroups, signal: Signal, pod: &ObservedPod) -> Candidate {
    let (record, uid) = (Arc::clone(&pod.record), &pod.record.uid);
    if signal == Signal::PidAvailable {
        return Candidate { record, used: cgroups.processes(uid).unwrap_or_default(), containers: Vec::new() };
    }
    let of = |id: Option<&str>| cgroups.memory_in_use(uid, id);
    let containers = pod.containers.iter().filter_map(|(name, one)| Some((name.clone(), of(Some(&one.id))?)));
    Candidate { record, used: of(None).unwrap_or_default(), containers: containers.collect() }
}

async fn disk(executor: &ContainerdExecutor, signal: Signal, node: &Measured, pod: &ObservedPod) -> Candidate {
    let of_images = node.own_image_disk && node.images_take(signal);
    let PodDisk { layers, logs, volumes } = executor.pod_disk(&pod.record, &pod.containers).await;
    let counts_bytes = matches!(signal, Signal::NodefsAvailable | Signal::ImagefsAvailable);
    let amount = |usage: &DiskUsage| if counts_bytes { usage.bytes } else { usage.inodes };
    let sum = |usages: &[(String, DiskUsage)]| -> u64 { usages.iter().map(|(_, usage)| amount(usage)).sum() };
    // With a disk of their own, layers take of that alone, and nothing else does.
    let used = match (node.own_image_disk, of_images) {
        (true, true) => sum(&layers),
        (true, false) => sum(&logs) + amount(&volumes),
        (false, _) => sum(&layers) + sum(&logs) + amount(&volumes),
    };
    // kubelet names containers for what can be requested.
    let of = |usages: &[(String, DiskUsage)], name: &String| {
        usages.iter().find(|(other, _)| other == name).map_or(0, |(_, usage)| amount(usage))
    };
    let named = pod.containers.keys().filter(|_| counts_bytes);
    let containers = named.map(|name| (name.clone(), of(&layers, name) + of(&logs, name))).collect();
    Candidate { record: Arc::clone(&pod.record), used, containers }
}
