//! The disk space that a pod may use: `emptyDir.sizeLimit` on disk, and limits of `ephemeral-storage`. As in kubelet,
//! a pod that uses more is evicted. Pure: measurements are arguments.

use std::collections::BTreeMap;
use std::time::Instant;

use k8s_openapi::api::core::v1::{Container, PodSpec, Volume};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::priority::is_critical;
use limpet_model::pod::quantity::bytes;
use limpet_model::pod::{PodRecord, Role};
use limpet_model::verdict::PodVerdict;

const EPHEMERAL_STORAGE: &str = "ephemeral-storage";

/// When a pod with such a limit is measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StorageWatch {
    /// The next time; `None` for as soon as something of it runs.
    pub due: Option<Instant>,
    /// Whether it is being measured.
    pub measuring: bool,
}

/// How much disk space a pod uses, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StorageUsage {
    /// Its emptyDirs on disk, by name.
    pub volumes: BTreeMap<String, u64>,
    /// Its containers, by name: their writable layers, logs, termination messages, and the volumes that their images
    /// declare.
    pub containers: BTreeMap<String, u64>,
    /// The files that the agent provides to all containers, which they may write to: `/etc/hosts`,
    /// `/etc/resolv.conf`.
    pub files: u64,
}

/// The emptyDirs on disk, each with its size limit.
fn disk_volumes(spec: &PodSpec) -> impl Iterator<Item = (&Volume, Option<&Quantity>)> {
    let on_disk = |volume: &&Volume| {
        let medium = volume.empty_dir.as_ref().map(|source| source.medium.as_deref().unwrap_or_default());
        medium == Some("")
    };
    spec.volumes.iter().flatten().filter(on_disk).map(|volume| (volume, size_limit(volume)))
}

/// The limit of a volume; zero means no limit.
fn size_limit(volume: &Volume) -> Option<&Quantity> {
    volume.empty_dir.as_ref()?.size_limit.as_ref().filter(|limit| amount(limit) > 0)
}

/// The limit of a container on `ephemeral-storage`.
fn container_limit(container: &Container) -> Option<&Quantity> {
    container.resources.as_ref()?.limits.as_ref()?.get(EPHEMERAL_STORAGE)
}

fn amount(quantity: &Quantity) -> u64 {
    bytes(quantity).ok().and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or_default()
}

/// The names of the emptyDirs to be measured, and whether the containers are measured, too. `None` if the pod has no
/// limit.
pub fn measured(spec: &PodSpec) -> Option<(Vec<&str>, bool)> {
    let inits = spec.init_containers.iter().flatten();
    let all = spec.containers.iter().chain(inits).any(|container| container_limit(container).is_some());
    let volumes = disk_volumes(spec).filter(|(_, limit)| all || limit.is_some());
    let volumes: Vec<&str> = volumes.map(|(volume, _)| volume.name.as_str()).collect();
    (all || !volumes.is_empty()).then_some((volumes, all))
}

/// The verdict on a pod that uses more than it may, by kubelet's checks in kubelet's order and words. As in kubelet,
/// a critical pod keeps running.
pub fn excess(record: &PodRecord, usage: &StorageUsage) -> Option<PodVerdict> {
    let spec = record.spec();
    if is_critical(record) {
        return None;
    }
    let used_by = |measured: &BTreeMap<String, u64>, name: &str| measured.get(name).copied().unwrap_or_default();
    for (volume, limit) in disk_volumes(spec) {
        if let Some(limit) = limit.filter(|limit| used_by(&usage.volumes, &volume.name) > amount(limit)) {
            let (name, limit) = (&volume.name, &limit.0);
            return Some(PodVerdict::evicted(format!(
                "Usage of EmptyDir volume {name:?} exceeds the limit {limit:?}. "
            )));
        }
    }
    let total: u64 = usage.volumes.values().chain(usage.containers.values()).chain([&usage.files]).sum();
    if let Some((_, text)) = pod_limit(spec).filter(|(limit, _)| total > *limit) {
        let message = format!("Pod ephemeral local storage usage exceeds the total limit of containers {text}. ");
        return Some(PodVerdict::evicted(message));
    }
    let sidecars =
        spec.init_containers.iter().flatten().filter(|init| init.restart_policy.as_deref() == Some("Always"));
    spec.containers.iter().chain(sidecars).find_map(|container| {
        // As in kubelet, a limit of zero is none.
        let limit = container_limit(container).filter(|limit| amount(limit) > 0)?;
        let name = &container.name;
        let exceeds = used_by(&usage.containers, name) > amount(limit);
        let message = || format!("Container {name} exceeded its local ephemeral storage limit {:?}. ", limit.0);
        exceeds.then(|| PodVerdict::evicted(message()))
    })
}

/// The limit of the whole pod: that of its containers together, or of an init container if that is higher.
fn pod_limit(spec: &PodSpec) -> Option<(u64, String)> {
    let roles: BTreeMap<&str, Role> = Role::assign(spec).collect();
    let inits = spec.init_containers.iter().flatten();
    let (together, alone): (Vec<&Container>, Vec<&Container>) =
        inits.chain(&spec.containers).partition(|container| roles.get(container.name.as_str()) != Some(&Role::Init));
    let together: Vec<&Quantity> = together.into_iter().filter_map(container_limit).collect();
    let alone = alone.into_iter().filter_map(container_limit).max_by_key(|limit| amount(limit));
    let sum: u64 = together.iter().map(|limit| amount(limit)).sum();
    match (alone.filter(|limit| amount(limit) > sum), together.as_slice()) {
        (Some(limit), _) => Some((amount(limit), limit.0.clone())),
        (None, []) => None,
        (None, [only]) => Some((sum, only.0.clone())),
        (None, _) => Some((sum, in_binary(sum))),
    }
}

/// An amount as a quantity with the largest binary suffix that it is a multiple of.
pub(crate) fn in_binary(bytes: u64) -> String {
    let suffixes = [("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10)];
    let fits = suffixes.into_iter().find(|(_, bits)| bytes > 0 && bytes.trailing_zeros() >= *bits);
    fits.map_or_else(|| bytes.to_string(), |(suffix, bits)| format!("{}{suffix}", bytes >> bits))
}

#[cfg(test)]
mod tests;
