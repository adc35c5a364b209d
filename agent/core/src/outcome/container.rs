//! How outcomes change one container: its image, instances, hooks and probes. Part of [`super`].

use std::sync::Arc;
use std::time::Instant;

use limpet_model::container::{ContainerId, Exit};
use limpet_model::image::LocalImage;

use super::Failure;
use crate::adopt::STATUS_UNKNOWN;
use crate::backoff::MAX_BACKOFF;
use crate::probe::Probes;
use crate::state::{
    Changes, ContainerSlot, ImageState, Instance, Life, MAX_SYNC_BACKOFF, Now, OngoingAction, PodState, PostStart,
    RetryState, StopPhase, UPDATE_HELD,
};

/// The probes of the instance `id`, if it is still the running one.
pub(super) fn probes_of<'a>(pod: &'a mut PodState, index: usize, id: &ContainerId) -> Option<&'a mut Probes> {
    let running =
        pod.containers[index].instance.as_mut().filter(|instance| instance.id == *id && instance.is_running());
    running?.probes.as_deref_mut()
}

/// Applies the result of making a container's image available.
pub(super) fn image_ensured(
    slot: &mut ContainerSlot,
    fingerprint: &str,
    attempt: u32,
    result: Result<Arc<LocalImage>, Failure>,
    now: Instant,
) {
    if slot.fingerprint != fingerprint {
        return; // Requested before an edit: obsolete, and the edit has requested its own image.
    }
    slot.image = match result {
        Ok(image) => {
            slot.pull_retry = None;
            ImageState::Ready { image, attempt }
        }
        Err(_) if slot.image_came => ImageState::Unknown,
        Err(failure) if failure.reason == UPDATE_HELD => ImageState::Failed(RetryState::held(failure.message, now)),
        Err(failure) => {
            let retry = failure.retry_state(slot.pull_retry.as_ref(), MAX_BACKOFF, now);
            slot.pull_retry = Some(retry.clone());
            ImageState::Failed(retry)
        }
    };
}

/// Applies a start. Returns the exit that was reported before it.
pub(super) fn started(
    slot: &mut ContainerSlot,
    result: Result<Box<Instance>, Failure>,
    now: Instant,
) -> Option<(ContainerId, Exit)> {
    let begun = match slot.busy.take() {
        Some(OngoingAction::Starting(id)) => Some(id),
        _ => None,
    };
    match result {
        Ok(instance) => {
            slot.retry = None;
            slot.possible_orphan = None;
            // It may also be the exit of an earlier attempt under the same id, which was another process.
            let early_exit = slot.early_exit.take().filter(|(id, pid, _)| instance.is_process(id, *pid));
            let post_start = if slot.hooks.post_start { PostStart::Due(now) } else { PostStart::Done };
            slot.succeed(Instance { post_start, ..*instance });
            early_exit.map(|(id, _, exit)| (id, exit))
        }
        Err(failure) => {
            slot.possible_orphan = begun;
            // Resolving the image again may fix what made it unusable.
            slot.image = ImageState::Unknown;
            let awaited = Changes::awaited_by_container(failure.reason);
            let at_once = slot.changed_meanwhile.meet(awaited);
            let retry = |failure: Failure| failure.retry_state(slot.retry.as_ref(), MAX_SYNC_BACKOFF, now);
            slot.retry = (!at_once).then(|| retry(failure).awaiting(awaited));
            None
        }
    }
}

/// Applies a postStart hook.
pub(super) fn post_started(
    slot: &mut ContainerSlot,
    id: Option<&ContainerId>,
    result: Result<(), Failure>,
    now: Instant,
) {
    let Some(instance) = slot.instance.as_mut().filter(|instance| Some(&instance.id) == id && instance.is_running())
    else {
        return;
    };
    instance.post_start = match result {
        Ok(()) => PostStart::Done,
        Err(failure) if failure.transient => {
            PostStart::Due(RetryState::transient(failure.reason, failure.message, now).retry_at)
        }
        Err(failure) => PostStart::Failed(failure.message.into()),
    };
}

