//! The removal of what a pod has on its node: when it has finished, when it is deleted, and for a pod that no longer
//! exists.
//!
//! [`limpet_core::removal`] decides which resources are removed in which order, and what is kept if one of them
//! cannot be removed.

use std::collections::HashSet;
use std::sync::Arc;

use futures_util::future::{FutureExt as _, join_all};

use super::start::START_ERROR;
use super::{ContainerdExecutor, failure};
use limpet_core::outcome::Failure;
use limpet_core::removal::{Extent, Remains, Resource};
use limpet_core::state::{ContainerSlot, FAILED_UNMOUNT, PodState};
use limpet_host::call_watch::calling;
use limpet_host::orphan_processes;
use limpet_host::volume::VolumeError;
use limpet_model::container::ContainerId;
use limpet_model::pod::PodUid;
use limpet_telemetry::event::EventType;

/// kubelet's reason when something of a pod cannot be removed.
const FAILED_KILL: &str = "FailedKillPod";

/// The failure that reports that something of a pod stays.
fn stays(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure { reason: FAILED_KILL, message: format!("{what}: {error}"), transient: false }
}

/// The failure in kubelet's words, which the failure of a driver already has.
fn unmount_failure(error: &VolumeError) -> Failure {
    let message = match error {
        VolumeError::TearDown { .. } => error.to_string(),
        _ => format!("UnmountVolume.TearDown failed: {error}"),
    };
    Failure { reason: FAILED_UNMOUNT, message, transient: false }
}

/// The pod whose resources are removed.
#[derive(Clone, Copy)]
struct Subject<'a> {
    uid: &'a PodUid,
    /// `None` if it no longer exists.
    pod: Option<&'a PodState>,
}

impl ContainerdExecutor {
    /// Removes what others may need of a pod that has finished: address, namespaces, cgroup, the volumes of drivers
    /// and disks of targets. Records, logs and other volumes stay.
    pub(super) async fn release_sandbox(&self, pod: &PodState) -> Result<(), Failure> {
        self.remove_resources(Extent::Sandbox, Subject { uid: &pod.record.uid, pod: Some(pod) }).await
    }

    /// Removes everything of the pod: containers, sandbox, volumes, logs.
    pub(super) async fn tear_down(&self, pod: &PodState) -> Result<(), Failure> {
        let began = tokio::time::Instant::now();
        self.remove_resources(Extent::Pod, Subject { uid: &pod.record.uid, pod: Some(pod) }).await?;
        tracing::info!(pod = %pod.record.key, uid = %pod.record.uid, took = ?began.elapsed(), "pod removed");
        Ok(())
    }

    /// Removes what a pod that no longer exists has left, after a crash, a power cut, or a manifest that was removed
    /// meanwhile. Returns whether that is all of it.
    pub(super) async fn clear(&self, uid: &PodUid) -> bool {
        tracing::info!(%uid, "removing leftovers of a pod that no longer exists");
        self.remove_resources(Extent::Orphan, Subject { uid, pod: None }).await.is_ok()
    }

    /// Every pod that has something on disk or in the kernel. Logs alone do not count, because they may belong to
    /// another agent's pods; limpet's are removed before the pod's directory.
    pub(super) async fn traces(&self) -> HashSet<PodUid> {
        let mut pods: HashSet<PodUid> = HashSet::new();
        pods.extend(listed("network attachments", self.network.attached().await));
        pods.extend(listed("sandboxes", self.sandboxes.list().await));
        pods.extend(self.volumes.list().await);
        pods.extend(listed("cgroups of pods", self.cgroups.pods().await));
        pods.extend(self.cpus.iter().flat_map(|cpus| cpus.pods()));
        pods
    }

    async fn remove_resources(&self, extent: Extent, subject: Subject<'_>) -> Result<(), Failure> {
        let mut remains = Remains::default();
        // Its processes have ended by now.
        if let Some(cpus) = &self.cpus {
            cpus.release(subject.uid).await;
        }
        for stage in extent.stages() {
            let removable = remains.removable(stage);
            // Boxed: the largest of them is several KiB.
            let removals: Vec<_> =
                removable.iter().map(|resource| self.remove_resource(*resource, subject).boxed()).collect();
            let removed = join_all(removals).await;
            for (resource, removed) in removable.into_iter().zip(removed) {
                let Err(failure) = removed else { continue };
                if subject.pod.is_none() {
                    tracing::warn!(uid = %subject.uid, error = failure.message, "removing leftovers failed; retried later");
                }
                remains.add(resource, failure);
            }
        }
        remains.result()
    }

