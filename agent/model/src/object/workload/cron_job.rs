//! A CronJob: Jobs that begin by a schedule.

mod rules;
pub mod schedule;

use k8s_openapi::api::batch::v1::{CronJobSpec, JobSpec};
use serde_json::Value;

pub(super) use rules::check;
pub use schedule::Schedule;

use super::job::{self, Job};
use super::template::PodTemplate;
use crate::pod::strict;

const DEFAULT_SUCCESSFUL: i32 = 3;
const DEFAULT_FAILED: i32 = 1;

/// What a CronJob's controller has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronJob {
    /// When Jobs begin.
    pub schedule: Schedule,
    /// The time zone of the schedule; `None` for the node's.
    pub time_zone: Option<String>,
    /// What happens to a Job that is due while another one is active.
    pub concurrency: Concurrency,
    /// How late a Job may begin, in seconds; `None` for any time.
    pub starting_deadline_seconds: Option<u64>,
    /// Whether no Jobs begin.
    pub suspend: bool,
    /// How many completed Jobs are kept.
    pub successful_limit: u32,
    /// How many failed Jobs are kept.
    pub failed_limit: u32,
    /// The spec of its Jobs as authored, without the template of their pods.
    pub job: Value,
}

/// What happens to a Job that is due while another one is active.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Concurrency {
    /// It begins.
    Allow,
    /// It does not begin.
    Forbid,
    /// It begins, and the other one ends.
    Replace,
}

/// The Job of that spec, which is of the form of [`CronJob::job`]; `None` if it is not a Job any more.
pub fn job(spec: &Value, template: &PodTemplate) -> Option<Job> {
    let spec: JobSpec = strict::read(spec).0.ok()?;
    Some(job::settle(spec, template.restart_policy()))
}

/// What the controller has to do, with defaults; `None` if it has no schedule.
pub(super) fn settle(spec: CronJobSpec) -> Option<CronJob> {
    let natural = |value: Option<i32>, default: i32| u32::try_from(value.unwrap_or(default)).unwrap_or(0);
    let mut job = serde_json::to_value(spec.job_template.spec.unwrap_or_default()).unwrap_or_default();
    if let Some(job) = job.as_object_mut() {
        job.remove("template");
    }
    Some(CronJob {
        schedule: Schedule::parse(&spec.schedule).ok()?,
        time_zone: spec.time_zone,
        concurrency: match spec.concurrency_policy.as_deref() {
            Some("Forbid") => Concurrency::Forbid,
            Some("Replace") => Concurrency::Replace,
            _ => Concurrency::Allow,
        },
        starting_deadline_seconds: spec.starting_deadline_seconds.map(|seconds| u64::try_from(seconds).unwrap_or(0)),
        suspend: spec.suspend.unwrap_or(false),
        successful_limit: natural(spec.successful_jobs_history_limit, DEFAULT_SUCCESSFUL),
        failed_limit: natural(spec.failed_jobs_history_limit, DEFAULT_FAILED),
        job,
    })
}
