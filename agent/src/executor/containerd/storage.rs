//! Measures what a pod takes on disk: when it may not take all there is, and when the disk is short of room.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::ContainerdExecutor;
use crate::status::event::EventType;
use limpet_core::outcome::Outcome;
use limpet_core::state::PodState;
use limpet_core::status::observed::ObservedContainer;
use limpet_core::storage::{StorageUsage, disk_volume_names, excess, measured};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::disk_usage::{DiskUsage, disk_usage};
use limpet_model::container::ContainerId;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::verdict::EVICTED;

/// The walk of one directory ends after so long; what it has seen by then counts.
const WALK: Duration = Duration::from_secs(10);

/// How much longer than a measurement the pause after it is: it takes a hundredth of the time at most.
const PAUSES: u32 = 100;

impl ContainerdExecutor {
    /// Measures the pod and judges it. What cannot be measured counts as nothing.
    pub(super) async fn measure_storage(&self, pod: &PodState) -> Outcome {
        let (record, began) = (&pod.record, Instant::now());
        let Some((volumes, containers)) = measured(record.spec()) else {
            return Outcome::StorageMeasured { excess: None, again: self.config.volume_stats_period };
        };
        let mut usage = StorageUsage::default();
        for volume in volumes {
            let used = self.walk(&record.key, self.volumes.empty_dir(&record.uid, volume)).await;
            usage.volumes.insert(volume.to_owned(), used.bytes);
        }
        for slot in pod.containers.iter().filter(|_| containers) {
            let layer = match &slot.instance {
                Some(instance) => self.layer_of(&record.key, &instance.id).await,
                None => DiskUsage::default(),
            };
            let logs = self.walk(&record.key, self.logs.container_log_dir(record, &slot.name)).await;
            usage.containers.insert(slot.name.clone(), layer.bytes + logs.bytes);
        }
        self.images.note_measurement();
        let excess = excess(record.spec(), &usage);
        if let Some(verdict) = &excess {
            let message = verdict.message.clone();
            tracing::warn!(pod = %record.key, uid = %record.uid, message, "pod evicted");
            self.reporter.event(pod, None, EventType::Warning, EVICTED, message);
        }
        Outcome::StorageMeasured { excess, again: self.config.volume_stats_period.max(began.elapsed() * PAUSES) }
    }

    /// Measures a pod's containers and emptyDirs on disk. What cannot be measured counts as nothing.
    pub async fn pod_disk(&self, record: &PodRecord, containers: &BTreeMap<String, ObservedContainer>) -> PodDisk {
        let mut disk = PodDisk::default();
        for volume in disk_volume_names(record.spec()) {
            disk.volumes += self.walk(&record.key, self.volumes.empty_dir(&record.uid, volume)).await;
        }
        for (name, container) in containers {
            let layer = self.layer_of(&record.key, &ContainerId::new(container.id.as_str())).await;
            let logs = self.walk(&record.key, self.logs.container_log_dir(record, name)).await;
            disk.layers.push((name.clone(), layer));
            disk.logs.push((name.clone(), logs));
        }
        disk
    }

    async fn layer_of(&self, pod: &PodKey, id: &ContainerId) -> DiskUsage {
        self.containers.layer_usage(id).await.unwrap_or_else(|error| {
            tracing::debug!(%pod, container = %id, %error, "its layer is not measured");
            DiskUsage::default()
        })
    }

    async fn walk(&self, pod: &PodKey, path: PathBuf) -> DiskUsage {
        let walked = blocking::run(path.clone(), DEADLINE.max(WALK * 2), move |progress| {
            progress.at(&path);
            disk_usage(&path, Instant::now() + WALK)
        });
        walked.await.and_then(|used| used).unwrap_or_else(|error| {
            tracing::debug!(%pod, %error, "a directory of it is not measured");
            DiskUsage::default()
        })
    }
}

/// What a pod takes on disk.
#[derive(Debug, Clone, Default)]
pub struct PodDisk {
    /// The writable layers of its containers, by name.
    pub layers: Vec<(String, DiskUsage)>,
    /// Their logs.
    pub logs: Vec<(String, DiskUsage)>,
    /// Its emptyDirs on disk.
    pub volumes: DiskUsage,
}
