//! Termination of containers and pods: the next signal, cleanup of exited instances, teardown.

use std::time::Duration;

use std::time::Instant;

use super::super::state::{ContainerSlot, Ending, Instance, Life, PodState, SandboxState, Stopping};
use super::{Action, KillCause, Plan, Step};

/// How long after an ineffective SIGKILL the next one follows.
pub(super) const KILL_AGAIN: Duration = Duration::from_secs(10);

/// Terminates the pod: SIGTERM, SIGKILL after the grace period, teardown.
pub(super) fn end(pod: &PodState, ending: Ending, now: Instant) -> Step {
    let mut plan = Plan::default();
    let mut alive = pod.is_updating();
    for (index, slot) in pod.containers.iter().enumerate() {
        if slot.busy.is_some() {
            alive = true;
        } else if slot.is_running() {
            alive = true;
            terminate(&mut plan, index, slot, ending.grace, KillCause::PodEnds, now);
        }
    }
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

/// The next signal for a container that is being terminated, if one is due.
pub(super) fn terminate(
    plan: &mut Plan,
    index: usize,
    slot: &ContainerSlot,
    grace: Duration,
    cause: KillCause,
    now: Instant,
) {
    let Some(Instance { life: Life::Running { stopping, .. }, .. }) = &slot.instance else { return };
    if held_back(plan, slot, now) {
        return;
    }
    match stopping {
        None => plan.push(Action::Terminate(index, grace, cause)),
        Some(Stopping { kill_at, killed_at: None }) => {
            // A later command may have a shorter grace period, never a longer one.
            let kill_at = (*kill_at).min(now + grace);
            if now >= kill_at { plan.push(Action::Kill(index)) } else { plan.wake_at(kill_at) }
        }
        Some(Stopping { killed_at: Some(killed_at), .. }) => {
            let again = *killed_at + KILL_AGAIN;
            if now >= again { plan.push(Action::Kill(index)) } else { plan.wake_at(again) }
        }
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

/// The pod has finished: stop what it did not wait for, record the exits, then release the sandbox.
pub(super) fn release(pod: &PodState, now: Instant) -> Step {
    let mut plan = Plan::default();
    let grace = Duration::from_secs(pod.record.grace_seconds());
    for (index, slot) in pod.containers.iter().enumerate().filter(|(_, slot)| slot.busy.is_none()) {
        if slot.is_running() {
            terminate(&mut plan, index, slot, grace, KillCause::PodEnds, now);
        } else {
            clear(&mut plan, index, slot, true, now);
        }
    }
    if !plan.actions.is_empty() || pod.containers.iter().any(ContainerSlot::is_running) {
        return plan.step();
    }
    let busy = pod.is_updating() || pod.containers.iter().any(|slot| slot.busy.is_some());
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
