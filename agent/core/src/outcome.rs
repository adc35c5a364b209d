//! What came of an action, and what that makes of the pod's state. Pure: the executor reports, this takes it in.

use std::sync::Arc;

use std::time::Instant;

use super::plan::Action;
use super::state::{
    Busy, CONFIG_ERROR, ContainerSlot, FAILED_MOUNT, ImageState, Instance, Life, Now, PodSandbox, PodState, RetryState,
    SandboxState, Stopping,
};
use limpet_model::container::{ContainerId, Exit};
use limpet_model::image::LocalImage;

/// Why an action did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// kubelet's reason.
    pub reason: &'static str,
    /// The sentence people read.
    pub message: String,
    /// It is expected to pass by itself (containerd gone, a call that hung): tried again soon, without back-off.
    pub transient: bool,
}

impl Failure {
    /// The trouble that follows it.
    fn retry_state(self, previous: Option<&RetryState>, now: Instant) -> RetryState {
        if self.transient {
            RetryState::transient(self.reason, self.message, now)
        } else {
            RetryState::after(previous, self.reason, self.message, now)
        }
    }
}

/// What came of an action.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Action::PrepareSandbox`].
    SandboxPrepared(Result<Arc<PodSandbox>, Failure>),
    /// Of [`Action::UpdateVolumes`].
    VolumesUpdated(Result<(), Failure>),
    /// Of [`Action::ReleaseSandbox`].
    SandboxReleased(Result<(), Failure>),
    /// Of [`Action::EnsureImage`].
    ImageEnsured {
        /// The container.
        index: usize,
        /// Hash of image and resources it was asked for.
        fingerprint: String,
        /// The attempt it is good for.
        attempt: u32,
        /// The image.
        result: Result<Arc<LocalImage>, Failure>,
    },
    /// Of [`Action::Start`]. An instance that could not be started as asked comes as one that has ended.
    Started {
        /// The container.
        index: usize,
        /// The new instance.
        result: Result<Box<Instance>, Failure>,
    },
    /// Of [`Action::Start`], when containerd holds the container's id for something that is none, and does not let go.
    IdTaken {
        /// The container.
        index: usize,
        /// What containerd says.
        failure: Failure,
    },
    /// Of [`Action::Start`], when the pins that the container was to join are gone.
    SandboxLost {
        /// The container.
        index: usize,
        /// The sandbox that is not whole any more.
        sandbox: Arc<PodSandbox>,
    },
    /// A process that ran has ended, and what there is to say of its end has been gathered.
    Ended {
        /// The instance.
        id: ContainerId,
        /// How it ended.
        exit: Exit,
    },
    /// The kernel killed something in a container for want of memory, a moment ago.
    OutOfMemorySurvived {
        /// The container.
        index: usize,
        /// The instance.
        id: ContainerId,
        /// How often by now.
        kills: u64,
    },
    /// Of [`Action::Terminate`] and [`Action::Kill`].
    Signalled {
        /// The container.
        index: usize,
        /// How its end stands now.
        stopping: Stopping,
        /// Whether the signal was delivered. An end: the process was gone, and nobody had said so.
        result: Result<Option<Exit>, Failure>,
    },
    /// Of [`Action::Reap`] and [`Action::ReapPrevious`].
    Reaped {
        /// The container.
        index: usize,
        /// The instance.
        id: ContainerId,
        /// Its end as it was written down.
        result: Result<Exit, Failure>,
    },
    /// Of removing what was made and never started.
    Discarded {
        /// The container.
        index: usize,
        /// What was to be removed.
        id: ContainerId,
        /// Whether it is gone; otherwise the next start, or the pod's end, removes it.
        gone: bool,
    },
    /// Of [`Action::Forget`].
    Forgotten {
        /// The container.
        index: usize,
        /// What is gone.
        ids: Vec<ContainerId>,
    },
    /// Of [`Action::TearDown`].
    TornDown(Result<(), Failure>),
}

