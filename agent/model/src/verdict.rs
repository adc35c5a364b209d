//! Why the node refuses or ends a pod: the reason, message and phase of its status.

use std::borrow::Cow;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// kubelet's reason for a pod that takes too much.
pub const EVICTED: &str = "Evicted";

/// The phase that a verdict gives a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VerdictPhase {
    /// It waits for something of the node, and starts once that is there.
    Pending,
    /// It ends, or never starts. Final for its UID.
    Failed,
}

/// The node's decision about one pod, which stays with the pod's UID.
///
/// A final one is recorded on a container whose exit follows it, so that a restarted agent does not run the pod again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodVerdict {
    /// Kubernetes' reason: `DeadlineExceeded`, `SysctlForbidden`, `OutOfpods`, `NodePorts`, `Evicted`.
    pub reason: Cow<'static, str>,
    /// The sentence people read.
    pub message: String,
    /// What becomes of the pod.
    pub phase: VerdictPhase,
}

impl PodVerdict {
    /// The node refuses to run it, for good; `why` is the cause as admission words it.
    pub fn rejected(reason: &'static str, why: &str) -> Self {
        Self { reason: Cow::Borrowed(reason), message: format!("Pod was rejected: {why}"), phase: VerdictPhase::Failed }
    }

    /// The node cannot run it now, and will later.
    pub fn waiting(reason: &'static str, message: String) -> Self {
        Self { reason: Cow::Borrowed(reason), message, phase: VerdictPhase::Pending }
    }

    /// Its `activeDeadlineSeconds` have passed.
    pub fn deadline_exceeded() -> Self {
        Self {
            reason: Cow::Borrowed("DeadlineExceeded"),
            message: "Pod was active on the node longer than the specified deadline".to_owned(),
            phase: VerdictPhase::Failed,
        }
    }

    /// It takes more of the node than it may; its containers get a second to end.
    pub fn evicted(message: String) -> Self {
        Self { reason: Cow::Borrowed(EVICTED), message, phase: VerdictPhase::Failed }
    }

    /// What its containers get to end at most; `None`: the pod's own grace period.
    pub fn grace(&self) -> Option<Duration> {
        (self.reason == EVICTED).then_some(Duration::from_secs(1))
    }

    /// Whether nothing of the pod may run any more.
    pub fn is_final(&self) -> bool {
        self.phase == VerdictPhase::Failed
    }
}
