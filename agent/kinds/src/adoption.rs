//! Adopts running pods of workloads of which nothing is remembered. The pods carry their templates, so that the loss
//! of the database restarts none of them.

use std::sync::Arc;

use jiff::Timestamp;
use limpet_model::object::workload::labels::{INDEX, INDEX_FAILURES, INDEX_IGNORED_FAILURES};
use limpet_model::object::workload::{PodTemplate, WorkloadSpec, incarnation_uid};
use limpet_model::object::{ObjectKey, ObjectKind};
use limpet_model::pod::PodRecord;
use limpet_model::pod::identity::OWNER_ANNOTATION;
use serde_json::Value;

use crate::cron_job::scheduled;
use crate::id::WorkloadId;
use crate::memory::{CronMemory, IndexFailures, JobMemory, MadeJob, Memory, Task, WantedPod};
use crate::pods::replica_name;

/// Whether the pod is one of a workload.
pub fn has_workload(record: &PodRecord) -> bool {
    owner(record).is_some()
}

/// The owner that a pod's annotation names, as `Kind/name`.
fn owner(record: &PodRecord) -> Option<&str> {
    record.pod.metadata.annotations.as_ref()?.get(OWNER_ANNOTATION).map(String::as_str)
}

/// The workload that a pod belongs to, according to the pod.
pub(crate) fn workload(record: &PodRecord) -> Option<WorkloadId> {
    let (kind, name) = owner(record)?.split_once('/')?;
    let key = ObjectKey::new(ObjectKind::from_name(kind)?, record.key.namespace(), name);
    Some(WorkloadId { source: record.source, key })
}

/// The Job that a pod belongs to: the object that it names as its controller.
pub(crate) fn job(record: &PodRecord) -> Option<&str> {
    let owner = record.pod.metadata.owner_references.as_ref()?.first()?;
    (owner.kind == "Job").then_some(owner.name.as_str())
}

/// The workload's memory, derived from its running pods. They lack the templates before theirs, and the pods that
/// have ended and are gone.
pub(crate) fn recall<'a>(
    key: &ObjectKey,
    (spec, hash_now): (&WorkloadSpec, &str),
    pods: impl Iterator<Item = &'a Arc<PodRecord>>,
    node_name: &str,
    now: Timestamp,
) -> Memory {
    let mut memory = Memory::default();
    for record in pods {
        let Some(template) = PodTemplate::of_pod(record) else { continue };
        let hash = template.hash();
        if matches!(spec, WorkloadSpec::Job(_)) && hash != hash_now {
            // No edit changes the template of a Job: the pod is that of an earlier Job of its name.
            continue;
        }
        memory.begin_revision(&hash, &template, None);
        let name = record.key.name().to_owned();
        let is_serial = |serial: &u64| match spec {
            WorkloadSpec::StatefulSet(_) => {
                let names = (&*key.namespace, name.as_str());
                record.uid.as_str() == incarnation_uid(node_name, record.source, names, &hash, *serial)
            }
            _ => replica_name(node_name, key, &hash, *serial) == name,
        };
        // A number above those of a node's pods is never needed.
        let serial = (0..1_000).find(is_serial).unwrap_or(0);
        memory.pods.push(WantedPod { name, hash, serial, made: now, task: task(record) });
    }
    if let WorkloadSpec::CronJob(spec) = spec {
        memory.cron = Some(recall_jobs(key, &spec.job, &memory, now));
    }
    memory
}

fn task(record: &PodRecord) -> Option<Task> {
    let labels = record.pod.metadata.labels.as_ref();
    let index = labels.and_then(|labels| labels.get(INDEX)?.parse().ok());
    Some(Task { job: job(record)?.to_owned(), index, failures: failures(record), end: None })
}

/// The failures of the pod's index before it, according to the pod.
fn failures(record: &PodRecord) -> Option<IndexFailures> {
    let annotations = record.pod.metadata.annotations.as_ref()?;
    let number = |name: &str| annotations.get(name)?.parse().ok();
    Some(IndexFailures { counted: number(INDEX_FAILURES)?, ignored: number(INDEX_IGNORED_FAILURES).unwrap_or(0) })
}

/// The Jobs that the pods belong to, so that their runs do not happen again.
fn recall_jobs(key: &ObjectKey, spec: &Value, memory: &Memory, now: Timestamp) -> CronMemory {
    let mut cron = CronMemory::default();
    for pod in &memory.pods {
        let Some(task) = &pod.task else { continue };
        if cron.jobs.iter().any(|made| made.name == task.job) {
            continue;
        }
        cron.jobs.push(MadeJob {
            name: task.job.clone(),
            scheduled: scheduled(&key.name, &task.job).unwrap_or(now),
            spec: spec.clone(),
            hash: pod.hash.clone(),
            state: JobMemory::default(),
            is_reported: false,
        });
    }
    cron.jobs.sort_by_key(|made| made.scheduled);
    cron.last_schedule = cron.jobs.last().map(|made| made.scheduled);
    cron
}
