//! The shutdown of the node: when each pod ends, and how long it has (kubelet's `nodeshutdown`). Pure.
//!
//! Pods end in groups by their priority, the lowest first. The next group begins when all pods of the one before have
//! ended, or its time is over.

use std::sync::Arc;
use std::time::Duration;

use limpet_model::pod::{PodKey, PodRecord, PodUid};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::priority::{CRITICAL, priority};

/// How many requests may wait for the task that performs the shutdown. Beyond that, their senders wait.
const REQUEST_QUEUE_LEN: usize = 4;

/// Pods from this priority up to that of the next group, and the time they have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// The lowest priority in it. The first group also has the pods of lower priorities.
    pub priority: i32,
    /// The longest time that one of its pods has to end; `None` if the pod's own spec decides.
    pub grace: Option<Duration>,
}

/// The order in which pods end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownPolicy {
    /// By priority, the lowest first; not empty.
    groups: Vec<ShutdownGroup>,
}

impl Default for ShutdownPolicy {
    /// Critical pods end after all others, each within its own grace period.
    fn default() -> Self {
        let group = |priority| ShutdownGroup { priority, grace: None };
        Self { groups: vec![group(0), group(CRITICAL)] }
    }
}

impl ShutdownPolicy {
    /// `shutdownGracePeriodByPodPriority`: priorities and times; `None` if there are none.
    pub fn by_priority(mut groups: Vec<ShutdownGroup>) -> Option<Self> {
        groups.sort_by_key(|group| group.priority);
        (!groups.is_empty()).then_some(Self { groups })
    }

    /// `shutdownGracePeriod`, whose last part, `shutdownGracePeriodCriticalPods`, is only for critical pods. In whole
    /// seconds, like grace periods.
    pub fn of_periods(total: Duration, critical: Duration) -> Self {
        let seconds = |time: Duration| Some(Duration::from_secs(time.as_secs()));
        let rest = total.saturating_sub(critical);
        let groups = [(0, seconds(rest)), (CRITICAL, seconds(total.saturating_sub(rest)))];
        Self { groups: groups.map(|(priority, grace)| ShutdownGroup { priority, grace }).to_vec() }
    }

    /// The two periods that make the same policy, the total and that of critical pods; `None` if there are none.
    pub fn periods(&self) -> Option<(Duration, Duration)> {
        let &[first, ShutdownGroup { priority: CRITICAL, grace: Some(critical) }] = &self.groups[..] else {
            return None;
        };
        first.grace.filter(|_| first.priority == 0).map(|rest| (rest + critical, critical))
    }

    /// The groups, in the order in which they end.
    pub fn groups(&self) -> &[ShutdownGroup] {
        &self.groups
    }

    /// The time that all groups have together, by which the shutdown has to be delayed. Groups without a limit do not
    /// count.
    pub fn period(&self) -> Duration {
        self.groups.iter().filter_map(|group| group.grace).sum()
    }

    /// The group of a pod of that priority: the last one that begins at or below it, or else the first one.
    fn group_of(&self, priority: i32) -> usize {
        self.groups.iter().rposition(|group| group.priority <= priority).unwrap_or(0)
    }
}

/// Pods that end at the same time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownStep {
    /// Each pod, and how long it has.
    pub pods: Vec<(Arc<PodRecord>, Duration)>,
    /// When the next step begins at the latest; `None` if it begins once all have ended.
    pub limit: Option<Duration>,
}

/// The steps in which `pods` end.
pub fn steps(policy: &ShutdownPolicy, pods: impl IntoIterator<Item = Arc<PodRecord>>) -> Vec<ShutdownStep> {
    let step = |group: &ShutdownGroup| ShutdownStep { pods: Vec::new(), limit: group.grace };
    let mut steps: Vec<ShutdownStep> = policy.groups.iter().map(step).collect();
    for record in pods {
        let step = &mut steps[policy.group_of(priority(&record))];
        let own_grace = Duration::from_secs(record.grace_seconds());
        step.pods.push((record, step.limit.map_or(own_grace, |limit| own_grace.min(limit))));
    }
    steps.retain(|step| !step.pods.is_empty());
    steps
}

/// An order to end a pod for the shutdown.
#[derive(Debug)]
pub struct ShutdownOrder {
    pub key: PodKey,
    pub uid: PodUid,
    /// The longest grace period of its containers.
    pub grace: Duration,
    /// Sent or dropped once nothing of it runs.
    pub done: oneshot::Sender<()>,
}

/// What the supervisor is told about a shutdown.
#[derive(Debug)]
pub struct ShutdownIntake {
    /// Whether the node is shutting down.
    pub shutting_down: watch::Receiver<bool>,
    /// The pods that have to end for that.
    pub orders: mpsc::Receiver<ShutdownOrder>,
}

impl Default for ShutdownIntake {
    /// The channels of a node that never shuts down.
    fn default() -> Self {
        Self { shutting_down: watch::channel(false).1, orders: mpsc::channel(1).1 }
    }
}

/// An operator's request.
#[derive(Debug)]
pub enum ShutdownRequest {
    /// End the pods, and start none. Answered once that has begun.
    Begin(oneshot::Sender<()>),
    /// Run pods again. Answered with how the request was understood.
    Cancel(oneshot::Sender<Cancelled>),
}

/// The result of a request to cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// Pods run again.
    Yes,
    /// The node was not shutting down.
    NotShuttingDown,
    /// The machine itself is going down, which its service manager decides.
    ByMachine,
}

/// A channel for requests.
pub fn channel() -> (mpsc::Sender<ShutdownRequest>, mpsc::Receiver<ShutdownRequest>) {
    mpsc::channel(REQUEST_QUEUE_LEN)
}

/// A pod's state during a shutdown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodEndState {
    /// Its group's turn has not come.
    Waiting,
    /// It was ordered to end.
    Ending,
    /// Nothing of it runs any more.
    Ended,
    /// Its time was over before that, and the shutdown has continued.
    Overdue,
}

/// A pod in the progress of a shutdown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEndProgress {
    pub pod: String,
    /// How long it has, in seconds.
    pub grace_seconds: u64,
    pub state: PodEndState,
}

/// How far the shutdown is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownProgress {
    /// Whether the node is shutting down, so that no pod starts.
    pub shutting_down: bool,
    /// Whether all pods have ended, or their time is over.
    pub done: bool,
    /// The pods, in the order in which they end.
    pub pods: Vec<PodEndProgress>,
}

#[cfg(test)]
mod tests;
