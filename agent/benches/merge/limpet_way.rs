//! limpet's merge, as the agent runs it: slots, the merge task, the channel to the supervisor.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use imbl::OrdMap;
use limpet_core::merge::slot::Slots;
use limpet_core::merge::table::MergeTable;
use limpet_core::merge::{Desired, Merged};
use limpet_core::source::delta::Edits;
use limpet_core::source::{Snapshots, SourceSnapshot};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_worker::merge_loop;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::fixture::Pods;
use super::{ReadBeside, Samples};

fn snapshot(pods: OrdMap<PodKey, Arc<PodRecord>>) -> Arc<SourceSnapshot> {
    Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() })
}

fn snapshots(pods: &Pods) -> Snapshots {
    SourceKind::ALL.map(|source| {
        let entries = pods.by_source[source.index()].iter().map(|record| (record.key.clone(), Arc::clone(record)));
        snapshot(entries.collect())
    })
}

/// The first merge of the whole state, up to the published snapshot.
pub(crate) fn first_merge(pods: &Pods, runs: usize) -> Samples {
    let all = snapshots(pods);
    let merge = |all| {
        let mut table = MergeTable::default();
        let outcome = table.absorb(all);
        let desired = Arc::new(table.desired().clone());
        (table, outcome, desired)
    };
    Samples::measure(runs, |_| all.clone(), merge)
}

struct Running {
    runtime: Runtime,
    slots: Arc<Slots>,
    desired: Desired,
    merged: mpsc::Receiver<Merged>,
    /// The changing source's pods with either version.
    views: [OrdMap<PodKey, Arc<PodRecord>>; 2],
    changing: PodKey,
    edits: Edits,
    source: SourceKind,
}

impl Running {
    fn new(pods: &Pods) -> Self {
        // One thread, as in the agent.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, mut merged) = mpsc::channel(1);
        let (slots, desired) = (Arc::<Slots>::default(), Desired::default());
        runtime.spawn(merge_loop::run(Arc::clone(&slots), desired.clone(), sender, CancellationToken::new()));
        let all = snapshots(pods);
        let (source, _) = pods.changing;
        let base = &all[source.index()].pods;
        let views = pods.versions.clone().map(|record| base.update(record.key.clone(), record));
        let changing = pods.versions[0].key.clone();
        SourceKind::ALL.into_iter().zip(&all).for_each(|(source, view)| slots.publish(source, Arc::clone(view)));
        runtime.block_on(merged.recv()).unwrap();
        Self { runtime, slots, desired, merged, views, changing, edits: Edits::default(), source }
    }

    /// From the publication to the received change.
    fn changes(&mut self, changes: usize) -> Samples {
        let (slots, merged, source) = (&self.slots, &mut self.merged, self.source);
        let (views, changing, edits) = (&self.views, &self.changing, &mut self.edits);
        self.runtime.block_on(async {
            let mut samples = Samples::default();
            for run in 1..=changes {
                edits.pod(changing.clone());
                let (pods, revision) = (views[run % 2].clone(), edits.next_revision());
                let view = Arc::new(SourceSnapshot { pods, ready: true, revision, ..SourceSnapshot::default() });
                let start = Instant::now();
                slots.publish(source, view);
                let got = merged.recv().await.unwrap();
                samples.push(start.elapsed());
                assert_eq!(got.changes.len(), 1);
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
    let desired = running.desired.clone();
    let key = &pods.versions[0].key;
    thread::scope(|scope| {
        for _ in 0..readers {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::black_box(desired.load().pods[key].pod.spec.is_some());
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
