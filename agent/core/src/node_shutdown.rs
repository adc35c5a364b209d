//! The shutdown of the node: which pods end when, and how long each has (kubelet's `nodeshutdown`). Pure.
//!
//! Pods end in groups by their priority, the lowest first; the next group begins when all pods of the one before have
//! ended, or its time is over.

use std::sync::Arc;
use std::time::Duration;

use limpet_model::pod::{PodKey, PodRecord, PodUid};
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot, watch};

use crate::priority::{CRITICAL, priority};

/// How many requests may wait for the task that performs the shutdown; then those who make them do.
const REQUEST_QUEUE_LEN: usize = 4;

/// Pods from this priority on, up to the next group, and the time they have together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShutdownGroup {
    /// The lowest priority in it; the first group has those of lower ones, too.
    pub priority: i32,
    /// The most time that a pod of it has to end; `None`: what its own spec says.
    pub grace: Option<Duration>,
}

/// In which order pods end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownPolicy {
    /// By priority, the lowest first; not empty.
    groups: Vec<ShutdownGroup>,
}

impl Default for ShutdownPolicy {
    /// Critical pods after all others, each within its own grace period.
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

    /// `shutdownGracePeriod`, of which the last part, `shutdownGracePeriodCriticalPods`, is for critical pods alone. In whole
    /// seconds, as grace periods are.
    pub fn of_periods(total: Duration, critical: Duration) -> Self {
        let seconds = |time: Duration| Some(Duration::from_secs(time.as_secs()));
        let rest = total.saturating_sub(critical);
        let groups = [(0, seconds(rest)), (CRITICAL, seconds(total.saturating_sub(rest)))];
        Self { groups: groups.map(|(priority, grace)| ShutdownGroup { priority, grace }).to_vec() }
    }

    /// The two periods that make the same policy, the whole one and that of critical pods; `None`: none do.
    pub fn periods(&self) -> Option<(Duration, Duration)> {
        let &[first, ShutdownGroup { priority: CRITICAL, grace: Some(critical) }] = &self.groups[..] else {
            return None;
        };
        first.grace.filter(|_| first.priority == 0).map(|rest| (rest + critical, critical))
    }

    /// The groups, the first to end first.
    pub fn groups(&self) -> &[ShutdownGroup] {
        &self.groups
    }

    /// The time that all groups have together: how long the shutdown has to be delayed. Groups without a limit do not count.
    pub fn period(&self) -> Duration {
        self.groups.iter().filter_map(|group| group.grace).sum()
    }

    /// The group of a pod of that priority: the last one that begins at or below it, or the first one.
    fn group_of(&self, priority: i32) -> usize {
        self.groups.iter().rposition(|group| group.priority <= priority).unwrap_or(0)
    }
}

/// Pods that end side by side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShutdownStep {
    /// Each pod, and how long it has.
    pub pods: Vec<(Arc<PodRecord>, Duration)>,
    /// When the next step begins at the latest; `None`: once all have ended.
    pub limit: Option<Duration>,
}

/// In which steps `pods` end.
pub fn steps(policy: &ShutdownPolicy, pods: impl IntoIterator<Item = Arc<PodRecord>>) -> Vec<ShutdownStep> {
    let step = |group: &ShutdownGroup| ShutdownStep { pods: Vec::new(), limit: group.grace };
    let mut steps: Vec<ShutdownStep> = policy.groups.iter().map(step).collect();
    for record in pods {
        let step = &mut steps[policy.group_of(priority(&record))];
        let own = Duration::from_secs(record.grace_seconds());
        step.pods.push((record, step.limit.map_or(own, |limit| own.min(limit))));
    }
    steps.retain(|step| !step.pods.is_empty());
    steps
}

/// A pod is to end for the shutdown.
#[derive(Debug)]
pub struct ShutdownOrder {
    /// The pod's name.
    pub key: PodKey,
    /// Of that incarnation.
    pub uid: PodUid,
    /// How long its containers have at most.
    pub grace: Duration,
    /// Sent, or dropped, once nothing of it runs.
    pub done: oneshot::Sender<()>,
}

/// What the supervisor learns of a shutdown.
#[derive(Debug)]
pub struct ShutdownIntake {
    /// Whether the node is shutting down.
    pub shutting_down: watch::Receiver<bool>,
    /// The pods that have to end for that.
    pub orders: mpsc::Receiver<ShutdownOrder>,
}

impl Default for ShutdownIntake {
    /// That of a node that never shuts down.
    fn default() -> Self {
        Self { shutting_down: watch::channel(false).1, orders: mpsc::channel(1).1 }
    }
}

/// What an operator asks for.
#[derive(Debug)]
pub enum ShutdownRequest {
    /// End the pods, and start none. Answered once that has begun.
    Begin(oneshot::Sender<()>),
    /// Run pods again. The answer: what it was taken for.
    Cancel(oneshot::Sender<Cancelled>),
}

/// What became of a request to cancel.
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

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PodEndState {
    /// Its group's turn has not come.
    Waiting,
    /// It was ordered to end.
    Ending,
    /// Nothing of it runs any more.
    Ended,
    /// Its time was over before that, and the shutdown has gone on.
    Overdue,
}

/// A pod in the progress of a shutdown.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodEndProgress {
    /// Namespace and name.
    pub pod: String,
    /// How long it has, in seconds.
    pub grace_seconds: u64,
    /// How far it is.
    pub state: PodEndState,
}

/// How far the shutdown is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShutdownProgress {
    /// The node is shutting down: no pod starts.
    pub shutting_down: bool,
    /// All pods have ended, or their time is over.
    pub done: bool,
    /// The pods, in the order in which they end.
    pub pods: Vec<PodEndProgress>,
}

#[cfg(test)]
mod tests;
