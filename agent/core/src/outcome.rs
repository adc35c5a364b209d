//! The outcomes of actions, and how they change the pod's state. Pure: the executor reports, this module applies.

mod container;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::plan::{Action, KillCause, is_finished, restart_all};
use super::probe::Probes;
use super::state::{
    CgroupState, FAILED_MOUNT, FAILED_UNMOUNT, ImageState, Instance, Life, MAX_BACKOFF_AFTER_NETWORK_CHANGE,
    MAX_RESIZE_BACKOFF, MAX_SANDBOX_BACKOFF, Now, OngoingAction, PodSandbox, PodState, PostStart, REPUBLISH_INTERVAL,
    RetryState, SandboxState, StopPhase,
};
use super::storage::StorageWatch;
use limpet_model::container::{ContainerId, Exit};
use limpet_model::image::LocalImage;
use limpet_model::object::claim;
use limpet_model::pod::compute_resources::pod_limits;
use limpet_model::probe::ProbeKind;
use limpet_model::verdict::PodVerdict;

pub use container::exited;
use container::{image_ensured, post_started, probes_of, reaped, started, stopped};

/// Why an action did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// kubelet's reason.
    pub reason: &'static str,
    /// The sentence people read.
    pub message: String,
    /// It is expected to pass by itself (containerd unreachable, a hung call): retried soon, without back-off.
    pub transient: bool,
}

impl Failure {
    /// The retry state that follows from it.
    fn retry_state(self, previous: Option<&RetryState>, now: Instant) -> RetryState {
        if self.transient {
            RetryState::transient(self.reason, self.message, now)
        } else {
            RetryState::after(previous, self.reason, self.message, now)
        }
    }
}

/// The outcome of an action.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Action::PrepareSandbox`].
    SandboxPrepared(Result<Arc<PodSandbox>, Failure>),
    /// Of [`Action::PrepareSandbox`], when the node refuses the pod.
    Refused(PodVerdict),
    /// Of [`Action::UpdateVolumes`].
    VolumesUpdated(Result<(), Failure>),
    /// Of [`Action::MeasureStorage`].
    StorageMeasured {
        /// The pod takes more than it may.
        excess: Option<PodVerdict>,
        /// When it is to be measured again.
        again: Duration,
    },
    /// Of [`Action::UpdateCgroup`].
    CgroupUpdated(Result<(), Failure>),
    /// Of [`Action::ReleaseSandbox`].
    SandboxReleased(Result<(), Failure>),
    /// Of [`Action::EnsureImage`].
    ImageEnsured {
        /// The container.
        index: usize,
        /// Hash of the image and resources it was requested for.
        fingerprint: String,
        /// The attempt it is valid for.
        attempt: u32,
        /// The image.
        result: Result<Arc<LocalImage>, Failure>,
    },
    /// Of [`Action::Resize`].
    Resized {
        /// The container.
        index: usize,
        /// The instance.
        id: ContainerId,
        /// Whether it has the resources now.
        result: Result<(), Failure>,
    },
    /// Of [`Action::Start`]. An instance whose process could not be started is reported as exited.
    Started {
        /// The container.
        index: usize,
        /// The new instance.
        result: Result<Box<Instance>, Failure>,
    },
    /// Of [`Action::Start`], when containerd reserves the container's id without a container, and does not release it.
    IdTaken {
        /// The container.
        index: usize,
        /// containerd's error.
        failure: Failure,
    },
    /// Of [`Action::Start`], when the pins that the container was to join are gone.
    SandboxLost {
        /// The container.
        index: usize,
        /// The sandbox that is broken.
        sandbox: Arc<PodSandbox>,
    },
    /// A container's process has exited, and the details of its exit have been collected.
    Ended {
        /// The instance.
        id: ContainerId,
        /// Its exit.
        exit: Exit,
    },
    /// Of [`Action::PostStart`].
    PostStarted {
        /// The container.
        index: usize,
        /// The instance whose hook it was; `None`: there was none.
        id: Option<ContainerId>,
        /// Whether it has succeeded. A transient failure says nothing of the hook: it is run again.
        result: Result<(), Failure>,
    },
    /// Of [`Action::Stop`].
    Stopped {
        /// The container.
        index: usize,
        /// The instance; `None`: there was none.
        id: Option<ContainerId>,
        /// The phase whose action was performed.
        phase: StopPhase,
        /// Whether it was done. An exit: the process was gone already, a missed exit.
        result: Result<Option<Exit>, Failure>,
    },
    /// Of [`Action::Probe`].
    Probed {
        /// The container.
        index: usize,
        /// The instance.
        id: ContainerId,
        /// Which of its probes.
        kind: ProbeKind,
        /// Whether it has succeeded; `None`: the probe itself failed.
        passed: Option<bool>,
    },
    /// Of [`Action::RecordProbes`].
    ProbesRecorded {
        /// The container.
        index: usize,
        /// The instance.
        id: ContainerId,
        /// Whether it was recorded.
        done: bool,
    },
    /// Of [`Action::Reap`] and [`Action::ReapPrevious`].
    Reaped {
        /// The container.
        index: usize,
        /// The instance.
        id: ContainerId,
        /// Its exit as recorded.
        result: Result<Exit, Failure>,
    },
    /// Of removing a container that was created and never started.
    Discarded {
        /// The container.
        index: usize,
        /// The container to remove.
        id: ContainerId,
        /// Whether it is gone; otherwise the next start, or the pod's teardown, removes it.
        gone: bool,
    },
    /// Of [`Action::Discard`].
    OrphanRemoved {
        /// The container.
        index: usize,
        /// Whether nothing of the failed start is left.
        result: Result<(), Failure>,
    },
    /// Of [`Action::Forget`].
    Forgotten {
        /// The container.
        index: usize,
        /// The removed instances.
        ids: Vec<ContainerId>,
    },
    /// Of [`Action::TearDown`].
    TornDown(Result<(), Failure>),
}

