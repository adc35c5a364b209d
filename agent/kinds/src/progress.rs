//! How far the controller of a workload has come, for those who wait for it.

use std::sync::Arc;

use limpet_model::object::ObjectRecord;
use limpet_model::object::workload::{Update, WorkloadSpec};
use limpet_model::pod::PodKey;

use crate::memory::Memory;

/// How far the controller of a workload has come.
#[derive(Debug, Clone)]
pub struct Progress {
    /// The version that it acts on.
    pub object: Arc<ObjectRecord>,
    /// The pods that it wants; of a Job those that have not ended.
    pub pods: Vec<PodKey>,
    /// These are all that it is going to make for the time being, and none is of an earlier template.
    pub is_complete: bool,
    /// They run to an end: a Job's.
    pub runs_to_end: bool,
    /// Why the workload has failed for good.
    pub failure: Option<String>,
}

impl Progress {
    /// Of a workload of which there are no pods.
    pub(crate) fn nothing(object: &Arc<ObjectRecord>) -> Self {
        let object = Arc::clone(object);
        Self { object, pods: Vec::new(), is_complete: true, runs_to_end: false, failure: None }
    }

    /// Of a workload whose template has that hash.
    pub(crate) fn from_memory<'a>(
        object: &Arc<ObjectRecord>,
        memory: &Memory,
        hash: &str,
        pods: impl Iterator<Item = &'a PodKey>,
    ) -> Self {
        let nothing = Self::nothing(object);
        let Some(workload) = &object.workload else { return nothing };
        let wanted = memory.pods.len();
        let has = |replicas: u32| usize::try_from(replicas).is_ok_and(|replicas| replicas == wanted);
        let are_newest = || memory.pods.iter().all(|pod| pod.hash == hash);
        match &workload.spec {
            WorkloadSpec::Replicated(spec) => {
                let keeps_old = spec.paused || spec.update == Update::Manual;
                let is_complete = has(spec.replicas) && (keeps_old || are_newest());
                Self { pods: pods.cloned().collect(), is_complete, ..nothing }
            }
            WorkloadSpec::StatefulSet(spec) => {
                let keeps_old = spec.rolling.as_ref().is_none_or(|rolling| rolling.partition > 0);
                let is_complete = has(spec.replicas) && (keeps_old || are_newest());
                Self { pods: pods.cloned().collect(), is_complete, ..nothing }
            }
            WorkloadSpec::Job(spec) => {
                let job = memory.job.as_ref();
                let verdict = job.and_then(|job| job.verdict.as_ref());
                let has_finished = job.is_some_and(|job| job.finished.is_some()) || verdict.is_some();
                // In the pause after a failure nothing runs.
                let is_complete = has_finished || spec.suspend || memory.pods.iter().any(|pod| !pod.has_ended());
                let failed = verdict.filter(|verdict| !verdict.complete);
                let failure = failed.map(|verdict| format!("{}: {}", verdict.reason, verdict.message));
                // The controller has counted the others, and makes new ones as often as the Job allows.
                let runs = |key: &&PodKey| memory.pods.iter().any(|pod| *pod.name == *key.name() && !pod.has_ended());
                let pods = if has_finished { Vec::new() } else { pods.filter(runs).cloned().collect() };
                Self { pods, is_complete, runs_to_end: true, failure, ..nothing }
            }
            // Its Jobs begin later.
            WorkloadSpec::CronJob(_) => nothing,
        }
    }
}
