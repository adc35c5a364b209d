//! Why the node refuses or ends a pod: the reason, message and phase of its status.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::node::Pressure;

/// kubelet's reason for a pod that has exceeded its deadline.
const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";

/// kubelet's reason for a pod that uses too much.
pub const EVICTED: &str = "Evicted";

/// kubelet's reason for a pod that is ended so that a critical one can start.
pub const PREEMPTING: &str = "Preempting";

/// kubelet's reason for a pod that does not start because the node is shutting down.
pub const NODE_SHUTDOWN: &str = "NodeShutdown";

/// kubelet's reason for a pod that ends because the node is shutting down.
const TERMINATED: &str = "Terminated";

/// How kubelet's message about a refused pod begins; the cause follows.
const REJECTED: &str = "Pod was rejected: ";

/// The phase that a verdict gives a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VerdictPhase {
    /// It waits for something on the node, and starts once that is available.
    Pending,
    /// It is ended, or never starts. Final for its UID.
    Failed,
}

/// Details of an end because the node is short of something. The pod runs again once that is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Eviction {
    /// What the node is short of.
    pub pressure: Pressure,
    /// The longest grace period of the containers, in seconds.
    pub grace_seconds: u64,
}

/// The node's decision about one pod, which stays with the pod's UID.
///
/// A final one is recorded on a container whose exit follows it, so that a restarted agent does not run the pod
/// again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodVerdict {
    /// Kubernetes' reason: `DeadlineExceeded`, `SysctlForbidden`, `OutOfpods`, `NodePorts`, `Evicted`.
    pub reason: Cow<'static, str>,
    /// The sentence that people read.
    pub message: String,
    /// The pod's resulting phase.
    pub phase: VerdictPhase,
    /// Set if the node was short of something.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eviction: Option<Eviction>,
}

impl PodVerdict {
    /// The node refuses to run it for good. `why` is the cause in the words of admission.
    pub fn rejected(reason: impl Into<Cow<'static, str>>, why: &str) -> Self {
        Self::failed(reason, format!("{REJECTED}{why}"))
    }

    /// The node cannot run it now, but will later.
    pub fn waiting(reason: impl Into<Cow<'static, str>>, message: String) -> Self {
        Self { phase: VerdictPhase::Pending, ..Self::failed(reason, message) }
    }

    /// The node ends it.
    fn failed(reason: impl Into<Cow<'static, str>>, message: String) -> Self {
        Self { reason: reason.into(), message, phase: VerdictPhase::Failed, eviction: None }
    }

    /// The cause in the words of admission, which kubelet's events contain.
    pub fn cause(&self) -> &str {
        self.message.strip_prefix(REJECTED).unwrap_or(&self.message)
    }

    /// Whether the node never accepted the pod. kubelet then reports only phase, reason and message.
    pub fn is_rejection(&self) -> bool {
        self.is_final() && self.message.starts_with(REJECTED)
    }

    /// Its `activeDeadlineSeconds` have passed.
    pub fn deadline_exceeded() -> Self {
        let message = "Pod was active on the node longer than the specified deadline";
        Self::failed(DEADLINE_EXCEEDED, message.to_owned())
    }

    /// Whether its `activeDeadlineSeconds` have passed.
    pub fn is_deadline_exceeded(&self) -> bool {
        self.reason == DEADLINE_EXCEEDED && self.is_final()
    }

    /// It has exceeded its own limit. Its containers get a grace period of a second.
    pub fn evicted(message: String) -> Self {
        Self::failed(EVICTED, message)
    }

    /// Whether it has exceeded its own limit.
    pub fn is_limit_eviction(&self) -> bool {
        self.reason == EVICTED && self.is_final() && !self.is_rejection() && self.eviction.is_none()
    }

    /// A critical pod needs what it uses.
    pub fn preempted() -> Self {
        Self::failed(PREEMPTING, "Preempted in order to admit critical pod".to_owned())
    }

    /// Whether a critical pod needs what it uses.
    pub fn is_preemption(&self) -> bool {
        self.reason == PREEMPTING
    }

    /// The node is shutting down.
    pub fn node_shutdown() -> Self {
        Self::failed(TERMINATED, "Pod was terminated in response to imminent node shutdown.".to_owned())
    }

    /// Whether it ends because the node is shutting down.
    pub fn is_node_shutdown(&self) -> bool {
        self.reason == TERMINATED
    }

    /// The node is short of something that it uses.
    pub fn evicted_under_pressure(eviction: Eviction, message: String) -> Self {
        Self { eviction: Some(eviction), ..Self::failed(EVICTED, message) }
    }

    /// The longest grace period of its containers; `None` if the pod's own applies.
    pub fn grace(&self) -> Option<Duration> {
        let seconds = self.eviction.map_or(1, |eviction| eviction.grace_seconds);
        (self.reason == EVICTED).then_some(Duration::from_secs(seconds))
    }

    /// Whether nothing of the pod may run any more.
    pub fn is_final(&self) -> bool {
        self.phase == VerdictPhase::Failed
    }
}
