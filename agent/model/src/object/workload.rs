//! Workloads: the objects of which a node's own controllers make pods, as Kubernetes' controllers do in a cluster.
//!
//! Input: a decoded document. Output: a [`Workload`] within its [`ObjectRecord`](super::ObjectRecord), with what its
//! controller needs to know, and the [`PodTemplate`] of its pods. The controllers are in `limpet-kinds`. Pure: no
//! I/O, no clock.

mod always_running;
mod amount;
mod authored;
pub mod cron_job;
mod decode;
mod immutable;
pub mod job;
pub mod labels;
mod replicated;
mod selector;
mod spec;
pub mod stateful_set;
mod template;

use std::fmt;
use std::sync::Arc;

use serde_json::Value;

pub(crate) use decode::{read, restore, template_path};
pub(crate) use immutable::forbidden;
pub use spec::{Replicated, Update, WorkloadSpec};
pub use template::{Additions, PodTemplate, incarnation_uid, pod_name, suffix, uid};

use crate::object::key::ObjectKey;
use crate::pod::{PodRecord, accept, fingerprint};
use crate::source::SourceKind;

/// A bound on the pods of one workload. A node runs hundreds, and a mistyped number must not use up its memory.
const MAX_REPLICAS: i32 = 1_000;

/// One accepted version of one workload.
#[derive(Clone)]
pub struct Workload {
    /// The whole document without its status, canonical JSON, as stored on disk.
    pub manifest: Arc<[u8]>,
    /// What its controller has to do.
    pub spec: WorkloadSpec,
    /// What its pods are made of.
    pub template: PodTemplate,
}

impl Workload {
    /// A pod like those its controller would make, for rules that apply to pods. `None` if the template is not a Pod.
    pub(crate) fn sample(&self, key: &ObjectKey, origin: &Arc<str>, source: SourceKind) -> Option<PodRecord> {
        accept::restore(&self.template.sample(key), origin, source, "node").ok()
    }

    /// The same in another namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Self {
        let mut document: Value = serde_json::from_slice(&self.manifest).unwrap_or_default();
        document["metadata"]["namespace"] = Value::from(namespace);
        Self { manifest: Arc::from(fingerprint::canonical(&document)), ..self.clone() }
    }
}

/// Two workloads are equal when their manifests are.
impl PartialEq for Workload {
    fn eq(&self, other: &Self) -> bool {
        self.manifest == other.manifest
    }
}

impl Eq for Workload {}

impl fmt::Debug for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Workload").field("spec", &self.spec).finish_non_exhaustive()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
