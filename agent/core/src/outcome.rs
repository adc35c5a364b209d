//! The outcomes of actions, and how they change the pod's state. Pure: the executor reports, and this module applies.

mod container;
mod pod;
pub mod restart;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::admission::HostLack;
use super::plan::{Action, KillCause, restart_all};
use super::probe::Probes;
use super::state::{
    CgroupState, Changes, ImageState, Instance, Life, Now, OngoingAction, PodSandbox, PodState, PostStart, RetryState,
    SandboxState, StopPhase, Stopping,
};
use super::storage::StorageUsage;
use limpet_model::container::{ContainerId, Exit};
use limpet_model::image::LocalImage;
use limpet_model::probe::ProbeKind;

pub use container::exited;
use container::{
    discarded, forgotten, image_ensured, orphan_removed, post_started, probes_of, reaped, started, stopped,
};
use pod::{
    cgroup_updated, host_lacks, resized, sandbox_examined, sandbox_failed, sandbox_lost, sandbox_prepared,
    storage_measured, volumes_updated,
};

/// Why an action did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// kubelet's reason.
    pub reason: &'static str,
    /// The sentence that people read.
    pub message: String,
    /// Whether it is expected to pass by itself (containerd unreachable, a hung call), so that it is retried soon,
    /// without back-off.
    pub transient: bool,
}

impl Failure {
    /// The resulting retry state, whose back-off doubles up to `max`.
    fn retry_state(self, previous: Option<&RetryState>, max: Duration, now: Instant) -> RetryState {
        if self.transient {
            return RetryState::transient(self.reason, self.message, now);
        }
        let mut retry = RetryState::after(previous, self.reason, self.message, now);
        retry.cap(max);
        retry
    }
}

