//! How much each pod uses of what the node is short of.

use std::path::PathBuf;
use std::sync::Arc;

use super::meter::Measured;
use crate::executor::containerd::ContainerdExecutor;
use limpet_core::eviction::Signal;
use limpet_core::eviction::rank::Candidate;
use limpet_core::status::observed::ObservedPod;
use limpet_host::blocking;
use limpet_host::cgroup::Cgroups;
use limpet_host::disk_usage::{DiskUsage, Walk};
use limpet_telemetry::usage::disks::{ContainerDisk, PodDisk};

/// Measures the pods for the signal.
pub(super) async fn candidates(
    executor: &ContainerdExecutor,
    signal: Signal,
    node: &Measured,
    pods: &[Arc<ObservedPod>],
) -> Vec<Candidate> {
    if let Signal::MemoryAvailable | Signal::AllocatableMemoryAvailable | Signal::PidAvailable = signal {
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
    let memory_in_use = |id: Option<&str>| cgroups.memory_in_use(uid, id);
    let containers =
        pod.containers.iter().filter_map(|(name, container)| Some((name.clone(), memory_in_use(Some(&container.id))?)));
    Candidate { record, used: memory_in_use(None).unwrap_or_default(), containers: containers.collect() }
}

async fn disk(executor: &ContainerdExecutor, signal: Signal, node: &Measured, pod: &ObservedPod) -> Candidate {
    let of_images = node.own_image_disk && node.images_take(signal);
    let PodDisk { containers, volumes, files } = executor.pod_disk(&pod.record, &pod.containers).await;
    let counts_bytes = matches!(signal, Signal::NodefsAvailable | Signal::ImagefsAvailable);
    let amount = |usage: DiskUsage| if counts_bytes { usage.bytes } else { usage.inodes };
    // What could not be measured counts as nothing.
    let seen = |walk: Option<Walk>| amount(walk.unwrap_or_default().seen);
    let layers: u64 = containers.iter().map(|container| amount(container.layer.unwrap_or_default())).sum();
    let logs: u64 = containers.iter().map(|container| seen(container.logs) + seen(container.files)).sum();
    let logs = logs + seen(Some(files));
    let volumes: u64 = volumes.iter().filter(|volume| volume.ephemeral).map(|volume| seen(volume.used)).sum();
    // If layers have their own disk, they use only that, and nothing else does.
    let used = match (node.own_image_disk, of_images) {
        (true, true) => layers,
        (true, false) => logs + volumes,
        (false, _) => layers + logs + volumes,
    };
    // kubelet names containers only for resources that can be requested.
    let named = containers.into_iter().filter(|_| counts_bytes);
    let of_container = |container: &ContainerDisk| {
        amount(container.layer.unwrap_or_default()) + seen(container.logs) + seen(container.files)
    };
    let containers = named.map(|container| (container.name.clone(), of_container(&container))).collect();
    Candidate { record: Arc::clone(&pod.record), used, containers }
}
