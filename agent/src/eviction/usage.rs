//! What each pod takes of what the node is short of.

use std::sync::Arc;

use super::meter::Measured;
use crate::executor::containerd::ContainerdExecutor;
use crate::executor::containerd::storage::PodDisk;
use limpet_core::eviction::Signal;
use limpet_core::eviction::rank::Candidate;
use limpet_core::status::observed::ObservedPod;
use limpet_host::disk_usage::DiskUsage;

/// Measures the pods for the signal.
pub(super) async fn candidates(
    executor: &ContainerdExecutor,
    signal: Signal,
    node: &Measured,
    pods: &[Arc<ObservedPod>],
) -> Vec<Candidate> {
    let mut candidates = Vec::new();
    for pod in pods {
        candidates.push(match signal {
            Signal::MemoryAvailable => memory(executor, pod),
            Signal::PidAvailable => {
                let used = executor.cgroups.processes(&pod.record.uid).unwrap_or_default();
                Candidate { record: Arc::clone(&pod.record), used, containers: Vec::new() }
            }
            _ => disk(executor, signal, node, pod).await,
        });
    }
    candidates
}

fn memory(executor: &ContainerdExecutor, pod: &ObservedPod) -> Candidate {
    let uid = &pod.record.uid;
    let of = |id: Option<&str>| executor.cgroups.memory_in_use(uid, id);
    let containers = pod.containers.iter().filter_map(|(name, one)| Some((name.clone(), of(Some(&one.id))?)));
    Candidate { record: Arc::clone(&pod.record), used: of(None).unwrap_or_default(), containers: containers.collect() }
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
