//! What a controller remembers about its workload. It is on disk before it takes effect, so that after a power cut at
//! any moment the controller continues where it was.

mod cron_job;
mod job;
mod status;

use std::collections::BTreeSet;

use jiff::Timestamp;
use limpet_model::object::workload::PodTemplate;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use cron_job::{CronMemory, MadeJob};
pub use job::{Failures, JobMemory, Verdict};

use crate::id::WorkloadId;

/// What is remembered about one workload. It is stored in this JSON form, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Memory {
    /// The templates that have pods, and earlier ones that are kept for a rollback, by number.
    pub revisions: Vec<Revision>,
    /// The wanted pods, in the order in which they were made.
    pub pods: Vec<WantedPod>,
    /// The number of replicas, and the highest number of pods, for which the revisions' shares were computed.
    pub scaled_for: (u32, u32),
    /// The hash of the template that all pods of a StatefulSet had last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub set: Option<String>,
    /// The ordinals of a StatefulSet whose pods have had claims, which are kept.
    #[serde(skip_serializing_if = "BTreeSet::is_empty")]
    pub claims: BTreeSet<u32>,
    /// What a Job's controller also remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job: Option<JobMemory>,
    /// What a CronJob's controller also remembers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cron: Option<CronMemory>,
}

/// A template that was in effect.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Revision {
    /// Grows with each template that takes effect.
    pub number: u64,
    /// The hash of the template.
    pub hash: String,
    /// The template, as [`PodTemplate::to_value`] writes it.
    pub template: Value,
    /// Why it took effect: the workload's annotation `kubernetes.io/change-cause`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
}

impl Revision {
    pub fn template(&self) -> PodTemplate {
        PodTemplate::new(&self.template)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WantedPod {
    pub name: String,
    /// The hash of its template.
    pub hash: String,
    /// Its number among the pods of that template, from which its name is derived.
    pub serial: u64,
    /// When it was made, by the node's clock.
    pub made: Timestamp,
    /// What it does, if it is a Job's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<Task>,
}

impl WantedPod {
    /// Whether it is a Job's whose end was counted.
    pub(crate) fn has_ended(&self) -> bool {
        self.task.as_ref().is_some_and(|task| task.end.is_some())
    }
}

/// What a Job's pod does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Task {
    pub job: String,
    /// Its completion index, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<u32>,
    /// The failures of its index before it, where these are limited for each index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failures: Option<IndexFailures>,
    /// How it has ended, once that was counted. It does not run again, whatever is left of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<End>,
}

/// How often an index had failed when a pod was made for it: the annotations `job-index-failure-count` and
/// `job-index-ignored-failure-count`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IndexFailures {
    /// Failures that count towards `backoffLimitPerIndex`.
    pub counted: u32,
    /// Failures that `podFailurePolicy` ignores.
    pub ignored: u32,
}

/// How a Job's pod has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    Succeeded,
    Failed,
}

impl End {
    /// The phase of such a pod.
    pub(crate) fn phase(self) -> &'static str {
        match self {
            Self::Succeeded => "Succeeded",
            Self::Failed => "Failed",
        }
    }
}

impl Memory {
    /// What [`Self::to_bytes`] wrote; `None` for anything else.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The form on disk.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Its maps have texts as keys, and writing to memory cannot fail.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// The revision of that hash.
    pub fn revision(&self, hash: &str) -> Option<&Revision> {
        self.revisions.iter().find(|revision| revision.hash == hash)
    }

    /// Whether it is that of another Job than the one whose template has that hash: no edit changes the template of a Job.
    pub(crate) fn is_of_another_job(&self, hash: &str) -> bool {
        self.job.is_some() && self.revisions.last().is_some_and(|newest| newest.hash != hash)
    }

    /// The workload was removed, and another one has its name. Jobs and CronJobs know nothing of what was before; pods
    /// that run for ever go on, as after an edit.
    pub(crate) fn begin_again(&mut self) {
        if let Some(job) = &self.job {
            // The pods of the Job before may not have gone yet, and keep their names.
            let job = JobMemory { next_serial: job.next_serial, ..JobMemory::default() };
            *self = Self { job: Some(job), ..Self::default() };
        } else if self.cron.is_some() {
            *self = Self::default();
        }
    }

    /// Makes `template` the newest revision. As in Kubernetes, one that was in effect before gets a new number, and the
    /// newest one the cause that the workload has now.
    pub(crate) fn begin_revision(&mut self, hash: &str, template: &PodTemplate, cause: Option<&str>) {
        let cause = cause.map(str::to_owned);
        match self.revisions.last_mut() {
            Some(newest) if newest.hash == hash => {
                if cause.is_some() && newest.cause != cause {
                    newest.cause = cause;
                }
            }
            newest => {
                let number = newest.map_or(1, |newest| newest.number + 1);
                self.revisions.retain(|revision| revision.hash != hash);
                self.revisions.push(Revision { number, hash: hash.to_owned(), template: template.to_value(), cause });
            }
        }
    }

    /// Forgets revisions that have no pods, apart from the newest one and `limit` before it.
    pub(crate) fn trim_revisions(&mut self, limit: u32) {
        let jobs = self.cron.iter().flat_map(|cron| &cron.jobs).map(|made| &made.hash);
        let hashes = self.pods.iter().map(|pod| &pod.hash).chain(jobs).chain(&self.set);
        let hashes: BTreeSet<String> = hashes.cloned().collect();
        let used = |hash: &str| hashes.contains(hash);
        let newest = self.revisions.len().saturating_sub(1);
        let idle: Vec<usize> = (0..newest).filter(|at| !used(&self.revisions[*at].hash)).collect();
        let excess = idle.len().saturating_sub(usize::try_from(limit).unwrap_or(usize::MAX));
        for at in idle.into_iter().take(excess).rev() {
            self.revisions.remove(at);
        }
    }
}

/// What has to be written about one workload; `None` if it is forgotten.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryChange {
    /// Which one.
    pub id: WorkloadId,
    /// What is remembered from now on.
    pub memory: Option<Memory>,
}
