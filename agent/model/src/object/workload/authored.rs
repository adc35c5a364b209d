//! A workload as authored, by kind: its rules and its defaults.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, ReplicaSet, StatefulSet, StatefulSetSpec};
use k8s_openapi::api::batch::v1::{CronJob, CronJobSpec, Job, JobSpec};
use serde_json::Value;

use super::spec::WorkloadSpec;
use super::template::PodTemplate;
use super::{cron_job, job, replicated, stateful_set};
use crate::object::key::{ObjectKey, ObjectKind};
use crate::object::metadata::typed;
use crate::pod::{Fault, FaultList};

/// A workload's spec as authored, without its template.
#[derive(Debug)]
pub(super) enum Authored {
    /// Of a Deployment, a ReplicaSet or a DaemonSet.
    Replicated(Box<replicated::Authored>),
    Job(Box<JobSpec>),
    StatefulSet(Box<StatefulSetSpec>),
    CronJob(Box<CronJobSpec>),
}

impl Authored {
    fn replicated(spec: replicated::Authored) -> Self {
        Self::Replicated(Box::new(spec))
    }

    /// The document without its template; `None` if it has an error.
    pub(super) fn read(kind: ObjectKind, frame: &Value, faults: &mut FaultList) -> Option<Self> {
        use replicated::Authored as Apps;
        match kind {
            ObjectKind::Deployment => {
                typed::<Deployment>(frame, faults).map(|object| Self::replicated(Apps::Deployment(object.spec)))
            }
            ObjectKind::ReplicaSet => {
                typed::<ReplicaSet>(frame, faults).map(|object| Self::replicated(Apps::ReplicaSet(object.spec)))
            }
            ObjectKind::DaemonSet => {
                typed::<DaemonSet>(frame, faults).map(|object| Self::replicated(Apps::DaemonSet(object.spec)))
            }
            ObjectKind::Job => {
                typed::<Job>(frame, faults).map(|object| Self::Job(Box::new(object.spec.unwrap_or_default())))
            }
            ObjectKind::StatefulSet => {
                typed::<StatefulSet>(frame, faults).map(|object| Self::StatefulSet(Box::new(object.spec)))
            }
            ObjectKind::CronJob => typed::<CronJob>(frame, faults).map(|object| Self::CronJob(Box::new(object.spec))),
            _ => None,
        }
    }

    /// The faults apart from those of the template.
    pub(super) fn check(&self, key: &ObjectKey, template: &PodTemplate, template_path: &str) -> Vec<Fault> {
        match self {
            Self::Replicated(spec) => replicated::check(spec, template, template_path),
            Self::Job(spec) => {
                let mut faults = job::check(spec, template, "spec");
                faults.extend(job::check_whole(&key.name, spec, template));
                faults
            }
            Self::StatefulSet(spec) => stateful_set::check(&key.name, spec, template, template_path),
            Self::CronJob(spec) => cron_job::check(&key.name, spec, template),
        }
    }

    /// What the controller has to do; `None` if it is nothing that this version of the agent understands.
    pub(super) fn settle(self, template: &PodTemplate) -> Option<WorkloadSpec> {
        match self {
            Self::Replicated(spec) => Some(WorkloadSpec::Replicated(replicated::settle(*spec))),
            Self::Job(spec) => Some(WorkloadSpec::Job(Box::new(job::settle(*spec, template.restart_policy())))),
            Self::StatefulSet(spec) => Some(WorkloadSpec::StatefulSet(stateful_set::settle(*spec))),
            Self::CronJob(spec) => cron_job::settle(*spec).map(|spec| WorkloadSpec::CronJob(Box::new(spec))),
        }
    }
}
