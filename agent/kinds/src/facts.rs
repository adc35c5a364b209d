//! What a controller needs to know of an observed pod.

use jiff::{SignedDuration, Timestamp};
use limpet_core::status::observed::ObservedPod;
use limpet_model::pod::is_terminal_phase;

/// How far a pod is. Ordered: a controller ends those that come first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) enum Phase {
    /// It has not started.
    #[default]
    Pending,
    /// It runs.
    Running,
    /// It has ended, and does not run again.
    Ended,
}

/// What is known about one pod. The default is a pod about which nothing is observed yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    /// How far it is.
    pub(crate) phase: Phase,
    /// Since when it has been ready.
    pub(crate) ready_since: Option<Timestamp>,
    /// How often its containers were restarted.
    pub(crate) restarts: u32,
    /// The annotation with which its author says which pods to spare.
    pub(crate) deletion_cost: i32,
}

impl Facts {
    /// The facts of a pod.
    pub(crate) fn from_pod(pod: &ObservedPod) -> Self {
        let status = &pod.status;
        let phase = match status.phase.as_deref() {
            Some(phase) if is_terminal_phase(phase) => Phase::Ended,
            Some("Running") => Phase::Running,
            _ => Phase::Pending,
        };
        let ready = status
            .conditions
            .iter()
            .flatten()
            .find(|condition| condition.type_ == "Ready" && condition.status == "True");
        let is_up = phase == Phase::Running && pod.terminating_since.is_none();
        let since = |time: Option<Timestamp>| time.unwrap_or(Timestamp::UNIX_EPOCH);
        let annotations = pod.record.pod.metadata.annotations.as_ref();
        let cost = annotations.and_then(|all| all.get("controller.kubernetes.io/pod-deletion-cost"));
        Self {
            phase,
            ready_since: ready
                .filter(|_| is_up)
                .map(|condition| since(condition.last_transition_time.as_ref().map(|time| time.0))),
            restarts: pod.containers.values().map(|container| container.restart_count).sum(),
            deletion_cost: cost.and_then(|cost| cost.parse().ok()).unwrap_or(0),
        }
    }

    /// Since when it counts as available, or from when on it will; `None` if it is not ready.
    pub(crate) fn available_at(&self, min_ready_seconds: u32) -> Option<Timestamp> {
        let since = self.ready_since?;
        let pause = SignedDuration::from_secs(i64::from(min_ready_seconds));
        Some(since.checked_add(pause).unwrap_or(Timestamp::MAX))
    }

    /// Whether it counts as available.
    pub(crate) fn is_available(&self, min_ready_seconds: u32, now: Timestamp) -> bool {
        // Without a delay the clock does not matter, which may have been set back.
        self.ready_since.is_some() && min_ready_seconds == 0
            || self.available_at(min_ready_seconds).is_some_and(|at| at <= now)
    }
}
