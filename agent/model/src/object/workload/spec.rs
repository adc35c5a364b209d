//! What a controller has to do, with defaults applied and percentages resolved.

use super::cron_job::CronJob;
use super::job::Job;
use super::stateful_set::StatefulSet;

/// The part of a workload that its controller acts on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkloadSpec {
    /// Of a Deployment, a ReplicaSet or a DaemonSet: a number of equal pods.
    Replicated(Replicated),
    Job(Box<Job>),
    StatefulSet(StatefulSet),
    CronJob(Box<CronJob>),
}

/// A number of equal pods, and how those of a new template replace those of the one before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replicated {
    /// The desired number of pods; 1 for a DaemonSet.
    pub replicas: u32,
    /// How pods of a new template replace the others.
    pub update: Update,
    /// How long a pod must be ready before it counts as available, in seconds.
    pub min_ready_seconds: u32,
    /// After how many seconds without progress an update counts as failed; `None` for never.
    pub progress_deadline_seconds: Option<u32>,
    /// Whether a new template is not rolled out.
    pub paused: bool,
    /// How many templates without pods are remembered.
    pub history_limit: u32,
}

/// How pods of a new template replace the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Update {
    /// Step by step.
    Rolling {
        /// How many pods there may be beyond the replicas.
        surge: u32,
        /// How many of the replicas need not be available.
        unavailable: u32,
    },
    /// The old ones end first.
    Recreate,
    /// Only new pods have the new template: a ReplicaSet, and `OnDelete`.
    Manual,
}
