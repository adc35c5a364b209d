//! How outcomes change the pod as a whole: its sandbox, volumes, cgroup and resources. Part of [`super`].

use std::sync::Arc;
use std::time::Duration;

use limpet_model::container::ContainerId;
use limpet_model::object::claim;

use super::Failure;
use crate::admission::HostLack;
use crate::plan::is_finished;
use crate::state::{
    CgroupState, Changes, FAILED_MOUNT, MAX_BACKOFF_AFTER_NETWORK_CHANGE, MAX_RESIZE_BACKOFF, MAX_SYNC_BACKOFF,
    MAX_VOLUME_BACKOFF, Now, PodSandbox, PodState, REPUBLISH_INTERVAL, SandboxState,
};
use crate::storage::{StorageUsage, StorageWatch, excess};

/// Applies what is known about the sandbox of containers that were found running.
pub(super) fn sandbox_examined(pod: &mut PodState, result: Result<Option<Arc<PodSandbox>>, Failure>, now: Now) {
    match result {
        Ok(sandbox) => {
            pod.set_sandbox(sandbox.map_or(SandboxState::Absent { dirty: true }, SandboxState::Ready));
            pod.retry = None;
        }
        Err(failure) => {
            pod.sandbox = SandboxState::Unknown;
            pod.retry = Some(failure.retry_state(pod.retry.as_ref(), MAX_SYNC_BACKOFF, now.mono));
        }
    }
}

/// Applies an attempt to prepare the sandbox, including the volumes and the cgroup.
pub(super) fn sandbox_prepared(pod: &mut PodState, result: Result<Arc<PodSandbox>, Failure>, now: Now) {
    match result {
        Ok(sandbox) => {
            pod.sandbox = SandboxState::Ready(sandbox);
            pod.retry = None;
            volumes_updated(pod, Ok(()), now);
            cgroup_updated(pod, Ok(()), now);
        }
        Err(failure) => {
            // Objects that changed during the attempt are not the cause of its failure.
            let edited = pod.volumes.writing.take() != pod.volumes_version() && failure.reason == FAILED_MOUNT;
            sandbox_failed(pod, failure, now);
            pod.cgroup = CgroupState::default();
            pod.retry.take_if(|_| edited);
        }
    }
}

/// Records that the host lacks something for the pod, which fails, or is tried again.
pub(super) fn host_lacks(pod: &mut PodState, lack: &HostLack, now: Now) {
    let Some(verdict) = lack.verdict(pod.record.source) else {
        let (reason, message, transient) = (lack.reason(), lack.to_string(), lack.is_transient());
        return sandbox_prepared(pod, Err(Failure { reason, message, transient }), now);
    };
    pod.set_sandbox(SandboxState::Absent { dirty: true });
    (pod.volumes.writing, pod.retry) = (None, None);
    pod.cgroup = CgroupState::default();
    pod.fail(verdict);
}

/// Applies a measurement of the pod's storage, which ends a pod that uses too much. The next measurement follows
/// after `again`.
pub(super) fn storage_measured(pod: &mut PodState, usage: &StorageUsage, again: Duration, now: Now) {
    if let Some(watch) = &mut pod.storage {
        **watch = StorageWatch { due: now.mono.checked_add(again), measuring: false };
    }
    if pod.ending.is_none()
        && !is_finished(pod)
        && let Some(verdict) = excess(&pod.record, usage)
    {
        pod.fail(verdict);
    }
}

/// Records that a container could not start because `sandbox` is gone.
pub(super) fn sandbox_lost(pod: &mut PodState, index: usize, sandbox: &Arc<PodSandbox>) {
    pod.containers[index].busy = None;
    // Another start may have reported this already, and the sandbox may be a new one.
    if matches!(&pod.sandbox, SandboxState::Ready(current) if Arc::ptr_eq(current, sandbox)) {
        pod.set_sandbox(SandboxState::Absent { dirty: true });
    }
}

/// Applies an attempt to change the resources of a running container.
pub(super) fn resized(pod: &mut PodState, index: usize, id: &ContainerId, result: Result<(), Failure>, now: Now) {
    let resizes = pod.containers[index].instance.as_ref().and_then(|instance| instance.resize.as_ref());
    let before = resizes.and_then(|resize| resize.retry.clone());
    let retry = |failure: Failure| failure.retry_state(before.as_ref(), MAX_RESIZE_BACKOFF, now.mono);
    pod.resized(index, id, result.map_err(retry));
}

/// Records that the sandbox could not be prepared or released.
pub(super) fn sandbox_failed(pod: &mut PodState, failure: Failure, now: Now) {
    pod.sandbox = SandboxState::Absent { dirty: true };
    let awaited = Changes::awaited_by_sandbox(failure.reason, pod.record.host_network());
    let came = |change| awaited.meet(change) && pod.changed_meanwhile.meet(change);
    let max = if came(Changes::NETWORK) { MAX_BACKOFF_AFTER_NETWORK_CHANGE } else { MAX_SYNC_BACKOFF };
    let at_once = came(Changes::VOLUME_DRIVERS) || came(Changes::OBJECTS);
    pod.retry = (!at_once).then(|| failure.retry_state(pod.retry.as_ref(), max, now.mono).awaiting(awaited));
}

/// Applies an attempt to write the volumes.
pub(super) fn volumes_updated(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
    let again = claim::is_republished(&pod.record, &pod.objects);
    let volumes = &mut pod.volumes;
    let writing = volumes.writing.take();
    match result {
        Ok(()) => {
            (volumes.written, volumes.retry) = (writing, None);
            volumes.republish_at = again.then(|| now.mono + REPUBLISH_INTERVAL);
        }
        Err(failure) => {
            let awaited = Changes::awaited_by_volumes(failure.reason);
            let retry = failure.retry_state(volumes.retry.as_ref(), MAX_VOLUME_BACKOFF, now.mono);
            volumes.retry = Some(retry.awaiting(awaited));
        }
    }
}

/// Applies an attempt to set the limits of the pod's cgroup.
pub(super) fn cgroup_updated(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
    let cgroup = &mut pod.cgroup;
    let setting = cgroup.setting.take();
    match result {
        Ok(()) => *cgroup = CgroupState { set: setting, ..CgroupState::default() },
        Err(failure) => {
            cgroup.refused = !failure.transient;
            cgroup.retry = Some(failure.retry_state(cgroup.retry.as_ref(), MAX_RESIZE_BACKOFF, now.mono));
            cgroup.uncertain = true;
            cgroup.set = cgroup.set.map(|set| setting.map_or(set, |setting| set.lowered_to(&setting)));
        }
    }
}
