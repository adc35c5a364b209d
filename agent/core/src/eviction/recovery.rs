//! When a pod that the node has ended for a shortage or a shutdown runs again.

use crate::node_state::NodeState;
use crate::state::{ContainerSlot, PodState, SandboxState};
use limpet_model::verdict::PodVerdict;

/// Whether a pod runs again once there is room: it was ended for a pressure that is over, for a critical pod, or
/// because it exceeded its own limit, and nothing is left of it. A pod of the apiserver does not, because it is
/// reported as failed, and its controller has made another.
pub fn runs_again(pod: &PodState, node: NodeState) -> bool {
    if pod.record.source.traits().is_replaced {
        return false;
    }
    let over = |pressure| node.pressure.is_known() && !node.pressure.is_under(pressure);
    let runs = |verdict: &PodVerdict| match verdict.eviction {
        Some(eviction) => over(eviction.pressure),
        None => verdict.is_preemption() || pod.exceeded_limit(),
    };
    is_cleared(pod) && pod.verdict.as_ref().is_some_and(runs)
}

/// Whether nothing is left of a pod that was ended for a pressure.
pub fn is_cleared(pod: &PodState) -> bool {
    pod.ending.is_none() && pod.is_under_eviction() && matches!(pod.sandbox, SandboxState::Gone)
}

/// Whether nothing runs any more of a pod that the node has ended, and its network is released.
pub fn is_released(pod: &PodState) -> bool {
    let ended = |slot: &ContainerSlot| !slot.is_running() && slot.busy.is_none();
    pod.ending.is_none()
        && pod.is_failed()
        && matches!(pod.sandbox, SandboxState::Absent { dirty: false } | SandboxState::Gone)
        && pod.containers.iter().all(ended)
}

/// Whether a pod that was ended for a shutdown runs again: the shutdown was cancelled, and the pod is not one of the
/// apiserver's, which was reported as failed.
pub fn resumes(pod: &PodState, node: NodeState) -> bool {
    !node.shutting_down && !pod.record.source.traits().is_replaced && pod.is_shut_down() && is_released(pod)
}