/// Marks the subject of `action` as in progress, so that it is not planned again.
pub fn begin(pod: &mut PodState, action: &Action) {
    match action {
        Action::PrepareSandbox => {
            pod.sandbox = SandboxState::Preparing;
            (pod.network_changed, pod.drivers_changed) = (false, false);
            pod.volumes.writing = pod.volumes_version();
            pod.cgroup = CgroupState { setting: Some(pod_limits(pod.record.spec())), ..CgroupState::default() };
        }
        Action::MeasureStorage => pod.storage.iter_mut().for_each(|watch| watch.measuring = true),
        Action::UpdateCgroup(limits) => pod.cgroup.setting = Some(*limits),
        Action::UpdateVolumes => pod.volumes.writing = pod.volumes_version(),
        Action::ReleaseSandbox | Action::TearDown => {
            pod.set_sandbox(SandboxState::Releasing);
            pod.drivers_changed = false;
        }
        Action::EnsureImage(index) => {
            let slot = &mut pod.containers[*index];
            slot.image = ImageState::Pulling;
            slot.image_came = false;
        }
        Action::Resize(index) => {
            let resize = pod.containers[*index].instance.as_mut().and_then(|one| one.resize.as_mut());
            resize.into_iter().for_each(|resize| resize.setting = Some(Arc::clone(&pod.record)));
        }
        Action::Start(index) => {
            let pod_restarts = restart_all::pod_restarts(pod);
            let slot = &mut pod.containers[*index];
            slot.start_follows = pod_restarts;
            let id = ContainerId::derive(&pod.record.uid, &slot.name, slot.next_attempt());
            slot.busy = Some(OngoingAction::Starting(id));
            slot.mended = false;
        }
        Action::PostStart(index) => {
            if let Some(instance) = &mut pod.containers[*index].instance {
                instance.post_start = PostStart::Running;
            }
        }
        Action::Stop(index, entered, cause) => {
            pod.signals_being_sent += u32::from(entered.phase != StopPhase::PreStop);
            if let Some(Instance { life: Life::Running { stopping, .. }, replaced, .. }) =
                &mut pod.containers[*index].instance
            {
                // Only the first phase says why it ends.
                *replaced |= stopping.is_none() && *cause == KillCause::DefinitionChanged;
                *stopping = Some(*entered);
            }
        }
        Action::Probe(index, kind, next) => {
            let probes = pod.containers[*index].instance.as_mut().and_then(|one| one.probes.as_mut());
            probes.into_iter().for_each(|probes| probes.run(*kind, *next));
        }
        Action::RecordProbes(index, record) => {
            let probes = pod.containers[*index].instance.as_mut().and_then(|one| one.probes.as_mut());
            probes.into_iter().for_each(|probes| probes.record(*record));
        }
        Action::Reap(index) | Action::ReapPrevious(index) | Action::Forget(index) | Action::Discard(index) => {
            pod.containers[*index].busy = Some(OngoingAction::Reaping);
        }
    }
}