/// Marks what `action` is about as under way, so that it is not planned again.
pub fn begin(pod: &mut PodState, action: &Action) {
    match action {
        Action::PrepareSandbox => {
            pod.sandbox = SandboxState::Preparing;
            pod.volumes.writing = pod.volumes_version();
        }
        Action::UpdateVolumes => pod.volumes.writing = pod.volumes_version(),
        Action::ReleaseSandbox | Action::TearDown => pod.sandbox = SandboxState::Releasing,
        Action::EnsureImage(index) => {
            let slot = &mut pod.containers[*index];
            slot.image = ImageState::Pulling;
            slot.image_came = false;
        }
        Action::Start(index) => {
            let slot = &mut pod.containers[*index];
            let id = ContainerId::derive(&pod.record.uid, &slot.name, slot.next_attempt());
            slot.busy = Some(Busy::Starting(id));
            slot.objects_changed = false;
        }
        Action::Terminate(index, ..) | Action::Kill(index) => {
            pod.containers[*index].busy = Some(Busy::Signalling);
        }
        Action::Reap(index) | Action::ReapPrevious(index) | Action::Forget(index) => {
            pod.containers[*index].busy = Some(Busy::Reaping);
        }
    }
}

/// Takes an outcome in. Returns the end of a container that overtook the start just reported: it has yet to be gathered
/// and written down, as every other end.
pub fn apply(pod: &mut PodState, outcome: Outcome, now: Now) -> Option<(ContainerId, Exit)> {
    match outcome {
        Outcome::SandboxPrepared(Ok(sandbox)) => {
            pod.sandbox = SandboxState::Ready(sandbox);
            pod.retry = None;
            volumes_updated(pod, Ok(()), now);
        }
        Outcome::SandboxPrepared(Err(failure)) => {
            // What came while it was tried is not what it failed for.
            let edited = pod.volumes.writing.take() != pod.volumes_version() && failure.reason == FAILED_MOUNT;
            sandbox_failed(pod, failure, now);
            pod.retry.take_if(|_| edited);
        }
        Outcome::VolumesUpdated(result) => volumes_updated(pod, result, now),
        Outcome::SandboxReleased(Ok(())) => pod.sandbox = SandboxState::Absent { dirty: false },
        Outcome::TornDown(Ok(())) => pod.sandbox = SandboxState::Gone,
        Outcome::SandboxReleased(Err(failure)) | Outcome::TornDown(Err(failure)) => sandbox_failed(pod, failure, now),
        Outcome::ImageEnsured { index, fingerprint, attempt, result } => {
            image_ensured(&mut pod.containers[index], &fingerprint, attempt, result, now.mono);
        }
        Outcome::Started { index, result } => return started(&mut pod.containers[index], result, now.mono),
        Outcome::IdTaken { index, failure } => {
            let slot = &mut pod.containers[index];
            slot.attempt_floor = slot.next_attempt().saturating_add(1);
            return started(slot, Err(failure), now.mono);
        }
        Outcome::Discarded { index, id, gone } => {
            let slot = &mut pod.containers[index];
            slot.busy = None;
            slot.half_made = (!gone).then_some(id);
        }
        Outcome::SandboxLost { index, sandbox } => {
            pod.containers[index].busy = None;
            // Another start may have told the same, and the sandbox may be a new one already.
            if matches!(&pod.sandbox, SandboxState::Ready(current) if Arc::ptr_eq(current, &sandbox)) {
                pod.sandbox = SandboxState::Absent { dirty: true };
            }
        }
        Outcome::Ended { id, exit } => {
            exited(pod, &id, 0, exit, now);
        }
        Outcome::OutOfMemorySurvived { index, id, kills } => {
            let running = pod.containers[index].instance.as_mut().filter(|one| one.id == id && one.is_running());
            running.into_iter().for_each(|instance| instance.oom_kills_survived = kills);
        }
        Outcome::Signalled { index, stopping, result } => {
            signalled(&mut pod.containers[index], stopping, result, now);
        }
        Outcome::Reaped { index, id, result } => reaped(&mut pod.containers[index], &id, result, now.mono),
        Outcome::Forgotten { index, ids } => {
            let slot = &mut pod.containers[index];
            slot.busy = None;
            slot.stale.retain(|instance| !ids.contains(&instance.id));
        }
    }
    None
}

