//! The disk usage of images and pods: measured on request, and for each pod at most once per `volumeStatsAggPeriod`.
//!
//! Measuring means walking directories, so one task measures for all concurrent callers, and its result is kept with
//! its time until the next measurement. It may take as long as the walks of its pods; requests wait for
//! [`MEASURE_TIMEOUT`] and then get what is known.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use limpet_core::status::observed::{ObservedPod, ObservedPods};
use limpet_host::disk_usage::{DiskUsage, Walk};
use limpet_host::file_system::Space;
use limpet_model::pod::PodUid;

/// How long a request waits for a measurement.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(3);

/// The disk usage of a pod.
#[derive(Debug, Clone, Default)]
pub struct PodDisk {
    /// Its containers, including those that have ended.
    pub containers: Vec<ContainerDisk>,
    /// The volumes that belong to it alone.
    pub volumes: Vec<VolumeDisk>,
    /// The files that the agent provides to all of its containers, such as `/etc/hosts`.
    pub files: Walk,
}

/// The disk usage of a container.
#[derive(Debug, Clone)]
pub struct ContainerDisk {
    pub name: String,
    pub id: String,
    /// Its writable layer; `None` if it was not measured.
    pub layer: Option<DiskUsage>,
    /// Its logs, including those of earlier attempts; `None` if they were not measured.
    pub logs: Option<Walk>,
    /// Its termination messages and the volumes that its image declares; `None` if they were not measured.
    pub files: Option<Walk>,
}

/// The disk usage of a volume.
#[derive(Debug, Clone)]
pub struct VolumeDisk {
    pub name: String,
    /// The name of its claim in the pod's namespace.
    pub claim: Option<String>,
    /// The size of its content; `None` if it was not measured.
    pub used: Option<Walk>,
    /// The file system that it is on, or is; `None` if it was not measured.
    pub space: Option<Space>,
    /// Whether it counts as the pod's ephemeral storage.
    pub ephemeral: bool,
}

impl PodDisk {
    /// The pod's ephemeral storage: layers, logs, and the files and volumes that are removed with it. `None` if a
    /// part is unknown.
    pub fn ephemeral(&self) -> Option<DiskUsage> {
        let whole = |walk: Option<Walk>| walk.and_then(Walk::whole);
        let containers = self
            .containers
            .iter()
            .flat_map(|container| [container.layer, whole(container.logs), whole(container.files)]);
        let volumes = self.volumes.iter().filter(|volume| volume.ephemeral).map(|volume| whole(volume.used));
        containers.chain(volumes).chain([self.files.whole()]).try_fold(DiskUsage::default(), |mut sum, part| {
            sum += part?;
            Some(sum)
        })
    }
}

/// The file system of images and layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageDisk {
    /// Its space; `None` if it was not measured.
    pub space: Option<Space>,
    /// The size of the layers of images and containers.
    pub used: DiskUsage,
}

pub trait MeasureDisks: fmt::Debug + Send + Sync {
    /// Measures a pod. What cannot be measured is left out.
    fn pod<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, PodDisk>;

    /// The pod's volumes about which CSI drivers report.
    fn claims<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, Vec<VolumeDisk>>;

    /// Measures the file system of images, without the layers of the containers in `apart`. `None` if containerd does
    /// not answer.
    fn images(&self, apart: HashSet<String>) -> BoxFuture<'_, Option<ImageDisk>>;
}

/// A measurement with its time.
#[derive(Debug, Clone)]
pub struct Dated<T> {
    pub at: Timestamp,
    pub value: T,
    taken: Instant,
}

impl<T> Dated<T> {
    /// A measurement that was taken just now, at `at`.
    pub fn new(at: Timestamp, value: T) -> Self {
        Self { at, value, taken: Instant::now() }
    }
}

#[derive(Debug, Clone, Default)]
pub struct Disks {
    pub images: Option<Dated<ImageDisk>>,
    pub pods: BTreeMap<PodUid, Arc<Dated<PodDisk>>>,
}

/// Measures disks on request. Clones share the last measurements.
#[derive(Debug, Clone)]
pub struct DiskMeter(Arc<MeterState>);

#[derive(Debug)]
struct MeterState {
    measure: Arc<dyn MeasureDisks>,
    /// The longest age of a measurement that is still used.
    period: Duration,
    last: Mutex<Disks>,
    /// Held during a measurement.
    turn: Arc<tokio::sync::Mutex<()>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl DiskMeter {
    /// A meter without measurements. It measures in tasks of `tasks`, which `stop` ends.
    pub fn new(measure: Arc<dyn MeasureDisks>, period: Duration, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self(Arc::new(MeterState { measure, period, last: Mutex::default(), turn: Arc::default(), tasks, stop }))
    }

    /// The measurements of these pods and of the images, after renewing those older than the period.
    pub async fn disks(&self, pods: &ObservedPods) -> Disks {
        let shared = &self.0;
        if let Ok(turn) = Arc::clone(&shared.turn).try_lock_owned() {
            let (due, images) = self.due(pods);
            if images || !due.is_empty() {
                let this = self.clone();
                shared.tasks.spawn(async move {
                    let measured = this.measure(due, images);
                    this.0.stop.run_until_cancelled(measured).await;
                    drop(turn);
                });
            }
        }
        // A longer measurement continues, for the next request.
        let _ = tokio::time::timeout(MEASURE_TIMEOUT, shared.turn.lock()).await;
        self.last().clone()
    }

    fn last(&self) -> MutexGuard<'_, Disks> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running pods that have to be measured, and whether the images have to be. Forgets other pods.
    fn due(&self, pods: &ObservedPods) -> (Vec<Arc<ObservedPod>>, bool) {
        let running = pods.pods.values().filter(|pod| pod.containers.values().any(|container| container.pid.is_some()));
        let running: BTreeMap<&PodUid, &Arc<ObservedPod>> = running.map(|pod| (&pod.record.uid, pod)).collect();
        let mut last = self.last();
        last.pods.retain(|uid, _| running.contains_key(uid));
        let is_due = |taken: Option<Instant>| taken.is_none_or(|taken| taken.elapsed() >= self.0.period);
        let due = running.into_iter().filter(|(uid, _)| is_due(last.pods.get(uid).map(|pod| pod.taken)));
        (due.map(|(_, pod)| Arc::clone(pod)).collect(), is_due(last.images.as_ref().map(|images| images.taken)))
    }

    async fn measure(&self, due: Vec<Arc<ObservedPod>>, images: bool) {
        for pod in due {
            let disk = self.0.measure.pod(&pod).await;
            let disk = Arc::new(Dated::new(Timestamp::now(), disk));
            self.last().pods.insert(pod.record.uid.clone(), disk);
        }
        if !images {
            return;
        }
        let layers: BTreeMap<String, DiskUsage> = {
            let last = self.last();
            let containers = last.pods.values().flat_map(|pod| &pod.value.containers);
            containers.filter_map(|container| Some((container.id.clone(), container.layer?))).collect()
        };
        let disk = self.0.measure.images(layers.keys().cloned().collect()).await;
        self.last().images = disk.map(|mut disk| {
            layers.into_values().for_each(|layer| disk.used += layer);
            Dated::new(Timestamp::now(), disk)
        });
    }
}

#[cfg(test)]
#[path = "disks_tests.rs"]
mod tests;
