//! Termination of containers and pods: the phases of a stop, cleanup of exited instances, teardown.

use std::time::Duration;

use std::time::Instant;

use super::super::state::{ContainerSlot, Ending, Instance, Life, PodState, SandboxState, Stopping};
use super::{Action, KillCause, Plan, Step, grace, probes::probes};
use crate::node_state::NodeState;

/// Terminates the pod: stops its containers, then tears it down.
pub(super) fn end(pod: &PodState, ending: Ending, node: NodeState, now: Instant) -> Step {
    let mut plan = Plan::default();
    let mut alive = pod.is_updating();
    for (index, slot) in pod.containers.iter().enumerate() {
        alive |= slot.busy.is_some() || slot.is_running();
        stop(&mut plan, index, slot, ending.grace, KillCause::PodEnds, now);
    }
    probes(&mut plan, pod, node, true, now);
    if !plan.actions.is_empty() || alive {
        return plan.step();
    }
    match pod.sandbox {
        SandboxState::Preparing | SandboxState::Releasing => Step::Wait(None),
        SandboxState::Gone => Step::Finished,
        SandboxState::Absent { .. } | SandboxState::Ready(_) => match &pod.retry {
            Some(retry) if retry.retry_at > now => Step::Wait(Some(retry.retry_at)),
            _ => Step::Do(vec![Action::TearDown]),
        },
    }
}

/// Stops a container that runs: its stop begins, or goes on. No other action in progress, and no failed one, holds it back.
pub(super) fn stop(
    plan: &mut Plan,
    index: usize,
    slot: &ContainerSlot,
    grace: Duration,
    cause: KillCause,
    now: Instant,
) {
    let Some(Instance { life: Life::Running { stopping, .. }, .. }) = &slot.instance else { return };
    let next = match stopping {
        None => Some((now, Stopping::begin(grace, slot.hooks.pre_stop, now))),
        Some(stopping) => stopping.within(grace).next(now),
    };
    match next {
        Some((due, stopping)) if due <= now => plan.push(Action::Stop(index, stopping, cause)),
        Some((due, _)) => plan.wake_at(due),
        None => {}
    }
}

/// Whether the container's last action failed so recently that its retry is not due yet.
fn held_back(plan: &mut Plan, slot: &ContainerSlot, now: Instant) -> bool {
    match &slot.retry {
        Some(retry) if retry.retry_at > now => {
            plan.wake_at(retry.retry_at);
            true
        }
        _ => false,
    }
}

/// The pod has finished, or the node has ended it: stop what runs, record the exits, remove what failed starts have left,
/// then release the sandbox.
pub(super) fn release(pod: &PodState, node: NodeState, now: Instant) -> Step {
    let mut plan = Plan::default();
    probes(&mut plan, pod, node, true, now);
    for (index, slot) in pod.containers.iter().enumerate() {
        stop(&mut plan, index, slot, grace(pod), KillCause::PodEnds, now);
        if slot.busy.is_some() || slot.is_running() {
            continue;
        }
        if slot.unknown_start().is_some() {
            // A start whose answer was lost may have started its process.
            if !held_back(&mut plan, slot, now) {
                plan.push(Action::Discard(index));
            }
        } else {
            clear(&mut plan, index, slot, true, now);
        }
    }
    if !plan.actions.is_empty() || pod.containers.iter().any(ContainerSlot::is_running) {
        return plan.step();
    }
    let busy =
        pod.is_updating() || pod.containers.iter().any(|slot| slot.busy.is_some() || slot.unknown_start().is_some());
    match (&pod.sandbox, &pod.retry) {
        (_, Some(retry)) if retry.retry_at > now => Step::Wait(Some(retry.retry_at)),
        (SandboxState::Ready(_) | SandboxState::Absent { dirty: true }, _) if !busy => {
            Step::Do(vec![Action::ReleaseSandbox])
        }
        _ => plan.step(),
    }
}

/// Cleans up exited instances, one action at a time. The newest one only when no successor is about to start:
/// the successor comes first, so that a restart costs no more than a start.
pub(super) fn clear(plan: &mut Plan, index: usize, slot: &ContainerSlot, newest_too: bool, now: Instant) {
    let unreaped = |instance: &Option<Instance>| {
        matches!(instance, Some(Instance { life: Life::Exited { reaped: false, .. }, .. }))
    };
    let newest = newest_too && unreaped(&slot.instance);
    if !unreaped(&slot.previous) && slot.stale.is_empty() && !newest || held_back(plan, slot, now) {
        return;
    }
    if unreaped(&slot.previous) {
        plan.push(Action::ReapPrevious(index));
    } else if !slot.stale.is_empty() {
        plan.push(Action::Forget(index));
    } else {
        plan.push(Action::Reap(index));
    }
}
