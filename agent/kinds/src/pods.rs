//! The pods that a controller wants, as records: names, labels and owners as Kubernetes' controllers give them.

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::object::workload::labels::{
    INDEX, INDEX_FAILURES, INDEX_IGNORED_FAILURES, NAMES, POD_INDEX, POD_NAME, REVISION_HASH, TEMPLATE_HASH, UIDS,
};
use limpet_model::object::workload::{Additions, WorkloadSpec, incarnation_uid, pod_name, suffix, uid};
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord};
use limpet_model::pod::{Fault, PodRecord};
use limpet_model::source::SourceKind;

use crate::memory::{IndexFailures, Revision, Task, WantedPod};

/// The name of a replica: `web-<hash>-<suffix>` for a Deployment, otherwise `web-<suffix>`.
pub(crate) fn replica_name(node_name: &str, key: &ObjectKey, hash: &str, serial: u64) -> String {
    let suffix = suffix(node_name, key, hash, serial);
    match key.kind {
        ObjectKind::Deployment => pod_name(&key.name, &format!("{hash}-{suffix}")),
        _ => pod_name(&key.name, &suffix),
    }
}

/// The name of a Job's pod: `build-<suffix>`, or `build-<index>-<suffix>`.
pub(crate) fn task_name(node_name: &str, job: &ObjectKey, index: Option<u32>, hash: &str, serial: u64) -> String {
    let suffix = suffix(node_name, job, hash, serial);
    match index {
        Some(index) => pod_name(&job.name, &format!("{index}-{suffix}")),
        None => pod_name(&job.name, &suffix),
    }
}

/// The name of a StatefulSet's pod with that ordinal.
pub(crate) fn set_pod_name(key: &ObjectKey, ordinal: u32) -> String {
    format!("{}-{ordinal}", key.name)
}

/// The ordinal of a StatefulSet's pod of that name.
pub(crate) fn ordinal(key: &ObjectKey, name: &str) -> Option<u32> {
    name.strip_prefix(&*key.name)?.strip_prefix('-')?.parse().ok()
}

/// The object that a pod names as its controller: apiVersion, kind, name.
type Controller = (&'static str, &'static str, String);

/// The record of a wanted pod.
///
/// # Errors
///
/// The template is no longer one of a Pod, because this version of the agent does not read what an earlier one
/// accepted.
pub(crate) fn record(
    owner: &ObjectRecord,
    pod: &WantedPod,
    revision: &Revision,
    source: SourceKind,
    node_name: &str,
) -> Result<Arc<PodRecord>, Vec<Fault>> {
    let key = &owner.key;
    let (added, (version, kind, name)) = match (&pod.task, key.kind) {
        (Some(task), _) => of_task(owner, task, source, node_name),
        (None, ObjectKind::Deployment) => {
            (hash_label(TEMPLATE_HASH, pod), ("apps/v1", "ReplicaSet", format!("{}-{}", key.name, pod.hash)))
        }
        (None, ObjectKind::DaemonSet) => {
            (hash_label(REVISION_HASH, pod), ("apps/v1", "DaemonSet", key.name.to_string()))
        }
        (None, ObjectKind::StatefulSet) => {
            (of_set(owner, pod, source, node_name), ("apps/v1", "StatefulSet", key.name.to_string()))
        }
        (None, kind) => (Additions::default(), (kind.api_version(), kind.as_str(), key.name.to_string())),
    };
    let origin = (&owner.origin, source, node_name);
    let mut record = revision.template().pod(key, &pod.name, &added, (version, kind, &name), origin)?;
    if let Some(end) = pod.task.as_ref().and_then(|task| task.end) {
        record.pod.status.get_or_insert_default().phase = Some(end.phase().to_owned());
    }
    Ok(Arc::new(record))
}

/// Whether the record belongs to that wanted pod, and not to an earlier one of its name.
pub(crate) fn is_incarnation(record: &PodRecord, pod: &WantedPod, kind: ObjectKind, node_name: &str) -> bool {
    let names = (record.key.namespace(), record.key.name());
    kind != ObjectKind::StatefulSet
        || record.uid.as_str() == incarnation_uid(node_name, record.source, names, &pod.hash, pod.serial)
}

fn hash_label(label: &'static str, pod: &WantedPod) -> Additions {
    Additions { labels: [(label, pod.hash.clone())].into(), ..Additions::default() }
}

/// What a StatefulSet's controller adds to a pod.
fn of_set(owner: &ObjectRecord, pod: &WantedPod, source: SourceKind, node_name: &str) -> Additions {
    let key = &owner.key;
    let spec = owner.workload.as_ref().map(|workload| &workload.spec);
    let (subdomain, claims) = match spec {
        Some(WorkloadSpec::StatefulSet(set)) => (set.service_name.clone(), set.claims.as_slice()),
        _ => (None, [].as_slice()),
    };
    let claims = claims.iter().map(|template| (template.name.clone(), template.claim_name(&pod.name)));
    let mut labels = BTreeMap::new();
    labels.insert(REVISION_HASH, format!("{}-{}", key.name, pod.hash));
    labels.insert(POD_NAME, pod.name.clone());
    labels.extend(ordinal(key, &pod.name).map(|ordinal| (POD_INDEX, ordinal.to_string())));
    let names = (&*key.namespace, pod.name.as_str());
    Additions {
        labels,
        host_name: Some(pod.name.clone()),
        subdomain,
        claims: claims.collect(),
        uid: Some(incarnation_uid(node_name, source, names, &pod.hash, pod.serial)),
        ..Additions::default()
    }
}

/// What a Job's controller adds to a pod, and the apiserver to the Job's template.
fn of_task(owner: &ObjectRecord, task: &Task, source: SourceKind, node_name: &str) -> (Additions, Controller) {
    let mut added = Additions::default();
    let spec = owner.workload.as_ref().map(|workload| &workload.spec);
    let has_own_labels = matches!(spec, Some(WorkloadSpec::Job(job)) if job.manual_selector);
    if !has_own_labels {
        let uid = uid(node_name, source, "Job", &owner.key.namespace, &task.job);
        added.labels.extend(NAMES.map(|label| (label, task.job.clone())));
        added.labels.extend(UIDS.map(|label| (label, uid.clone())));
    }
    if let Some(index) = task.index {
        added.labels.insert(INDEX, index.to_string());
        added.annotations.insert(INDEX, index.to_string());
        if let Some(IndexFailures { counted, ignored }) = task.failures {
            added.annotations.insert(INDEX_FAILURES, counted.to_string());
            if ignored > 0 {
                added.annotations.insert(INDEX_IGNORED_FAILURES, ignored.to_string());
            }
        }
        added.host_name = Some(format!("{}-{index}", task.job));
        added.index_variable = true;
    }
    (added, ("batch/v1", "Job", task.job.clone()))
}
