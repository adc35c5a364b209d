//! Measures what a pod takes on disk, when it may not take all there is.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::ContainerdExecutor;
use crate::status::event::EventType;
use limpet_core::outcome::Outcome;
use limpet_core::state::{ContainerSlot, PodState};
use limpet_core::storage::{StorageUsage, excess, measured};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::disk_usage::disk_usage;
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
            let used = self.walk(pod, self.volumes.empty_dir(&record.uid, volume)).await;
            usage.volumes.insert(volume.to_owned(), used);
        }
        for slot in pod.containers.iter().filter(|_| containers) {
            let layer = self.layer_of(pod, slot).await;
            let logs = self.walk(pod, self.logs.container_log_dir(record, &slot.name)).await;
            usage.containers.insert(slot.name.clone(), layer + logs);
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

    async fn layer_of(&self, pod: &PodState, slot: &ContainerSlot) -> u64 {
        let Some(instance) = &slot.instance else { return 0 };
        self.containers.layer_usage(&instance.id).await.unwrap_or_else(|error| {
            tracing::debug!(pod = %pod.record.key, container = slot.name, %error, "its layer is not measured");
            0
        })
    }

    async fn walk(&self, pod: &PodState, path: PathBuf) -> u64 {
        let walked = blocking::run(path.clone(), DEADLINE.max(WALK * 2), move |progress| {
            progress.at(&path);
            disk_usage(&path, Instant::now() + WALK)
        });
        walked.await.and_then(|used| used).unwrap_or_else(|error| {
            tracing::debug!(pod = %pod.record.key, %error, "a directory of it is not measured");
            0
        })
    }
}