/// The outcome of an action.
#[derive(Debug)]
pub enum Outcome {
    /// Of [`Action::ExamineSandbox`]: `None` if it does not exist, and an error if that is unknown.
    SandboxExamined(Result<Option<Arc<PodSandbox>>, Failure>),
    /// Of [`Action::PrepareSandbox`].
    SandboxPrepared(Result<Arc<PodSandbox>, Failure>),
    /// Of [`Action::PrepareSandbox`], if the host does not have what the pod names.
    HostLacks(HostLack),
    /// Of [`Action::UpdateVolumes`].
    VolumesUpdated(Result<(), Failure>),
    /// Of [`Action::MeasureStorage`].
    StorageMeasured {
        /// How much the pod uses.
        usage: StorageUsage,
        /// The time until the next measurement.
        again: Duration,
    },
    /// Of [`Action::UpdateCgroup`].
    CgroupUpdated(Result<(), Failure>),
    /// Of [`Action::ReleaseSandbox`].
    SandboxReleased(Result<(), Failure>),
    /// Of [`Action::EnsureImage`].
    ImageEnsured {
        index: usize,
        /// Hash of the image and resources it was requested for.
        fingerprint: String,
        /// The attempt it is valid for.
        attempt: u32,
        result: Result<Arc<LocalImage>, Failure>,
    },
    /// Of [`Action::Resize`].
    Resized {
        index: usize,
        id: ContainerId,
        /// Whether it has the resources now.
        result: Result<(), Failure>,
    },
    /// Of [`Action::Start`]. An instance whose process could not be started is reported as exited.
    Started {
        index: usize,
        /// The new instance.
        result: Result<Box<Instance>, Failure>,
    },
    /// Of [`Action::Start`], if containerd reserves the container's id without a container, and does not release it.
    IdTaken {
        index: usize,
        /// containerd's error.
        failure: Failure,
    },
    /// Of [`Action::Start`], if the pins that the container was to join are gone.
    SandboxLost {
        index: usize,
        /// The sandbox that is broken.
        sandbox: Arc<PodSandbox>,
    },
    /// A container's process has exited, and the details of its exit have been collected.
    Ended { id: ContainerId, exit: Exit },
    /// Of [`Action::PostStart`].
    PostStarted {
        index: usize,
        /// The instance whose hook it was; `None` if there was none.
        id: Option<ContainerId>,
        /// Whether it succeeded. After a transient failure the hook is run again.
        result: Result<(), Failure>,
    },
    /// Of [`Action::Stop`].
    Stopped {
        index: usize,
        /// The instance; `None` if there was none.
        id: Option<ContainerId>,
        /// The phase whose action was performed.
        phase: StopPhase,
        /// Whether it was done. An exit means that the process was already gone, a missed exit.
        result: Result<Option<Exit>, Failure>,
    },
    /// Of [`Action::Probe`].
    Probed {
        index: usize,
        id: ContainerId,
        /// Which of its probes ran.
        kind: ProbeKind,
        /// Whether it succeeded; `None` if the probe itself failed.
        passed: Option<bool>,
    },
    /// Of [`Action::RecordProbes`].
    ProbesRecorded {
        index: usize,
        id: ContainerId,
        /// Whether it was recorded.
        done: bool,
    },
    /// Of [`Action::Reap`] and [`Action::ReapPrevious`].
    Reaped {
        index: usize,
        id: ContainerId,
        /// Its exit as recorded.
        result: Result<Exit, Failure>,
    },
    /// Of removing a container that was created and never started.
    Discarded {
        index: usize,
        /// The container to remove.
        id: ContainerId,
        /// Whether it is gone. Otherwise the next start, or the pod's teardown, removes it.
        gone: bool,
    },
    /// Of [`Action::Discard`].
    OrphanRemoved {
        index: usize,
        /// Whether nothing of the failed start is left.
        result: Result<(), Failure>,
    },
    /// Of [`Action::Forget`].
    Forgotten {
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
        Action::ExamineSandbox => pod.sandbox = SandboxState::Examining,
        Action::PrepareSandbox => {
            pod.sandbox = SandboxState::Preparing;
            pod.changed_meanwhile = Changes::NONE;
            pod.volumes.writing = pod.volumes_version();
            pod.cgroup = CgroupState { setting: Some(pod.record.cgroup_limits), ..CgroupState::default() };
        }
        Action::MeasureStorage => pod.storage.iter_mut().for_each(|watch| watch.measuring = true),
        Action::UpdateCgroup(limits) => pod.cgroup.setting = Some(*limits),
        Action::UpdateVolumes => pod.volumes.writing = pod.volumes_version(),
        Action::ReleaseSandbox | Action::TearDown => {
            pod.set_sandbox(SandboxState::Releasing);
            pod.changed_meanwhile = Changes::NONE;
        }
        Action::EnsureImage(index) => {
            let slot = &mut pod.containers[*index];
            slot.image = ImageState::Pulling;
            slot.image_came = false;
        }
        Action::Resize(index) => {
            let record = Arc::clone(&pod.record);
            if let Some(resize) = instance(pod, *index).and_then(|instance| instance.resize.as_mut()) {
                resize.setting = Some(record);
            }
        }
        Action::Start(index) => begin_start(pod, *index),
        Action::PostStart(index) => {
            instance(pod, *index).into_iter().for_each(|instance| instance.post_start = PostStart::Running);
        }
        Action::Stop(index, entered, cause) => begin_stop(pod, *index, entered, cause),
        Action::Probe(index, kind, next) => {
            let probes = instance(pod, *index).and_then(|instance| instance.probes.as_mut());
            probes.into_iter().for_each(|probes| probes.run(*kind, *next));
        }
        Action::RecordProbes(index, record) => {
            let probes = instance(pod, *index).and_then(|instance| instance.probes.as_mut());
            probes.into_iter().for_each(|probes| probes.record(*record));
        }
        Action::Reap(index) | Action::ReapPrevious(index) | Action::Forget(index) | Action::Discard(index) => {
            let slot = &mut pod.containers[*index];
            slot.busy = Some(OngoingAction::Reaping);
            slot.discard_begun |= matches!(action, Action::Discard(_));
        }
    }
}

fn instance(pod: &mut PodState, index: usize) -> Option<&mut Instance> {
    pod.containers[index].instance.as_mut()
}

fn begin_start(pod: &mut PodState, index: usize) {
    let pod_restarts = restart_all::pod_restarts(pod);
    let id = pod.next_id(&pod.containers[index]);
    let slot = &mut pod.containers[index];
    slot.start_follows = pod_restarts;
    slot.busy = Some(OngoingAction::Starting(id));
    (slot.changed_meanwhile, slot.discard_begun) = (Changes::NONE, false);
}

