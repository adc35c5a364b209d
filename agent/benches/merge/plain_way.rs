//! A plain implementation, as in kubelet, and written to be fast: one mutex around the maps, every pod of the published
//! snapshot compared field by field, changes copied. The snapshots are sorted like the maps, so that both are walked in
//! parallel without look-ups; kubelet hashes and uses reflection.

use std::cmp::Ordering as Order;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use k8s_openapi::api::core::v1::Pod;
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

use super::fixture::Pods;
use super::{ReadBeside, Samples};

type View = Vec<(PodKey, Pod)>;

#[derive(Debug)]
enum Change {
    Removed(#[allow(dead_code)] Pod),
    Added(#[allow(dead_code)] Pod),
    Updated(#[allow(dead_code)] Pod),
}

#[derive(Debug, Default)]
struct Merge {
    pods: Mutex<[BTreeMap<PodKey, Pod>; SourceKind::ALL.len()]>,
}

impl Merge {
    /// Applies a source's snapshot.
    fn set(&self, source: SourceKind, view: &View) -> Vec<Change> {
        let mut sources = self.pods.lock().unwrap();
        let known = &mut sources[source.index()];
        let (mut changes, mut fresh) = (Vec::new(), Vec::new());
        let mut gone = Vec::new();
        let mut before = known.iter_mut().peekable();
        for (key, pod) in view {
            while let Some((old_key, _)) = before.next_if(|(old_key, _)| **old_key < *key) {
                gone.push(old_key.clone());
            }
            match before.peek().map(|(old_key, _)| (*old_key).cmp(key)) {
                Some(Order::Equal) => {
                    let Some((_, old)) = before.next() else { continue };
                    if differs(old, pod) {
                        *old = pod.clone();
                        changes.push(Change::Updated(pod.clone()));
                    }
                }
                _ => fresh.push((key.clone(), pod.clone())),
            }
        }
        gone.extend(before.map(|(key, _)| key.clone()));
        changes.extend(gone.iter().filter_map(|key| known.remove(key)).map(Change::Removed));
        changes.extend(fresh.iter().map(|(_, pod)| Change::Added(pod.clone())));
        known.extend(fresh);
        changes
    }

    fn read<T>(&self, key: &PodKey, read: impl FnOnce(&Pod) -> T) -> Option<T> {
        let sources = self.pods.lock().unwrap();
        sources.iter().find_map(|pods| pods.get(key)).map(read)
    }
}

/// The fields that kubelet's `podsDifferSemantically` compares.
fn differs(old: &Pod, new: &Pod) -> bool {
    old.spec != new.spec
        || old.metadata.labels != new.metadata.labels
        || old.metadata.annotations != new.metadata.annotations
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || old.metadata.deletion_grace_period_seconds != new.metadata.deletion_grace_period_seconds
}

fn views(pods: &Pods) -> [View; SourceKind::ALL.len()] {
    let view = |source: SourceKind| -> View {
        pods.by_source[source.index()].iter().map(|record| (record.key.clone(), record.pod.clone())).collect()
    };
    SourceKind::ALL.map(view)
}

pub(crate) fn first_merge(pods: &Pods, runs: usize) -> Samples {
    let views = views(pods);
    let merge = |()| {
        let merge = Merge::default();
        let changes = SourceKind::ALL.map(|source| merge.set(source, &views[source.index()]));
        (merge, changes)
    };
    Samples::measure(runs, |_| (), merge)
}

struct Running {
    runtime: Runtime,
    merge: Arc<Merge>,
    views: [View; 2],
    source: SourceKind,
}

impl Running {
    fn new(pods: &Pods) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let merge = Arc::<Merge>::default();
        let all = views(pods);
        SourceKind::ALL.into_iter().for_each(|source| drop(merge.set(source, &all[source.index()])));
        let (source, index) = pods.changing;
        let versions = pods.versions.clone().map(|record| {
            let mut view = all[source.index()].clone();
            view[index].1 = record.pod.clone();
            view
        });
        Self { runtime, merge, views: versions, source }
    }

    fn changes(&mut self, changes: usize) -> Samples {
        let (merge, views, source) = (&self.merge, &self.views, self.source);
        self.runtime.block_on(async {
            let (sender, mut receiver) = mpsc::channel(50);
            let mut samples = Samples::default();
            for run in 1..=changes {
                let start = Instant::now();
                sender.send(merge.set(source, &views[run % 2])).await.unwrap();
                let got = receiver.recv().await.unwrap();
                samples.push(start.elapsed());
                assert_eq!(got.len(), 1);
            }
            samples
        })
    }
}

pub(crate) fn changes(pods: &Pods, changes: usize) -> Samples {
    let mut running = Running::new(pods);
    running.changes(changes.min(100));
    running.changes(changes)
}

pub(crate) fn changes_while_read(pods: &Pods, changes: usize, readers: usize) -> ReadBeside {
    let mut running = Running::new(pods);
    running.changes(changes.min(100));
    let (reads, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let merge = Arc::clone(&running.merge);
    let key = &pods.versions[0].key;
    thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(merge.read(key, |pod| pod.spec.is_some()));
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let start = Instant::now();
        let changes = running.changes(changes);
        let reads_per_second = reads.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64();
        stop.store(true, Ordering::Relaxed);
        ReadBeside { changes, reads_per_second }
    })
}
