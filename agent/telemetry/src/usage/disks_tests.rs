//! When disks are measured, with a paused clock.
#![allow(clippy::unwrap_used)]

use limpet_core::fixtures::observed;
use limpet_core::status::observed::ObservedContainer;
use serde_json::json;
use tokio::sync::Notify;

use super::*;

const PERIOD: Duration = Duration::from_secs(60);

/// Counts what it measures.
#[derive(Debug, Default)]
struct Counting {
    seen: Mutex<Vec<String>>,
    /// Measuring the pod with this name takes until it is notified.
    slow: Option<(&'static str, Notify)>,
}

impl Counting {
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

impl MeasureDisks for Counting {
    fn pod<'a>(&'a self, pod: &'a ObservedPod) -> BoxFuture<'a, PodDisk> {
        Box::pin(async move {
            let name = pod.record.key.name();
            if let Some((_, answers)) = self.slow.as_ref().filter(|(slow, _)| *slow == name) {
                answers.notified().await;
            }
            self.seen.lock().unwrap().push(name.to_owned());
            let layer = Some(DiskUsage { bytes: 100, inodes: 2 });
            let container = |(name, container): (&String, &ObservedContainer)| ContainerDisk {
                name: name.clone(),
                id: container.id.clone(),
                layer,
                logs: Some(Walk { seen: DiskUsage { bytes: 10, inodes: 1 }, complete: true }),
                files: Some(Walk { seen: DiskUsage { bytes: 1, inodes: 1 }, complete: true }),
            };
            let containers = pod.containers.iter().map(container).collect();
            let files = Walk { seen: DiskUsage { bytes: 2, inodes: 1 }, complete: true };
            PodDisk { containers, files, ..PodDisk::default() }
        })
    }

    fn claims<'a>(&'a self, _: &'a ObservedPod) -> BoxFuture<'a, Vec<VolumeDisk>> {
        Box::pin(async { Vec::new() })
    }

    fn images(&self, apart: HashSet<String>) -> BoxFuture<'_, Option<ImageDisk>> {
        self.seen.lock().unwrap().push(format!("images apart from {}", apart.len()));
        Box::pin(async { Some(ImageDisk { space: None, used: DiskUsage { bytes: 1_000, inodes: 9 } }) })
    }
}

fn meter(measure: &Arc<Counting>) -> DiskMeter {
    let measure = Arc::clone(measure) as Arc<dyn MeasureDisks>;
    DiskMeter::new(measure, PERIOD, TaskTracker::new(), CancellationToken::new())
}

fn pods(names: &[(&str, Option<u32>)]) -> ObservedPods {
    let pod = |(name, pid): &(&str, Option<u32>)| {
        let pod = observed(json!({ "metadata": { "name": name, "uid": format!("u-{name}") } }));
        let container = ObservedContainer { id: format!("{name}-1"), pid: *pid, ..ObservedContainer::default() };
        let containers = BTreeMap::from([("main".to_owned(), container)]);
        (pod.record.key.clone(), Arc::new(ObservedPod { containers, ..(*pod).clone() }))
    };
    ObservedPods::new(names.iter().map(pod).collect())
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_measured_once_in_each_period_and_only_while_it_runs() {
    let counting = Arc::new(Counting::default());
    let meter = meter(&counting);
    let both = pods(&[("a", Some(1)), ("b", Some(2)), ("ended", None)]);
    let disks = meter.disks(&both).await;
    assert_eq!(counting.taken(), ["a", "b", "images apart from 2"]);
    assert_eq!(disks.images.unwrap().value.used, DiskUsage { bytes: 1_200, inodes: 13 }, "the layers are added");
    let a = &disks.pods[&PodUid::new("u-a")];
    assert_eq!(a.value.ephemeral(), Some(DiskUsage { bytes: 113, inodes: 5 }));

    tokio::time::advance(PERIOD / 2).await;
    meter.disks(&both).await;
    assert!(counting.taken().is_empty(), "they are half a period old");
    let three = pods(&[("a", Some(1)), ("b", Some(2)), ("new", Some(3))]);
    meter.disks(&three).await;
    assert_eq!(counting.taken(), ["new"]);

    tokio::time::advance(PERIOD / 2).await;
    let single = meter.disks(&pods(&[("a", Some(1))])).await;
    assert_eq!(counting.taken(), ["a", "images apart from 1"]);
    assert_eq!(single.pods.len(), 1, "what does not run any more is forgotten");
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_for_no_walk_that_takes_long() {
    let counting = Arc::new(Counting { slow: Some(("b", Notify::new())), ..Counting::default() });
    let meter = meter(&counting);
    let all = pods(&[("a", Some(1)), ("b", Some(2)), ("c", Some(3))]);
    let asked = Instant::now();
    let first = meter.disks(&all).await;
    assert_eq!((asked.elapsed(), first.pods.len()), (MEASURE_TIMEOUT, 1), "a is known, the others are not yet");
    let second = meter.disks(&all).await;
    assert_eq!((asked.elapsed(), second.pods.len()), (MEASURE_TIMEOUT * 2, 1));
    counting.slow.as_ref().unwrap().1.notify_one();
    let third = meter.disks(&all).await;
    assert_eq!((asked.elapsed(), third.pods.len()), (MEASURE_TIMEOUT * 2, 3));
    assert_eq!(counting.taken(), ["a", "b", "c", "images apart from 3"], "one task has measured for all");
}

#[test]
fn storage_that_is_not_known_is_no_figure() {
    let used = DiskUsage { bytes: 7, inodes: 1 };
    let volume = |complete, ephemeral| VolumeDisk {
        name: "data".to_owned(),
        claim: None,
        used: Some(Walk { seen: used, complete }),
        space: None,
        ephemeral,
    };
    let files = |bytes| Walk { seen: DiskUsage { bytes, inodes: 1 }, complete: true };
    let ephemeral = |volumes| PodDisk { containers: Vec::new(), volumes, files: files(2) }.ephemeral();
    let sum = DiskUsage { bytes: 9, inodes: 2 };
    assert_eq!(ephemeral(vec![volume(true, true), volume(false, false)]), Some(sum));
    assert_eq!(ephemeral(vec![volume(false, true)]), None, "the walk was cut short");
    let (name, id) = ("main".to_owned(), "c1".to_owned());
    let container = ContainerDisk { name, id, layer: Some(used), logs: Some(files(10)), files: Some(files(100)) };
    let disk = PodDisk { containers: vec![container], volumes: Vec::new(), files: files(2) };
    assert_eq!(
        disk.ephemeral(),
        Some(DiskUsage { bytes: 119, inodes: 4 }),
        "what containers write to files of the agent"
    );
}
