//! What a Job's controller needs to know of an observed pod.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodStatus};
use limpet_core::status::observed::ObservedPod;

use crate::facts::Facts;

/// What is known about one pod of a Job.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Seen {
    /// What is known about a pod of any workload.
    pub(crate) facts: Facts,
    /// Whether it has succeeded, if it has ended for good.
    pub(crate) succeeded: Option<bool>,
    /// Whether it is being ended.
    pub(crate) terminating: bool,
    /// When its last container ended.
    pub(crate) finished_at: Option<Timestamp>,
    /// The containers that exited with a code other than 0, in the order in which a policy checks them.
    pub(crate) exits: Vec<(String, i32)>,
    /// Its conditions: type and status.
    pub(crate) conditions: Vec<(String, String)>,
}

impl Seen {
    /// What is known of a pod.
    pub(crate) fn from_pod(pod: &ObservedPod) -> Self {
        let status = &pod.status;
        let succeeded = match status.phase.as_deref() {
            Some("Succeeded") => Some(true),
            Some("Failed") => Some(false),
            _ => None,
        };
        let conditions = status.conditions.iter().flatten();
        Self {
            facts: Facts::from_pod(pod),
            succeeded,
            terminating: pod.terminating_since.is_some(),
            finished_at: finished_at(status),
            exits: containers(status).filter_map(failed).collect(),
            conditions: conditions.map(|condition| (condition.type_.clone(), condition.status.clone())).collect(),
        }
    }

    /// Whether it neither has ended nor is being ended.
    pub(crate) fn is_active(&self) -> bool {
        self.succeeded.is_none() && !self.terminating
    }
}

fn containers(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten())
}

fn failed(container: &ContainerStatus) -> Option<(String, i32)> {
    let ended = container.state.as_ref()?.terminated.as_ref()?;
    (ended.exit_code != 0).then(|| (container.name.clone(), ended.exit_code))
}

fn finished_at(status: &PodStatus) -> Option<Timestamp> {
    let ended = |container: &ContainerStatus| {
        container.state.as_ref()?.terminated.as_ref()?.finished_at.as_ref().map(|time| time.0)
    };
    status.container_statuses.iter().flatten().filter_map(ended).max()
}
