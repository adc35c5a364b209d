//! The pods of Jobs and CronJobs: which have been wanted, and which have succeeded. What a Job has counted must not run
//! again, and a time of a schedule must not have two runs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use limpet_model::pod::PodRecord;
use limpet_worker::fake::world::World;

use super::made::Made;
use super::{is_of, label};

/// What has been seen of the pods of each Job. A Job is named by the incarnation of its workload, and by its name.
#[derive(Debug, Default)]
pub(super) struct Runs {
    pods: BTreeMap<(String, String), BTreeSet<String>>,
    succeeded: BTreeMap<(String, String), BTreeSet<String>>,
}

impl Runs {
    /// Takes note of the pods that are wanted, and returns what is wrong with them.
    pub(super) fn look(&mut self, name: &str, made: &Made, pods: &[&Arc<PodRecord>], world: &World) -> Vec<String> {
        let mut wrong = Vec::new();
        let mut active: BTreeMap<&str, usize> = BTreeMap::new();
        for pod in pods.iter().filter(|pod| is_of(pod, name)) {
            let Some(job) = job(pod) else { continue };
            let key = (label(pod, "incarnation").unwrap_or_default().to_owned(), job.to_owned());
            self.pods.entry(key.clone()).or_default().insert(pod.uid.to_string());
            if world.newest(&pod.uid).get("main").is_some_and(|(_, code)| *code == Some(0)) {
                self.succeeded.entry(key).or_default().insert(pod.uid.to_string());
            }
            *active.entry(job).or_default() += usize::from(!pod.has_ended());
        }
        let most = made.parallelism.min(made.replicas) as usize;
        if made.kind == "Job" && active.values().any(|active| *active > most) {
            wrong.push(format!("{name} has {active:?} pods that have not ended, {most} are the most"));
        }
        active.retain(|_, active| *active > 0);
        if made.kind == "CronJob" && made.concurrency != "Allow" && active.len() > 1 {
            wrong.push(format!("{name} has {:?} at once", active.keys()));
        }
        wrong
    }

    /// The Jobs of CronJobs that have had several pods, although the first failure ends each.
    pub(super) fn repeated(&self) -> Vec<String> {
        let several = self.pods.iter().filter(|(_, pods)| pods.len() > 1);
        several.map(|((_, job), pods)| format!("{job} has run {} times: {pods:?}", pods.len())).collect()
    }

    /// How many pods of that Job have succeeded.
    pub(super) fn succeeded(&self, incarnation: u32, job: &str) -> usize {
        self.succeeded.get(&(incarnation.to_string(), job.to_owned())).map_or(0, BTreeSet::len)
    }
}

/// The Job that a pod belongs to.
fn job(pod: &PodRecord) -> Option<&str> {
    let owner = pod.pod.metadata.owner_references.as_ref()?.first()?;
    (owner.kind == "Job").then_some(owner.name.as_str())
}
