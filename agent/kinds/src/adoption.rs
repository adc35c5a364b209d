//! What runs of a workload of which nothing is remembered: its pods carry their templates, so that a lost database
//! restarts none of them.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::{ObjectKey, ObjectKind};
use limpet_model::pod::PodRecord;
use limpet_model::pod::identity::OWNER_ANNOTATION;

use crate::id::WorkloadId;
use crate::memory::{Memory, WantedPod};
use crate::pods::replica_name;

/// Whether the pod is one of a workload.
pub fn has_workload(record: &PodRecord) -> bool {
    owner(record).is_some()
}

/// The owner that a pod's annotation names, as `Kind/name`.
fn owner(record: &PodRecord) -> Option<&str> {
    record.pod.metadata.annotations.as_ref()?.get(OWNER_ANNOTATION).map(String::as_str)
}

/// The workload that a pod is of, as the pod says.
pub(crate) fn workload(record: &PodRecord) -> Option<WorkloadId> {
    let (kind, name) = owner(record)?.split_once('/')?;
    let key = ObjectKey::new(ObjectKind::from_name(kind)?, record.key.namespace(), name);
    Some(WorkloadId { source: record.source, key })
}

/// The memory of the workload as its running pods have it. What they do not have are the templates before theirs.
pub(crate) fn recall<'a>(
    key: &ObjectKey,
    pods: impl Iterator<Item = &'a Arc<PodRecord>>,
    node_name: &str,
    now: Timestamp,
) -> Memory {
    let mut memory = Memory::default();
    for record in pods {
        let Some(template) = PodTemplate::of_pod(record) else { continue };
        let hash = template.hash();
        memory.begin_revision(&hash, &template);
        let name = record.key.name().to_owned();
        // A number above those of a node's pods is of no use to anybody.
        let serial = (0..1_000).find(|serial| replica_name(node_name, key, &hash, *serial) == name).unwrap_or(0);
        memory.pods.push(WantedPod { name, hash, serial, made: now });
    }
    memory
}