/// Applies an outcome. Returns the exit of a container that was reported before its start, or in answer to a signal: its
/// details are still to be collected and recorded, as for every other exit.
pub fn apply(pod: &mut PodState, outcome: Outcome, now: Now) -> Option<(ContainerId, Exit)> {
    match outcome {
        Outcome::SandboxPrepared(Ok(sandbox)) => {
            pod.sandbox = SandboxState::Ready(sandbox);
            pod.retry = None;
            volumes_updated(pod, Ok(()), now);
            cgroup_updated(pod, Ok(()), now);
        }
        Outcome::SandboxPrepared(Err(failure)) => {
            // Objects that changed during the attempt are not the cause of its failure.
            let edited = pod.volumes.writing.take() != pod.volumes_version() && failure.reason == FAILED_MOUNT;
            sandbox_failed(pod, failure, now);
            pod.cgroup = CgroupState::default();
            let most = if pod.network_changed { MAX_BACKOFF_AFTER_NETWORK_CHANGE } else { MAX_SANDBOX_BACKOFF };
            pod.retry.iter_mut().for_each(|retry| retry.cap(most));
            pod.retry.take_if(|_| edited);
        }
        Outcome::Refused(verdict) => {
            pod.set_sandbox(SandboxState::Absent { dirty: true });
            (pod.volumes.writing, pod.retry) = (None, None);
            pod.cgroup = CgroupState::default();
            pod.fail(verdict);
        }
        Outcome::StorageMeasured { excess, again } => {
            if let Some(watch) = &mut pod.storage {
                **watch = StorageWatch { due: now.mono.checked_add(again), measuring: false };
            }
            if let Some(verdict) = excess.filter(|_| pod.ending.is_none() && !is_finished(pod)) {
                pod.fail(verdict);
            }
        }
        Outcome::VolumesUpdated(result) => volumes_updated(pod, result, now),
        Outcome::CgroupUpdated(result) => cgroup_updated(pod, result, now),
        Outcome::SandboxReleased(Ok(())) => pod.sandbox = SandboxState::Absent { dirty: false },
        Outcome::TornDown(Ok(())) => pod.sandbox = SandboxState::Gone,
        Outcome::SandboxReleased(Err(failure)) | Outcome::TornDown(Err(failure)) => sandbox_failed(pod, failure, now),
        Outcome::ImageEnsured { index, fingerprint, attempt, result } => {
            image_ensured(&mut pod.containers[index], &fingerprint, attempt, result, now.mono);
        }
        Outcome::Resized { index, id, result } => {
            let resizes = pod.containers[index].instance.as_ref().and_then(|one| one.resize.as_ref());
            let before = resizes.and_then(|resize| resize.retry.clone());
            let retry = |failure: Failure| {
                let mut retry = failure.retry_state(before.as_ref(), now.mono);
                retry.cap(MAX_RESIZE_BACKOFF);
                retry
            };
            pod.resized(index, &id, result.map_err(retry));
        }
        Outcome::Started { index, mut result } => {
            let container = pod.container_spec(&pod.containers[index].name);
            if let (Ok(instance), Some(container)) = (&mut result, container) {
                instance.probes = Probes::begin(container, instance.ran_for(now), now.mono);
            }
            return started(&mut pod.containers[index], result, now.mono);
        }
        Outcome::IdTaken { index, failure } => {
            let slot = &mut pod.containers[index];
            slot.attempt_floor = slot.next_attempt().saturating_add(1);
            return started(slot, Err(failure), now.mono);
        }
        Outcome::Discarded { index, id, gone } => {
            let slot = &mut pod.containers[index];
            slot.busy = None;
            slot.possible_orphan = (!gone).then_some(id);
        }
        Outcome::OrphanRemoved { index, result } => {
            let slot = &mut pod.containers[index];
            slot.busy = None;
            match result {
                Ok(()) => (slot.possible_orphan, slot.retry) = (None, None),
                Err(failure) => slot.retry = Some(RetryState::transient(failure.reason, failure.message, now.mono)),
            }
        }
        Outcome::SandboxLost { index, sandbox } => {
            pod.containers[index].busy = None;
            // Another start may have reported this already, and the sandbox may be a new one.
            if matches!(&pod.sandbox, SandboxState::Ready(current) if Arc::ptr_eq(current, &sandbox)) {
                pod.set_sandbox(SandboxState::Absent { dirty: true });
            }
        }
        Outcome::Ended { id, exit } => {
            // It may be recorded twice at once, and the other recording goes on.
            if let Some(done) = pod.exits_being_recorded.iter().position(|recorded| *recorded == id) {
                pod.exits_being_recorded.swap_remove(done);
            }
            exited(pod, &id, 0, exit, now);
        }
        Outcome::PostStarted { index, id, result } => {
            post_started(&mut pod.containers[index], id.as_ref(), result, now.mono);
        }
        Outcome::Stopped { index, id, phase, result } => {
            // A hook is no signal, and one that is cut is not answered.
            let signals = u32::from(phase != StopPhase::PreStop);
            pod.signals_being_sent = pod.signals_being_sent.saturating_sub(signals);
            return stopped(&mut pod.containers[index], id.as_ref(), phase, result, now);
        }
        Outcome::Probed { index, id, kind, passed } => {
            probes_of(pod, index, &id).into_iter().for_each(|probes| probes.take(kind, passed));
        }
        Outcome::ProbesRecorded { index, id, done } => {
            probes_of(pod, index, &id).into_iter().for_each(|probes| probes.recorded(done, now.mono));
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
    let mended = pod.drivers_changed && matches!(failure.reason, FAILED_MOUNT | FAILED_UNMOUNT);
    pod.retry = (!mended).then(|| failure.retry_state(pod.retry.as_ref(), now.mono));
}

fn volumes_updated(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
    let again = claim::is_republished(&pod.record, &pod.objects);
    let volumes = &mut pod.volumes;
    let writing = volumes.writing.take();
    match result {
        Ok(()) => {
            (volumes.written, volumes.retry) = (writing, None);
            volumes.republish_at = again.then(|| now.mono + REPUBLISH_INTERVAL);
        }
        Err(failure) => volumes.retry = Some(failure.retry_state(volumes.retry.as_ref(), now.mono)),
    }
}

fn cgroup_updated(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
    let cgroup = &mut pod.cgroup;
    let setting = cgroup.setting.take();
    match result {
        Ok(()) => *cgroup = CgroupState { set: setting, ..CgroupState::default() },
        Err(failure) => {
            cgroup.refused = !failure.transient;
            cgroup.retry = Some(failure.retry_state(cgroup.retry.as_ref(), now.mono));
            cgroup.uncertain = true;
            cgroup.set = cgroup.set.map(|set| setting.map_or(set, |setting| set.lowered_to(&setting)));
        }
    }
}

#[cfg(test)]
#[path = "outcome_tests.rs"]
mod tests;
