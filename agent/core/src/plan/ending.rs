//! How containers and pods end: the next signal, what dead instances left, what is taken down.

use std::time::Duration;

use std::time::Instant;

use super::super::state::{ContainerSlot, Ending, Instance, Life, PodState, SandboxState, Stopping};
use super::{Action, KillCause, Plan, Step};

/// How long after a SIGKILL that did not help the next one follows.
pub(super) const KILL_AGAIN: Duration = Duration::from_secs(10);

/// The pod ends: signal, kill after the grace, clear, take everything down.
pub(super) fn end(pod: &PodState, ending: Ending, now: Instant) -> Step {
    let mut plan = Plan::default();
    let mut alive = false;
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

/// The next signal for a container that is to end, if one is due.
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
            // A later wish may have come with a shorter grace, never with a longer one.
            let kill_at = (*kill_at).min(now + grace);
            if now >= kill_at { plan.push(Action::Kill(index)) } else { plan.wake_at(kill_at) }
        }
        Some(Stopping { killed_at: Some(killed_at), .. }) => {
            let again = *killed_at + KILL_AGAIN;
            if now >= again { plan.push(Action::Kill(index)) } else { plan.wake_at(again) }
        }
    }
}

/// Whether the last thing tried on the container failed so recently that it is left alone for now.
fn held_back(plan: &mut Plan, slot: &ContainerSlot, now: Instant) -> bool {
    match &slot.retry {
        Some(retry) if retry.retry_at > now => {
            plan.wake_at(retry.retry_at);
            true
        }
        _ => false,
    }
}

/// The pod has run to its end: write the ends down, then give the sandbox back.
pub(super) fn release(pod: &PodState, now: Instant) -> Step {
    let mut plan = Plan::default();
    for (index, slot) in pod.containers.iter().enumerate().filter(|(_, slot)| slot.busy.is_none()) {
        clear(&mut plan, index, slot, true, now);
    }
    if !plan.actions.is_empty() {
        return plan.step();
    }
    let busy = pod.containers.iter().any(|slot| slot.busy.is_some());
    match (&pod.sandbox, &pod.retry) {
        (_, Some(retry)) if retry.retry_at > now => Step::Wait(Some(retry.retry_at)),
        (SandboxState::Ready(_) | SandboxState::Absent { dirty: true }, _) if !busy => {
            Step::Do(vec![Action::ReleaseSandbox])
        }
        _ => plan.step(),
    }
}

/// Clears what dead instances left, one thing at a time. The newest one only when no successor is about to start:
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
