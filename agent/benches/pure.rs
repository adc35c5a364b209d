//! Pure functions: decoding a manifest.
#![allow(clippy::unwrap_used, missing_docs)]

use limpet_model::manifest;
use std::hint::black_box;

use criterion::{Criterion, criterion_group, criterion_main};
use limpet_model::source::SourceKind;

fn manifest(name: usize, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web-{name}\n  labels:\n    app: web\nspec:\n  containers:\n  \
         - name: web\n    image: {image}\n    env:\n    - name: MODE\n      value: \"1\"\n    resources:\n      \
         limits:\n        memory: 64Mi\n  - name: proxy\n    image: proxy:1\n"
    )
}

fn read(c: &mut Criterion) {
    let text = manifest(1, "web:1");
    c.bench_function("pod/read", |b| {
        b.iter(|| black_box(manifest::read(text.as_bytes(), "web.yaml", SourceKind::File, "node")));
    });
}

criterion_group!(benches, read);
criterion_main!(benches);
