//! Measures how much disk space a pod uses: if its use is limited, when the disk is short of space, and on request.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use super::ContainerdExecutor;
use limpet_core::outcome::Outcome;
use limpet_core::state::PodState;
use limpet_core::status::observed::{ObservedContainer, ObservedPod};
use limpet_core::storage::{StorageUsage, measured};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::disk_usage::{DiskUsage, Walk, disk_usage};
use limpet_host::file_system;
use limpet_host::volume::MeasuredVolume;
use limpet_model::container::ContainerId;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_telemetry::usage::disks::{ContainerDisk, ImageDisk, MeasureDisks, PodDisk, VolumeDisk};

/// The walk of one directory ends after this time; what it has seen by then counts.
const WALK_TIMEOUT: Duration = Duration::from_secs(10);

/// By how much the pause is longer than the measurement before it, which so takes at most a hundredth of the time.
const PAUSE_FACTOR: u32 = 100;

impl ContainerdExecutor {
    /// Measures the pod. What cannot be measured counts as nothing.
    pub(super) async fn measure_storage(&self, pod: &PodState) -> Outcome {
        let (record, began) = (&pod.record, Instant::now());
        let Some((volumes, containers)) = measured(record.spec()) else {
            return Outcome::StorageMeasured {
                usage: StorageUsage::default(),
                again: self.settings.volumes.stats_period,
            };
        };
        let mut usage = StorageUsage::default();
        for volume in volumes {
            let used = self.walk(&record.key, self.volumes.empty_dir(&record.uid, volume)).await;
            usage.volumes.insert(volume.to_owned(), used.unwrap_or_default().seen.bytes);
        }
        if containers {
            usage.files = self.provided(record).await.seen.bytes;
        }
        for slot in pod.containers.iter().filter(|_| containers) {
            let layer = match &slot.instance {
                Some(instance) => self.layer_of(&record.key, &instance.id).await,
                None => None,
            };
            let logs = self.walk(&record.key, self.logs.container_log_dir(record, &slot.name)).await;
            let files = self.walk(&record.key, self.volumes.container_dir(&record.uid, &slot.name)).await;
            let walks = [logs, files].map(|walk| walk.unwrap_or_default().seen.bytes);
            let bytes = layer.unwrap_or_default().bytes + walks.into_iter().sum::<u64>();
            usage.containers.insert(slot.name.clone(), bytes);
        }
        self.images.note_measurement();
        Outcome::StorageMeasured {
            usage,
            again: self.settings.volumes.stats_period.max(began.elapsed() * PAUSE_FACTOR),
        }
    }

    /// Measures a pod's containers and its own volumes. What cannot be measured is left out.
    pub async fn pod_disk(&self, record: &PodRecord, containers: &BTreeMap<String, ObservedContainer>) -> PodDisk {
        let mut disk = PodDisk { files: self.provided(record).await, ..PodDisk::default() };
        for volume in self.volumes.measured(record) {
            disk.volumes.push(self.volume_disk(&record.key, volume).await);
        }
        disk.volumes.extend(self.csi.stats(record).await);
        for (name, container) in containers {
            disk.containers.push(ContainerDisk {
                name: name.clone(),
                id: container.id.clone(),
                layer: self.layer_of(&record.key, &ContainerId::new(container.id.as_str())).await,
                logs: self.walk(&record.key, self.logs.container_log_dir(record, name)).await,
                files: self.walk(&record.key, self.volumes.container_dir(&record.uid, name)).await,
            });
        }
        disk
    }

    async fn volume_disk(&self, pod: &PodKey, volume: MeasuredVolume) -> VolumeDisk {
        if volume.own_file_system && blocking::is_busy(&volume.path) {
            // It does not answer, and a request for usage waits for it only once.
            return VolumeDisk { name: volume.name, claim: None, used: None, space: None, ephemeral: volume.ephemeral };
        }
        let space = file_system::space_of(volume.path.clone()).await.ok();
        let used = match space {
            Some(space) if volume.own_file_system => Some(Walk { seen: space.used(), complete: true }),
            None if volume.own_file_system => None,
            _ => self.walk(pod, volume.path).await,
        };
        VolumeDisk { name: volume.name, claim: None, used, space, ephemeral: volume.ephemeral }
    }

    /// The files that the agent provides to all containers, which may write to them.
    async fn provided(&self, record: &PodRecord) -> Walk {
        let mut all = Walk { complete: true, ..Walk::default() };
        for file in self.volumes.provided_files(&record.uid) {
            let walk = self.walk(&record.key, file).await.unwrap_or_default();
            all.seen += walk.seen;
            all.complete &= walk.complete;
        }
        all
    }

    async fn layer_of(&self, pod: &PodKey, id: &ContainerId) -> Option<DiskUsage> {
        let measured = self.containers.layer_usage(id).await;
        measured
            .inspect_err(
                |error| tracing::debug!(%pod, container = %id, %error, "measuring the container's layer failed"),
            )
            .ok()
    }

    async fn walk(&self, pod: &PodKey, path: PathBuf) -> Option<Walk> {
        let walked = blocking::run(path.clone(), DEADLINE.max(WALK_TIMEOUT * 2), move |progress| {
            progress.at(&path);
            disk_usage(&path, Instant::now() + WALK_TIMEOUT)
        });
        let walked = walked.await.and_then(|walk| walk);
        walked.inspect_err(|error| tracing::debug!(%pod, %error, "measuring a directory of the pod failed")).ok()
    }
}

impl MeasureDisks for ContainerdExecutor {
    fn pod<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, PodDisk> {
        Box::pin(self.pod_disk(&pod.record, &pod.containers))
    }

    fn claims<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, Vec<VolumeDisk>> {
        Box::pin(self.csi.stats(&pod.record))
    }

    fn images(&self, apart: HashSet<String>) -> BoxFuture<'_, Option<ImageDisk>> {
        Box::pin(async move {
            let used = self.containers.layers_usage(&apart).await;
            let used =
                used.inspect_err(|error| tracing::debug!(%error, "measuring the size of image layers failed")).ok()?;
            let space = match self.images.directory().await {
                Ok(directory) => file_system::space_of(directory).await.ok(),
                Err(_) => None,
            };
            Some(ImageDisk { space, used })
        })
    }
}
