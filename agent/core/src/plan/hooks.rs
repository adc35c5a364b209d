//! `postStart` hooks: when they run, what follows from their failure, and which starts wait for them.

use std::time::Instant;

use super::super::state::{ImageState, OngoingAction, PodState, PostStart};
use super::ending::stop;
use super::{Action, KillCause, Plan, grace};
use limpet_model::pod::Role;

/// Plans the `postStart` hook of a running container, or its stop if the hook has failed. Returns whether it is being
/// stopped.
pub(super) fn post_start(plan: &mut Plan, pod: &PodState, index: usize, now: Instant) -> bool {
    let slot = &pod.containers[index];
    let Some(instance) = slot.instance.as_ref().filter(|instance| instance.is_running()) else { return false };
    match &instance.post_start {
        PostStart::Done | PostStart::Running => {}
        PostStart::Due(at) if *at > now => plan.wake_at(*at),
        PostStart::Due(_) => plan.push(Action::PostStart(index)),
        PostStart::Failed(_) => {
            stop(plan, index, slot, grace(pod), KillCause::PostStartFailed, now);
            return true;
        }
    }
    false
}

/// Whether a container's start waits for a container before it in the spec. Containers start at the same time unless
/// a `postStart` hook could notice: then they start in their order, each after the hook of the one before. A
/// container that cannot start now holds back none.
pub(super) fn hold_back(plan: &Plan, pod: &PodState, index: usize) -> bool {
    let ordered = pod.containers[index].role != Role::Ephemeral
        && pod.containers.iter().any(|slot| slot.hooks.post_start && slot.role != Role::Ephemeral);
    ordered
        && pod.containers.iter().take(index).enumerate().any(|(earlier, slot)| {
            let fetched =
                matches!(slot.image, ImageState::Pulling) || plan.actions.contains(&Action::EnsureImage(earlier));
            let begins =
                plan.actions.contains(&Action::Start(earlier)) || matches!(slot.busy, Some(OngoingAction::Starting(_)));
            let hook = slot.instance.as_ref().is_some_and(|instance| {
                instance.is_running() && matches!(instance.post_start, PostStart::Due(_) | PostStart::Running)
            });
            begins || hook && slot.stopping().is_none() || fetched && !slot.is_running()
        })
}