/// Applies a phase of a stop. Returns the exit, if the signal found the process gone.
pub(super) fn stopped(
    slot: &mut ContainerSlot,
    id: Option<&ContainerId>,
    phase: StopPhase,
    result: Result<Option<Exit>, Failure>,
    now: Now,
) -> Option<(ContainerId, Exit)> {
    // A call that hung may be answered after the instance has ended, or has a successor.
    let instance = slot.instance.as_mut().filter(|instance| Some(&instance.id) == id)?;
    let Life::Running { stopping: Some(stopping), .. } = &mut instance.life else { return None };
    match result {
        Ok(Some(exit)) if exit.reason == STATUS_UNKNOWN => instance.end(exit, now),
        Ok(Some(exit)) => {
            if stopping.phase == phase {
                // If the exit is not collected, SIGKILL is repeated and finds it again.
                stopping.done(now.mono);
            }
            slot.retry = None;
            return Some((instance.id.clone(), exit));
        }
        _ if stopping.phase != phase => {}
        Ok(None) => {
            stopping.done(now.mono);
            slot.retry = None;
        }
        // A failed hook is not run again, and the signal follows.
        Err(_) if phase == StopPhase::PreStop => stopping.done(now.mono),
        // Retried after a second. Only its success matters; the reason is in the log.
        Err(failure) => {
            let retry = RetryState::transient(failure.reason, failure.message, now.mono);
            stopping.repeat_at = Some(retry.retry_at);
            slot.retry = Some(retry);
        }
    }
    None
}

/// Applies the removal of an exited task.
pub(super) fn reaped(slot: &mut ContainerSlot, id: &ContainerId, result: Result<Exit, Failure>, now: Instant) {
    slot.busy = None;
    match result {
        Ok(written) => {
            slot.retry = None;
            for instance in slot.instances_mut().filter(|instance| instance.id == *id) {
                if let Life::Exited { exit, reaped, .. } = &mut instance.life {
                    *exit = written.clone();
                    *reaped = true;
                }
            }
        }
        Err(failure) => slot.retry = Some(RetryState::transient(failure.reason, failure.message, now)),
    }
}

/// Applies an attempt to remove the container `id`, which was created and never started.
pub(super) fn discarded(slot: &mut ContainerSlot, id: ContainerId, gone: bool) {
    slot.busy = None;
    slot.possible_orphan = (!gone).then_some(id);
}

/// Applies the removal of an orphan of a failed start.
pub(super) fn orphan_removed(slot: &mut ContainerSlot, result: Result<(), Failure>, now: Instant) {
    slot.busy = None;
    match result {
        Ok(()) => {
            (slot.possible_orphan, slot.discard_begun, slot.retry) = (None, false, None);
            // A process may have run under this id.
            slot.spend_id();
        }
        Err(failure) => slot.retry = Some(RetryState::transient(failure.reason, failure.message, now)),
    }
}

/// Applies the removal of earlier instances.
pub(super) fn forgotten(slot: &mut ContainerSlot, ids: &[ContainerId]) {
    slot.busy = None;
    slot.stale.retain(|instance| !ids.contains(&instance.id));
}

/// Applies the exit of a container. Returns the index of its container if the exit is new.
pub fn exited(pod: &mut PodState, id: &ContainerId, pid: u32, exit: Exit, now: Now) -> Option<usize> {
    for (index, slot) in pod.containers.iter_mut().enumerate() {
        if matches!(&slot.busy, Some(OngoingAction::Starting(starting)) if starting == id) {
            // It exited before its start was reported.
            slot.early_exit = Some((id.clone(), pid, exit));
            return None;
        }
        let known = slot.instances_mut().find(|instance| instance.is_process(id, pid));
        if let Some(instance) = known {
            instance.end(exit, now);
            return Some(index);
        }
    }
    None
}