fn begin_stop(pod: &mut PodState, index: usize, entered: &Stopping, cause: &KillCause) {
    pod.signals_being_sent += u32::from(entered.phase != StopPhase::PreStop);
    if let Some(Instance { life: Life::Running { stopping, .. }, replaced, restart_asked, .. }) = instance(pod, index) {
        // Only the first phase says why the container ends.
        let is_first = stopping.is_none();
        *replaced |= is_first
            && matches!(cause, KillCause::DefinitionChanged | KillCause::RestartAsked | KillCause::ValuesChanged);
        *restart_asked |= is_first && *cause == KillCause::ValuesChanged;
        *stopping = Some(*entered);
    }
}

/// Applies an outcome. Returns the exit of a container that was reported before its start, or in answer to a signal.
/// Its details are still to be collected and recorded, as for every other exit.
pub fn apply(pod: &mut PodState, outcome: Outcome, now: Now) -> Option<(ContainerId, Exit)> {
    match outcome {
        Outcome::SandboxExamined(result) => sandbox_examined(pod, result, now),
        Outcome::SandboxPrepared(result) => sandbox_prepared(pod, result, now),
        Outcome::HostLacks(lack) => host_lacks(pod, &lack, now),
        Outcome::StorageMeasured { usage, again } => storage_measured(pod, &usage, again, now),
        Outcome::VolumesUpdated(result) => volumes_updated(pod, result, now),
        Outcome::CgroupUpdated(result) => cgroup_updated(pod, result, now),
        Outcome::SandboxReleased(Ok(())) => pod.sandbox = SandboxState::Absent { dirty: false },
        Outcome::TornDown(Ok(())) => pod.sandbox = SandboxState::Gone,
        Outcome::SandboxReleased(Err(failure)) | Outcome::TornDown(Err(failure)) => sandbox_failed(pod, failure, now),
        Outcome::SandboxLost { index, sandbox } => sandbox_lost(pod, index, &sandbox),
        Outcome::ImageEnsured { index, fingerprint, attempt, result } => {
            image_ensured(&mut pod.containers[index], &fingerprint, attempt, result, now.mono);
        }
        Outcome::Resized { index, id, result } => resized(pod, index, &id, result, now),
        Outcome::Started { index, mut result } => {
            let container = pod.container_spec(&pod.containers[index].name);
            if let (Ok(instance), Some(container)) = (&mut result, container) {
                instance.probes = Probes::begin(container, instance.ran_for(now), now.mono);
            }
            return started(&mut pod.containers[index], result, now.mono);
        }
        Outcome::IdTaken { index, failure } => {
            let slot = &mut pod.containers[index];
            slot.spend_id();
            return started(slot, Err(failure), now.mono);
        }
        Outcome::Discarded { index, id, gone } => discarded(&mut pod.containers[index], id, gone),
        Outcome::OrphanRemoved { index, result } => orphan_removed(&mut pod.containers[index], result, now.mono),
        Outcome::Ended { id, exit } => {
            // It may be recorded twice at the same time, and the other recording continues.
            if let Some(done) = pod.exits_being_recorded.iter().position(|recorded| *recorded == id) {
                pod.exits_being_recorded.swap_remove(done);
            }
            exited(pod, &id, 0, exit, now);
        }
        Outcome::PostStarted { index, id, result } => {
            post_started(&mut pod.containers[index], id.as_ref(), result, now.mono);
        }
        Outcome::Stopped { index, id, phase, result } => {
            // A hook is not a signal, and an interrupted hook has no answer.
            let signals = u32::from(phase != StopPhase::PreStop);
            pod.signals_being_sent = pod.signals_being_sent.saturating_sub(signals);
            return stopped(&mut pod.containers[index], id.as_ref(), phase, result, now);
        }
        Outcome::Probed { index, id, kind, passed } => {
            probes_of(pod, index, &id).into_iter().for_each(|probes| probes.apply_result(kind, passed));
        }
        Outcome::ProbesRecorded { index, id, done } => {
            probes_of(pod, index, &id).into_iter().for_each(|probes| probes.recorded(done, now.mono));
        }
        Outcome::Reaped { index, id, result } => reaped(&mut pod.containers[index], &id, result, now.mono),
        Outcome::Forgotten { index, ids } => forgotten(&mut pod.containers[index], &ids),
    }
    None
}

#[cfg(test)]
mod tests;
