//! The pure parts on their own: a manifest read, one changed pod among many merged.
#![allow(clippy::unwrap_used, missing_docs)]

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use imbl::OrdMap;
use limpet::merge::table::MergeTable;
use limpet::pod::{self, PodKey, PodRecord};
use limpet::source::{SourceKind, SourceSnapshot};

fn manifest(name: usize, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web-{name}\n  labels:\n    app: web\nspec:\n  containers:\n  \
         - name: web\n    image: {image}\n    env:\n    - name: MODE\n      value: \"1\"\n    resources:\n      \
         limits:\n        memory: 64Mi\n  - name: proxy\n    image: proxy:1\n"
    )
}

fn record(name: usize, image: &str) -> Arc<PodRecord> {
    Arc::clone(&pod::read(manifest(name, image).as_bytes(), "web.yaml", SourceKind::File, "node").pods[0])
}

fn snapshot(pods: OrdMap<PodKey, Arc<PodRecord>>) -> [Arc<SourceSnapshot>; 4] {
    let file = Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() });
    [file, Arc::default(), Arc::default(), Arc::default()]
}

fn read(c: &mut Criterion) {
    let text = manifest(1, "web:1");
    c.bench_function("pod/read", |b| {
        b.iter(|| black_box(pod::read(text.as_bytes(), "web.yaml", SourceKind::File, "node")));
    });
}

fn merge(c: &mut Criterion) {
    let mut group = c.benchmark_group("merge/one changed pod among");
    for count in [10, 100, 1_000, 10_000] {
        let records = (0..count).map(|name| record(name, "web:1"));
        let before: OrdMap<PodKey, Arc<PodRecord>> = records.map(|record| (record.key.clone(), record)).collect();
        let changed = record(count / 2, "web:2");
        let after = before.update(changed.key.clone(), changed);
        let mut table = MergeTable::default();
        table.absorb(snapshot(before.clone()));
        let (before, after) = (snapshot(before), snapshot(after));
        group.bench_function(BenchmarkId::from_parameter(count), |b| {
            // There and back again: two merges of one changed pod each.
            b.iter(|| {
                black_box(table.absorb(after.clone()));
                black_box(table.absorb(before.clone()));
            });
        });
    }
    group.finish();
}

criterion_group!(benches, read, merge);
criterion_main!(benches);