    async fn remove_resource(&self, resource: Resource, subject: Subject<'_>) -> Result<(), Failure> {
        let Subject { uid, pod } = subject;
        match (resource, pod) {
            (Resource::Containers, Some(pod)) => self.remove_containers(pod).await,
            (Resource::Containers, None) => Ok(()),
            (Resource::Shims, pod) => {
                if pod.is_none_or(|pod| pod.outlived_connection) {
                    orphan_processes::end_shims(ContainerId::pod_digits(uid), self.client.socket()).await;
                }
                Ok(())
            }
            (Resource::Network, _) => {
                calling("CNI DEL");
                let detached = self.network.detach(uid, &self.sandboxes.network(uid)).await;
                detached.map_err(|error| stays("network", error))
            }
            (Resource::Namespaces, _) => self.sandboxes.remove(uid).await.map_err(|error| stays("namespaces", error)),
            (Resource::Cgroup, _) => {
                // A process that was killed a moment ago may still be in it, which passes.
                let removed = self.on_cgroup("destroy", self.cgroups.remove_pod(uid)).await;
                removed.map_err(|error| Failure { transient: error.is_transient(), ..stays("cgroup", &error) })
            }
            (Resource::Disks, pod) => self.unmounted(pod, self.volumes.give_back(uid).await),
            (Resource::Mounts, pod) => self.unmounted(pod, self.volumes.unmount(uid).await),
            (Resource::ImageVolumes, _) => self.remove_image_volumes(uid).await,
            (Resource::DriverVolumes, Some(pod)) => self.tear_down_csi(pod).await,
            (Resource::DriverVolumes, None) => self.unmount_orphan(uid).await,
            (Resource::Logs, Some(pod)) => {
                self.remove_logs(pod).await;
                Ok(())
            }
            (Resource::Logs, None) => {
                let of_pod = uid.clone();
                let removed = self.try_on_logs(uid, move |logs| logs.remove_logs_of(&of_pod)).await;
                removed.flatten().map_err(|error| stays("logs", error))
            }
            (Resource::Directory, _) => {
                calling("removing its volumes");
                let removed = self.volumes.remove(uid).await;
                removed.map_err(|error| Failure { reason: FAILED_KILL, message: error.to_string(), transient: false })
            }
        }
    }

    /// Removes all containers. One that cannot be removed does not keep the others, unless containerd does not answer
    /// at all.
    async fn remove_containers(&self, pod: &PodState) -> Result<(), Failure> {
        let mut all = Ok(());
        for slot in &pod.containers {
            for instance in slot.instance.iter().chain(&slot.previous).chain(&slot.stale) {
                let removed = self.timed("remove_container", self.containers.remove(&instance.id)).await;
                let removed = removed.map_err(|error| failure(FAILED_KILL, &error));
                if removed.is_ok() && instance.exit().is_some_and(|exit| exit.reason == START_ERROR) {
                    self.clear_cgroup(pod, &instance.id).await;
                }
                all = all.and(removed);
            }
            if all.as_ref().is_err_and(|failure| failure.transient) {
                return all;
            }
            let removed = self.remove_failed_start(pod, slot).await;
            all = all.and(removed);
        }
        all
    }

    /// Removes what a failed start of a container has left, including a process of it.
    pub(super) async fn remove_failed_start(&self, pod: &PodState, slot: &ContainerSlot) -> Result<(), Failure> {
        let Some(id) = &slot.possible_orphan else { return Ok(()) };
        let removed = self.timed("remove_container", self.containers.remove_failed_attempt(id)).await;
        removed.map_err(|error| failure(FAILED_KILL, &error))?;
        self.clear_cgroup(pod, id).await;
        let (record, name, id) = (Arc::clone(&pod.record), slot.name.clone(), id.clone());
        self.on_logs(&pod.record.uid, move |logs| logs.remove_link(&record, &name, id.as_str())).await;
        Ok(())
    }

    async fn remove_logs(&self, pod: &PodState) {
        let instances = |slot: &ContainerSlot| {
            let ids = slot.instance.iter().chain(&slot.previous).chain(&slot.stale).map(|instance| instance.id.clone());
            ids.map(|id| (slot.name.clone(), id)).collect::<Vec<_>>()
        };
        let links: Vec<_> = pod.containers.iter().flat_map(instances).collect();
        let record = Arc::clone(&pod.record);
        self.on_logs(&pod.record.uid, move |logs| {
            links.iter().for_each(|(name, id)| logs.remove_link(&record, name, id.as_str()));
            logs.remove_pod_logs(&record);
        })
        .await;
    }

    /// Reports that a volume stays mounted.
    fn unmounted(&self, pod: Option<&PodState>, unmounted: Result<(), VolumeError>) -> Result<(), Failure> {
        let Err(error) = unmounted else { return Ok(()) };
        let failure = unmount_failure(&error);
        let Some(pod) = pod else { return Err(failure) };
        let message = pod.objects.redact(failure.message);
        tracing::warn!(pod = %pod.record.key, message, "giving back a volume failed; retried later");
        self.reporter.event(pod, None, EventType::Warning, FAILED_UNMOUNT, message.clone());
        Err(Failure { message, ..failure })
    }
}

/// The pods that could be listed. What could not be listed is no reason to remove anything, and is listed again at
/// the next start.
fn listed<E: std::fmt::Display>(what: &str, pods: Result<Vec<PodUid>, E>) -> Vec<PodUid> {
    pods.unwrap_or_else(|error| {
        tracing::warn!(%error, "listing {what} failed; what is left of pods there stays until the next start");
        Vec::new()
    })
}
