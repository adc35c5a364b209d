//! The memory cost of one changed pod: it depends neither on the pod's size nor on the number of other pods.
#![allow(clippy::unwrap_used)]

use limpet_model::manifest;
use std::sync::Arc;

use allocation_counter::{AllocationInfo, measure};
use imbl::OrdMap;
use limpet_core::merge::slot::Slots;
use limpet_core::merge::{Desired, Merged, PodChange};
use limpet_core::source::SourceSnapshot;
use limpet_core::source::delta::Edits;
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use limpet_model::source::SourceKind;
use limpet_worker::merge_loop;
use serde_json::json;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

const KIB: usize = 1 << 10;

/// A pod whose manifest has about so many bytes.
fn record(image: &str, size: usize) -> PodRecord {
    let manifest = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "web", "annotations": { "note": "x".repeat(size) } },
        "spec": { "containers": [
            { "name": "web", "image": image, "args": ["y".repeat(size / 2)] },
            { "name": "proxy", "image": "proxy:1" },
        ] },
    });
    let read = manifest::read(manifest.to_string().as_bytes(), "web.yaml", SourceKind::File, "edge1");
    (*read.pods[0]).clone()
}

/// Another pod of the same shape.
fn numbered(template: &PodRecord, number: usize) -> Arc<PodRecord> {
    let mut hash = template.immutable_fingerprint;
    hash.0[..8].copy_from_slice(&number.to_be_bytes());
    Arc::new(PodRecord {
        ephemeral: Vec::new(),
        key: PodKey::new("default", format!("web-{number:05}")),
        uid: PodUid::new(format!("{hash}")),
        immutable_fingerprint: hash,
        ..template.clone()
    })
}

/// The merge as the agent runs it, on one thread, so that its allocations are counted with its caller's.
struct Running {
    runtime: Runtime,
    slots: Arc<Slots>,
    merged: mpsc::Receiver<Merged>,
    edits: Edits,
}

impl Running {
    fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (sender, merged) = mpsc::channel(1);
        let slots = Arc::<Slots>::default();
        runtime.spawn(merge_loop::run(Arc::clone(&slots), Desired::default(), sender, CancellationToken::new()));
        Self { runtime, slots, merged, edits: Edits::default() }
    }

    /// Publishes the source's new snapshot, in which that pod differs, and returns the changes that the supervisor receives.
    fn publish(&mut self, pods: OrdMap<PodKey, Arc<PodRecord>>, edited: &PodKey) -> Vec<PodChange> {
        self.edits.pod(edited.clone());
        let revision = self.edits.next_revision();
        let snapshot = SourceSnapshot { pods, ready: true, revision, ..SourceSnapshot::default() };
        self.slots.publish(SourceKind::File, Arc::new(snapshot));
        self.runtime.block_on(self.merged.recv()).unwrap().changes
    }
}

/// The allocations from the edit of one pod of that size among so many, in the source's map, to its change.
fn one_change(among: usize, size: usize) -> AllocationInfo {
    let small = record("neighbour:1", KIB);
    let versions = ["web:1", "web:2", "web:3"].map(|image| numbered(&record(image, size), among / 2));
    let mut pods: OrdMap<PodKey, Arc<PodRecord>> =
        (0..among).map(|number| numbered(&small, number)).map(|record| (record.key.clone(), record)).collect();
    let mut running = Running::new();
    let [first, second, third] = versions;
    // The first change includes one-time allocations.
    for record in [first, second] {
        pods.insert(record.key.clone(), Arc::clone(&record));
        running.publish(pods.clone(), &record.key);
    }
    let mut changes = Vec::new();
    let allocated = measure(|| {
        pods.insert(third.key.clone(), Arc::clone(&third));
        changes = running.publish(pods.clone(), &third.key);
    });
    assert!(matches!(&changes[..], [PodChange::Updated { new, .. }] if Arc::ptr_eq(new, &third)), "{changes:?}");
    allocated
}

#[test]
fn a_change_costs_the_same_whatever_the_size_of_the_pod() {
    let (small, large) = (one_change(10_000, KIB), one_change(10_000, 100 * KIB));
    println!("one changed pod among 10,000: {} bytes in {} allocations", small.bytes_total, small.count_total);
    assert_eq!(small, large);
}

#[test]
fn a_change_among_many_costs_about_what_it_costs_among_few() {
    let (few, many) = (one_change(100, KIB), one_change(10_000, KIB));
    assert!(many.bytes_total <= 3 * few.bytes_total, "{} bytes, {} among 100", many.bytes_total, few.bytes_total);
}

#[test]
fn naming_what_differs_copies_nothing() {
    let diff = |size: usize| {
        let (old, new) = (record("web:1", size), record("web:2", size));
        let (old, new) = (Arc::new(old), Arc::new(new));
        let change = PodChange::Updated { old, new };
        let mut parts = 0;
        let allocated = measure(|| parts = change.diff().map_or(0, |diff| diff.parts().len()));
        assert_eq!(parts, 1);
        allocated
    };
    assert_eq!(diff(KIB), diff(100 * KIB));
}
