//! Adopts running containers: containerd's view of a pod's containers becomes, or corrects, the worker's state.
//!
//! Pure, except for the process lookups, which are passed in. A missed exit counts as 137, `ContainerStatusUnknown`.
//! A container that was created but never started is created again.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::EphemeralContainer;
use limpet_model::container::{ContainerId, Exit, FoundContainer, Task};
use limpet_model::manifest::restore;
use limpet_model::pod::{PodRecord, PodUid, ephemeral};
use limpet_model::process::Processes;

use super::backoff::MAX_BACKOFF;
use super::probe::Probes;
use super::state::{Instance, Life, Now, OngoingAction, PodState, PostStart};

/// The reason of a missed exit.
pub const STATUS_UNKNOWN: &str = "ContainerStatusUnknown";

/// Updates `pod` with containerd's view of it. Returns containers that never ran and must be removed.
pub fn adopt(pod: &mut PodState, listed: Vec<FoundContainer>, processes: &dyn Processes, now: Now) -> Vec<ContainerId> {
    let mut never_ran = Vec::new();
    pod.outlived_connection = true;
    mark_missing(pod, &listed, processes, now);
    let mut containers: Vec<FoundContainer> =
        listed.into_iter().filter(|container| container.recorded.identity.uid == pod.record.uid.as_str()).collect();
    containers.sort_by_key(|container| container.recorded.identity.attempt);
    take_records(pod, &containers);
    take_ephemeral(pod, &containers);
    let record = Arc::clone(&pod.record);
    for container in containers {
        let identity = &container.recorded.identity;
        let Some(slot) = pod
            .containers
            .iter_mut()
            .find(|slot| slot.name == identity.container && slot.role.is_init_container() == identity.init)
        else {
            continue;
        };
        if matches!(&slot.busy, Some(OngoingAction::Starting(id)) if *id == container.id) {
            continue; // Its own start reports it.
        }
        if let Some(known) = slot.instances_mut().find(|instance| instance.id == container.id) {
            if !pod.exits_being_recorded.contains(&container.id) {
                refresh(known, &container, processes, now);
            }
            continue;
        }
        match instance(&container, processes, now) {
            // A newer attempt was started after the state was read.
            Some(old)
                if !old.is_running()
                    && slot.instance.as_ref().is_some_and(|instance| instance.attempt > old.attempt) =>
            {
                slot.stale.push(old);
            }
            Some(mut instance) => {
                // This agent started it and lost the answer, so its hook has not run.
                if slot.hooks.post_start && slot.possible_orphan.as_ref() == Some(&container.id) {
                    instance.post_start = PostStart::Due(now.mono);
                }
                instance.probes = probes(&record, &container, &instance, now);
                slot.succeed(instance);
                if !slot.is_current() {
                    slot.settle_resize(version(&record, &container).as_ref(), &record);
                }
            }
            None => {
                // Records of earlier attempts may be gone.
                slot.attempt_floor = slot.attempt_floor.max(identity.attempt);
                slot.interrupted = Some((identity.attempt, container.id.clone()));
                never_ran.push(container.id.clone());
            }
        }
    }
    if let Some(first) = pod.containers.iter().filter_map(|slot| slot.instance.as_ref()?.started_at).min() {
        pod.start_time = pod.start_time.min(first);
    }
    never_ran
}

/// Takes over what is recorded about the pod itself: when it started, why the node ended it, and the addresses of its
/// last sandbox.
fn take_records(pod: &mut PodState, containers: &[FoundContainer]) {
    if let Some(start) = containers.iter().filter_map(|container| container.recorded.identity.pod_start).min() {
        pod.start_time = pod.start_time.min(start);
    }
    if pod.verdict.is_none() {
        pod.verdict = containers.iter().find_map(|container| container.recorded.state.verdict.clone());
    }
    let attached = containers.iter().filter(|container| !container.recorded.identity.pod_ips.is_empty());
    if pod.last_addresses.is_empty()
        && let Some(last) = attached.max_by_key(|container| container.recorded.state.started_at)
    {
        pod.last_addresses = last.recorded.identity.pod_ips.clone();
    }
}

/// Adds the ephemeral containers that no source has. `limpet debug` has added them, and their own records contain
/// them.
fn take_ephemeral(pod: &mut PodState, containers: &[FoundContainer]) {
    let identities = containers.iter().map(|container| &container.recorded.identity);
    let unknown = identities.filter(|identity| pod.record.container(&identity.container).is_none());
    let unknown = unknown.filter_map(|identity| ephemeral::restore(identity.ephemeral.as_ref()?));
    let added: Vec<EphemeralContainer> = unknown.collect();
    if !added.is_empty() {
        pod.add_ephemeral(Arc::new(pod.record.with_ephemeral(added)));
    }
}

/// A known running instance that containerd no longer has was removed without limpet, or its shim died.
fn mark_missing(pod: &mut PodState, containers: &[FoundContainer], processes: &dyn Processes, now: Now) {
    let recorded = &pod.exits_being_recorded;
    for instance in pod.containers.iter_mut().flat_map(|slot| slot.instance.iter_mut()) {
        // An instance that was started after containerd's state was read is not in it: it is alive, or its exit is
        // known.
        if instance.is_running()
            && !recorded.contains(&instance.id)
            && !lives(instance, processes)
            && !containers.iter().any(|container| container.id == instance.id)
        {
            instance.end(unknown_exit(now), now);
        }
    }
}

