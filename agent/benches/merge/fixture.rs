//! The pods of both benchmarks: read from manifests, spread over all sources, one of them in two versions.

use limpet_model::manifest;
use std::sync::Arc;

use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;

pub(crate) fn manifest(number: usize, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web-{number:05}\n  labels: {{app: web, tier: front}}\n  \
         annotations: {{team: edge, note: a pod as people write them}}\nspec:\n  containers:\n  - name: web\n    \
         image: {image}\n    args: [--listen, ':8080', --log, info]\n    env:\n    - {{name: MODE, value: '1'}}\n    \
         - {{name: UPSTREAM, value: 'http://10.0.0.1:9000'}}\n    ports:\n    - {{name: http, containerPort: 8080}}\n    \
         resources: {{limits: {{memory: 64Mi, cpu: 500m}}}}\n    volumeMounts:\n    - {{name: data, mountPath: /data}}\n  \
         - name: proxy\n    image: proxy:1\n  volumes:\n  - {{name: data, hostPath: {{path: /srv/data}}}}\n"
    )
}

pub(crate) fn record(number: usize, image: &str, source: SourceKind) -> Arc<PodRecord> {
    Arc::clone(&manifest::read(manifest(number, image).as_bytes(), "web.yaml", source, "edge1").pods[0])
}

/// The pods of every source, in order of their keys.
#[derive(Debug)]
pub(crate) struct Pods {
    pub(crate) by_source: [Vec<Arc<PodRecord>>; SourceKind::ALL.len()],
    /// The source of the pod that changes, and its index there.
    pub(crate) changing: (SourceKind, usize),
    /// That pod, before and after an edit of its image.
    pub(crate) versions: [Arc<PodRecord>; 2],
}

impl Pods {
    pub(crate) fn new(count: usize) -> Self {
        let by_source = SourceKind::ALL.map(|source| {
            let numbers = (0..count).filter(|number| number % 4 == source.index());
            numbers.map(|number| record(number, "web:1", source)).collect::<Vec<_>>()
        });
        let source = SourceKind::File;
        let index = by_source[source.index()].len() / 2;
        let number = index * 4 + source.index();
        let versions = ["web:1", "web:2"].map(|image| record(number, image, source));
        Self { by_source, changing: (source, index), versions }
    }
}
