//! What images and pods take on disk: measured on request, and each pod at most once in `volumeStatsAggPeriod`.
//!
//! Finding out means walking directories, so one task measures for all concurrent callers, and its result is kept with
//! its time until the next measurement. It has as long as the walks of its pods may take; requests wait
//! [`MEASURE_TIMEOUT`] and then gets what is known.

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

/// What a pod takes on disk.
#[derive(Debug, Clone, Default)]
pub struct PodDisk {
    /// Its containers, those that have ended included.
    pub containers: Vec<ContainerDisk>,
    /// The volumes that are its own.
    pub volumes: Vec<VolumeDisk>,
    /// The files that the agent provides to all of its containers, `/etc/hosts`, say.
    pub files: Walk,
}

/// What a container takes.
#[derive(Debug, Clone)]
pub struct ContainerDisk {
    /// Its name in the pod.
    pub name: String,
    /// Its id in containerd.
    pub id: String,
    /// Its writable layer; `None`: not measured.
    pub layer: Option<DiskUsage>,
    /// Its logs, those of earlier attempts included; `None`: not measured.
    pub logs: Option<Walk>,
    /// Its termination messages and the volumes that its image declares; `None`: not measured.
    pub files: Option<Walk>,
}

/// What a volume takes.
#[derive(Debug, Clone)]
pub struct VolumeDisk {
    /// Its name in the pod.
    pub name: String,
    /// The claim that it is of, in the pod's namespace.
    pub claim: Option<String>,
    /// What is in it; `None`: not measured.
    pub used: Option<Walk>,
    /// The file system that it is on, or is; `None`: not measured.
    pub space: Option<Space>,
    /// It counts as the pod's ephemeral storage.
    pub ephemeral: bool,
}

impl PodDisk {
    /// The pod's ephemeral storage: layers, logs, and files and volumes that go with it. `None`: a part of it is not known.
    pub fn ephemeral(&self) -> Option<DiskUsage> {
        let whole = |walk: Option<Walk>| walk.and_then(Walk::whole);
        let containers = self.containers.iter().flat_map(|one| [one.layer, whole(one.logs), whole(one.files)]);
        let volumes = self.volumes.iter().filter(|one| one.ephemeral).map(|one| whole(one.used));
        containers.chain(volumes).chain([self.files.whole()]).try_fold(DiskUsage::default(), |mut sum, part| {
            sum += part?;
            Some(sum)
        })
    }
}

/// The file system of images and layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageDisk {
    /// Its space; `None`: not measured.
    pub space: Option<Space>,
    /// What the layers of images and containers take.
    pub used: DiskUsage,
}

pub trait MeasureDisks: fmt::Debug + Send + Sync {
    /// Measures a pod. What cannot be measured is left out.
    fn pod<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, PodDisk>;

    /// The volumes of the pod that CSI drivers report of.
    fn claims<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, Vec<VolumeDisk>>;

    /// Measures the file system of images; the layers of the containers `apart` are not counted. `None`: containerd does
    /// not answer.
    fn images(&self, apart: HashSet<String>) -> BoxFuture<'_, Option<ImageDisk>>;
}

/// A measurement with its time.
#[derive(Debug, Clone)]
pub struct Dated<T> {
    /// When it was taken.
    pub at: Timestamp,
    /// What was measured.
    pub value: T,
    taken: Instant,
}

impl<T> Dated<T> {
    /// A measurement that was taken at that time, just now.
    pub fn new(at: Timestamp, value: T) -> Self {
        Self { at, value, taken: Instant::now() }
    }
}

/// The last measurements.
#[derive(Debug, Clone, Default)]
pub struct Disks {
    /// The file system of images.
    pub images: Option<Dated<ImageDisk>>,
    /// The running pods.
    pub pods: BTreeMap<PodUid, Arc<Dated<PodDisk>>>,
}

/// Measures disks on request. Clones share the last measurements.
#[derive(Debug, Clone)]
pub struct DiskMeter(Arc<MeterState>);

#[derive(Debug)]
struct MeterState {
    measure: Arc<dyn MeasureDisks>,
    /// How old a measurement may get.
    period: Duration,
    last: Mutex<Disks>,
    /// Held while measuring.
    turn: Arc<tokio::sync::Mutex<()>>,
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl DiskMeter {
    /// A meter that has measured nothing yet. Its measurements are tasks of `tasks`, which `stop` ends.
    pub fn new(measure: Arc<dyn MeasureDisks>, period: Duration, tasks: TaskTracker, stop: CancellationToken) -> Self {
        Self(Arc::new(MeterState { measure, period, last: Mutex::default(), turn: Arc::default(), tasks, stop }))
    }

    /// What is known of these pods and of the images, after a measurement of what is older than the period.
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
        // What takes longer continues, for the next request.
        let _ = tokio::time::timeout(MEASURE_TIMEOUT, shared.turn.lock()).await;
        self.last().clone()
    }

    fn last(&self) -> MutexGuard<'_, Disks> {
        self.0.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running pods that have to be measured, and whether the images have to be. Forgets the others.
    fn due(&self, pods: &ObservedPods) -> (Vec<Arc<ObservedPod>>, bool) {
        let running = pods.pods.values().filter(|pod| pod.containers.values().any(|one| one.pid.is_some()));
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
            containers.filter_map(|one| Some((one.id.clone(), one.layer?))).collect()
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
