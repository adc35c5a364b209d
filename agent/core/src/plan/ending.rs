//! Termination of containers and pods: the phases of a stop, the cleanup of exited instances, and teardown.

use std::time::{Duration, Instant};

use super::super::state::{ContainerSlot, Ending, Instance, Life, PodState, SandboxState, StopPhase, Stopping};
use super::{Action, KillCause, Plan, Step, grace, probes::probes};
use crate::node_state::NodeState;
use limpet_model::pod::Role;
use limpet_model::stop_signal::MIN_GRACE_PERIOD;

/// kubelet's shortest grace period of a pod that ends. A `preStop` hook has this time whatever the spec says.
const LEAST_GRACE_OF_POD: Duration = Duration::from_secs(1);

/// Terminates the pod: stops its containers, then tears it down.
pub(super) fn end(pod: &PodState, ending: Ending, node: NodeState, now: Instant) -> Step {
    let mut plan = Plan::default();
    let mut alive = pod.is_updating();
    for (index, slot) in pod.containers.iter().enumerate() {
        alive |= slot.busy.is_some() || slot.is_running();
        stop_in_turn(&mut plan, pod, index, ending.grace, now);
    }
    probes(&mut plan, pod, node, true, now);
    if !plan.actions.is_empty() || alive {
        return plan.step();
    }
    match pod.sandbox {
        SandboxState::Examining | SandboxState::Preparing | SandboxState::Releasing => Step::Wait(None),
        SandboxState::Gone => Step::Finished,
        SandboxState::Absent { .. } | SandboxState::Unknown | SandboxState::Ready(_) => match &pod.retry {
            Some(retry) if retry.retry_at > now => Step::Wait(Some(retry.retry_at)),
            _ => Step::Do(vec![Action::TearDown]),
        },
    }
}

/// Ends a pod to free everything it uses on the node: containers, volumes, logs. What is left waits for the end of
/// the verdict.
pub(super) fn evict(pod: &PodState, node: NodeState, now: Instant) -> Step {
    let ending = Ending { since: pod.start_time, grace: grace(pod) };
    match end(pod, ending, node, now) {
        Step::Finished => Step::Wait(None),
        step => step,
    }
}

/// Stops a container of a pod that ends. A sidecar gets its stop signal after the containers that it serves, and
/// after the sidecars that were started later, with the remainder of the pod's grace period; at the end of that it
/// waits no longer. Its `preStop` hook does not wait.
fn stop_in_turn(plan: &mut Plan, pod: &PodState, index: usize, of_pod: Duration, now: Instant) {
    let (slot, of_pod) = (&pod.containers[index], of_pod.max(LEAST_GRACE_OF_POD));
    if slot.role != Role::Sidecar || !slot.is_running() {
        return stop(plan, index, slot, of_pod, KillCause::PodEnds, now);
    }
    let kill_at = pod.ends_since.unwrap_or(now) + of_pod;
    let stopping = slot.stopping();
    let signal_is_next = match stopping {
        None => !slot.hooks.pre_stop,
        Some(stopping) => stopping.phase == StopPhase::PreStop,
    };
    if signal_is_next && kill_at > now && !is_its_turn(pod, index) {
        return plan.wake_at(kill_at);
    }
    let began = stopping.map_or(now, |stopping| stopping.began);
    let grace = kill_at.saturating_duration_since(began).max(MIN_GRACE_PERIOD);
    stop(plan, index, slot, grace, KillCause::PodEnds, now);
}

/// Whether nothing runs any more that has to end before the sidecar.
fn is_its_turn(pod: &PodState, sidecar: usize) -> bool {
    let before = |(index, slot): (usize, &ContainerSlot)| match slot.role {
        Role::Main | Role::Init => true,
        Role::Sidecar => index > sidecar,
        Role::Ephemeral => false,
    } && slot.is_running();
    !pod.containers.iter().enumerate().any(before)
}

/// Stops a running container: begins its stop, or continues it. Neither another action in progress nor a failed one
/// holds it back.
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
pub(super) fn held_back(plan: &mut Plan, slot: &ContainerSlot, now: Instant) -> bool {
    match &slot.retry {
        Some(retry) if retry.retry_at > now => {
            plan.wake_at(retry.retry_at);
            true
        }
        _ => false,
    }
}

/// Stops what runs, records the exits and removes what failed starts have left, then releases the sandbox. The pod
/// has finished, or the node has ended it.
pub(super) fn release(pod: &PodState, node: NodeState, now: Instant) -> Step {
    let mut plan = Plan::default();
    probes(&mut plan, pod, node, true, now);
    for (index, slot) in pod.containers.iter().enumerate() {
        stop_in_turn(&mut plan, pod, index, grace(pod), now);
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
        (SandboxState::Ready(_) | SandboxState::Unknown | SandboxState::Absent { dirty: true }, _) if !busy => {
            Step::Do(vec![Action::ReleaseSandbox])
        }
        _ => plan.step(),
    }
}

/// Cleans up exited instances, one action at a time, but the newest one only if no successor is about to start: the
/// successor comes first, so that a restart takes no longer than a start.
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