/// Corrects a known instance according to containerd's current view.
fn refresh(known: &mut Instance, container: &FoundContainer, processes: &dyn Processes, now: Now) {
    if !known.is_running() {
        return;
    }
    match container.task {
        Some(Task::Stopped { code, at }) => known.end(observed_exit(code, at), now),
        Some(Task::Running { .. } | Task::Created) => {}
        // containerd does not know (yet), so the process itself is checked.
        Some(Task::Unknown { .. }) | None => {
            if !lives(known, processes) {
                let exit = container.recorded.state.exit.clone().unwrap_or_else(|| unknown_exit(now));
                known.end(exit, now);
            }
        }
    }
}

/// The instance of a container in containerd; `None` if it never ran.
fn instance(container: &FoundContainer, processes: &dyn Processes, now: Now) -> Option<Instance> {
    let identity = &container.recorded.identity;
    let state = &container.recorded.state;
    let mut instance = Instance {
        image: identity.image.clone(),
        image_digest: identity.image_digest.clone(),
        log_path: PathBuf::from(&identity.log_path),
        started_at: state.started_at,
        pause: Duration::from_secs(identity.backoff_seconds).min(MAX_BACKOFF),
        stop_signal: identity.stop_signal,
        user: identity.user.clone().map(Arc::new),
        start_values: identity.start_values,
        sandbox: identity.sandbox.clone(),
        pod_restarts: identity.pod_restarts,
        ..Instance::new(container.id.clone(), identity.attempt, identity.fingerprint.clone())
    };
    match (container.task, &state.exit) {
        (Some(Task::Running { pid } | Task::Unknown { pid }), _) => {
            instance.life = Life::Running { pid, process: processes.open(pid), stopping: None };
        }
        (_, Some(exit)) => {
            let left = container.task.is_some() || container.has_snapshot;
            instance.end(exit.clone(), now);
            if let Life::Exited { reaped, .. } = &mut instance.life {
                *reaped = !left;
            }
        }
        (Some(Task::Stopped { code, at }), None) => instance.end(observed_exit(code, at), now),
        (Some(Task::Created), None) => return None,
        (None, None) => {
            // An ephemeral container must not run twice, and its start may have been interrupted before it was
            // recorded.
            if state.started_at.is_none() && identity.ephemeral.is_none() {
                return None;
            }
            // Its shim is gone, or containerd has not found it yet. A second instance must not run beside it.
            let uid = PodUid::parse(identity.uid.as_str()).ok();
            if let Some(pid) = uid.and_then(|uid| processes.in_container(&uid, &container.id)) {
                instance.life = Life::Running { pid, process: processes.open(pid), stopping: None };
                return Some(instance);
            }
            instance.pause = Duration::ZERO; // Not its fault: after a reboot it restarts at once.
            instance.end(unknown_exit(now), now);
        }
    }
    Some(instance)
}

/// The version of the pod with which a container was started, as recorded on it.
fn version(record: &PodRecord, container: &FoundContainer) -> Option<Arc<PodRecord>> {
    let identity = &container.recorded.identity;
    let node = record.spec().node_name.as_deref().unwrap_or_default();
    restore(&container.recorded.manifest, &identity.origin, identity.source(), node).ok().map(Arc::new)
}

/// The recorded probes of a container. If it has exited, only the probe for which it was ended matters.
fn probes(record: &PodRecord, container: &FoundContainer, instance: &Instance, now: Now) -> Option<Box<Probes>> {
    let recorded = container.recorded.probes;
    if !instance.is_running() && recorded.failed.is_none() {
        return None;
    }
    let spec = record.container(&container.recorded.identity.container)?;
    let place = container.id.as_str().get(..8).and_then(|digits| u32::from_str_radix(digits, 16).ok());
    Probes::resume(spec, recorded, instance.ran_for(now), place.unwrap_or_default(), now.mono)
}

/// An exit that containerd reported.
pub fn observed_exit(code: i32, at: jiff::Timestamp) -> Exit {
    let reason = if code == 0 { "Completed" } else { "Error" };
    Exit { code, reason: reason.to_owned(), message: String::new(), finished_at: at }
}

/// A missed exit.
pub fn unknown_exit(now: Now) -> Exit {
    Exit {
        code: 137,
        reason: STATUS_UNKNOWN.to_owned(),
        message: "the container could not be located when its end was looked for".to_owned(),
        finished_at: now.wall,
    }
}

/// Whether the first process of a running instance is alive. Without a handle, any process with its pid in its cgroup
/// counts.
fn lives(instance: &Instance, processes: &dyn Processes) -> bool {
    match &instance.life {
        Life::Running { process: Some(process), .. } => process.is_alive(),
        Life::Running { pid, process: None, .. } => processes.is_in_container(*pid, &instance.id),
        Life::Exited { .. } => false,
    }
}

#[cfg(test)]
mod tests;