fn sandbox_failed(pod: &mut PodState, failure: Failure, now: Now) {
    pod.sandbox = SandboxState::Absent { dirty: true };
    pod.retry = Some(failure.retry_state(pod.retry.as_ref(), now.mono));
}

fn volumes_updated(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
    let volumes = &mut pod.volumes;
    let writing = volumes.writing.take();
    match result {
        Ok(()) => (volumes.written, volumes.retry) = (writing, None),
        Err(failure) => volumes.retry = Some(failure.retry_state(volumes.retry.as_ref(), now.mono)),
    }
}

fn image_ensured(
    slot: &mut ContainerSlot,
    fingerprint: &str,
    attempt: u32,
    result: Result<Arc<LocalImage>, Failure>,
    now: Instant,
) {
    if slot.fingerprint != fingerprint {
        return; // Asked for before an edit: of no use now, and the edit has asked anew.
    }
    slot.image = match result {
        Ok(image) => {
            slot.pull_retry = None;
            ImageState::Ready { image, attempt }
        }
        Err(_) if slot.image_came => ImageState::Unknown,
        Err(failure) => {
            let retry = failure.retry_state(slot.pull_retry.as_ref(), now);
            slot.pull_retry = Some(retry.clone());
            ImageState::Failed(retry)
        }
    };
}

fn started(
    slot: &mut ContainerSlot,
    result: Result<Box<Instance>, Failure>,
    now: Instant,
) -> Option<(ContainerId, Exit)> {
    let begun = match slot.busy.take() {
        Some(Busy::Starting(id)) => Some(id),
        _ => None,
    };
    match result {
        Ok(instance) => {
            slot.retry = None;
            slot.half_made = None;
            // Of an earlier try under the same id it may tell as well: that was another process.
            let early_end = slot.early_end.take().filter(|(id, pid, _)| instance.is_process(id, *pid));
            slot.succeed(*instance);
            early_end.map(|(id, _, exit)| (id, exit))
        }
        Err(failure) => {
            slot.half_made = begun;
            // What made the image unusable may be mended by looking for it anew.
            slot.image = ImageState::Unknown;
            let mended = slot.objects_changed && failure.reason == CONFIG_ERROR;
            slot.retry = (!mended).then(|| failure.retry_state(slot.retry.as_ref(), now));
            None
        }
    }
}

fn signalled(slot: &mut ContainerSlot, stopping: Stopping, result: Result<Option<Exit>, Failure>, now: Now) {
    slot.busy = None;
    match (result, &mut slot.instance) {
        (Ok(Some(exit)), Some(instance)) if instance.is_running() => instance.end(exit, now),
        (Ok(_), Some(Instance { life: Life::Running { stopping: current, .. }, .. })) => {
            *current = Some(stopping);
            slot.retry = None;
        }
        (Ok(_), _) => {}
        // Tried again after a second; the signal is what matters, the reason is in the log.
        (Err(failure), _) => slot.retry = Some(RetryState::transient(failure.reason, failure.message, now.mono)),
    }
}

fn reaped(slot: &mut ContainerSlot, id: &ContainerId, result: Result<Exit, Failure>, now: Instant) {
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

/// Takes the end of a container in. Returns the container it belongs to, by place, when it is a new end.
pub fn exited(pod: &mut PodState, id: &ContainerId, pid: u32, exit: Exit, now: Now) -> Option<usize> {
    for (index, slot) in pod.containers.iter_mut().enumerate() {
        if matches!(&slot.busy, Some(Busy::Starting(starting)) if starting == id) {
            // It ended before its start was reported.
            slot.early_end = Some((id.clone(), pid, exit));
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

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
