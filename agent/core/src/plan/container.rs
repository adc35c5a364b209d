//! One container's next action: its image, start, resize or replacement. Part of [`super`].

use std::time::Instant;

use super::ending::{clear, stop};
use super::{Action, KillCause, Plan, awaits, grace, hooks, probes};
use crate::node_state::NodeState;
use crate::state::{ContainerSlot, ImageState, Instance, Life, PodState, SandboxState, UPDATE_HELD};
use limpet_model::pod::Role;

/// One container's next action.
pub(super) fn container(plan: &mut Plan, pod: &PodState, index: usize, wanted: bool, node: NodeState, now: Instant) {
    let slot = &pod.containers[index];
    if let Some((kind, grace)) = probes::verdict(pod, slot) {
        return stop(plan, index, slot, grace, KillCause::ProbeFailed(kind), now);
    }
    // A stop that has begun is completed, whatever the desired version is by then. A container that should not start
    // yet is replaced at once if the start of the container before it waits for that.
    let replaced = wanted || pod.cgroup_waits_for_other_versions();
    let restarts = || is_asked_to_restart(slot) || pod.has_stale_values(slot);
    if slot.stopping().is_some() || slot.is_running() && (replaced && slot.is_outdated() || restarts()) {
        return replace(plan, pod, index, now);
    }
    resize(plan, pod, index, now);
    if hooks::post_start(plan, pod, index, now) || slot.busy.is_some() {
        return;
    }
    if slot.is_running() {
        return clear(plan, index, slot, false, now);
    }
    if !wanted {
        // The image of a container that starts later is pulled already; an exited container is only cleaned up.
        if slot.instance.is_none() {
            image(plan, pod, index, now);
        }
        clear(plan, index, slot, true, now);
        return;
    }
    let due = due(slot);
    if due.is_some_and(|due| due > now) {
        plan.wake_at(due.unwrap_or(now));
        clear(plan, index, slot, true, now);
        return;
    }
    if slot.discard_begun && slot.unknown_start().is_some() {
        plan.push(Action::Discard(index));
        return;
    }
    let image_ready = image(plan, pod, index, now);
    let ready = image_ready && matches!(pod.sandbox, SandboxState::Ready(_)) && pod.cgroup_admits();
    if ready && awaits::by_container(pod, slot, node).is_none() && !hooks::hold_back(plan, pod, index) {
        plan.push(Action::Start(index));
        return;
    }
    let planned = plan.actions.len();
    clear(plan, index, slot, true, now);
    // Its next start would remove it, but that start waits for the cgroup. What may have run and never runs again
    // stays.
    let is_removable = slot.role != Role::Ephemeral && slot.unknown_start().is_some();
    if plan.actions.len() == planned && is_removable && pod.cgroup_waits_for_unknown_start() {
        plan.push(Action::Discard(index));
    }
}

/// The earliest time to start the container, after its crash back-off and the retry delay of the last failure.
fn due(slot: &ContainerSlot) -> Option<Instant> {
    let backoff = match &slot.instance {
        Some(Instance { life: Life::Exited { retry_at, .. }, .. }) if slot.is_current() && !slot.has_completed() => {
            Some(*retry_at)
        }
        _ => None,
    };
    backoff.max(slot.retry.as_ref().map(|retry| retry.retry_at))
}

/// Plans the resize of a running container, once its pod's cgroup has room for it.
fn resize(plan: &mut Plan, pod: &PodState, index: usize, now: Instant) {
    let Some(resize) = pod.containers[index].resize().filter(|resize| resize.setting.is_none()) else { return };
    match &resize.retry {
        Some(retry) if retry.retry_at > now => plan.wake_at(retry.retry_at),
        _ if pod.cgroup_lets_resize() => plan.push(Action::Resize(index)),
        _ => {}
    }
}

fn is_asked_to_restart(slot: &ContainerSlot) -> bool {
    slot.instance.as_ref().is_some_and(|instance| instance.restart_asked)
}

/// Replaces a container with an edited image or limit, or one that should be restarted. Pulls first, so that a failed
/// pull stops nothing.
fn replace(plan: &mut Plan, pod: &PodState, index: usize, now: Instant) {
    let slot = &pod.containers[index];
    if image(plan, pod, index, now) && pod.cgroup_lets_replace() || slot.stopping().is_some() {
        let cause = match () {
            () if slot.is_outdated() => KillCause::DefinitionChanged,
            () if is_asked_to_restart(slot) => KillCause::RestartAsked,
            () if pod.has_stale_values(slot) => KillCause::ValuesChanged,
            () => KillCause::DefinitionChanged,
        };
        stop(plan, index, slot, grace(pod), cause, now);
    }
}

/// Whether the image is ready for the container's next attempt. Plans to get it unless that is in progress.
fn image(plan: &mut Plan, pod: &PodState, index: usize, now: Instant) -> bool {
    let slot = &pod.containers[index];
    match &slot.image {
        ImageState::Ready { attempt, .. } if *attempt == slot.next_attempt() || !always_pulls(pod, slot) => true,
        // The pull credentials may be among the objects.
        ImageState::Unknown | ImageState::Ready { .. } if awaits::by_images(pod).is_some() => false,
        ImageState::Unknown | ImageState::Ready { .. } => {
            plan.push(Action::EnsureImage(index));
            false
        }
        ImageState::Pulling => false,
        // What was held while the container ran is not held once it has to start.
        ImageState::Failed(retry) if retry.retry_at > now && (slot.is_running() || retry.reason != UPDATE_HELD) => {
            plan.wake_at(retry.retry_at);
            false
        }
        ImageState::Failed(_) => {
            plan.push(Action::EnsureImage(index));
            false
        }
    }
}

fn always_pulls(pod: &PodState, slot: &ContainerSlot) -> bool {
    pod.container_spec(&slot.name).and_then(|spec| spec.image_pull_policy.as_deref()) == Some("Always")
}
