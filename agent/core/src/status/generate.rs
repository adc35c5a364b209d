//! The Kubernetes status of a pod, from its worker's state: phase, container statuses, and the conditions of
//! [`super::conditions`].
//!
//! Pure; kubelet's rules (docs/kubelet.md). The previous status is only used to keep `startTime` and the transition
//! times of conditions.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{
    self as k8s, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    ContainerStatus, HostIP, LinuxContainerUser, PodIP, PodStatus, ResourceRequirements, VolumeMount,
    VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::node_state::NodeState;
use crate::plan::{self, awaits, restart_all};
use crate::state::{ContainerSlot, ImageState, Instance, Now, OngoingAction, PodState, PostStart, SandboxState};
use crate::status::{conditions, never_ran, resources};
use limpet_model::container::{ContainerUser, Exit};
use limpet_model::go_duration;
use limpet_model::node::NodeAddresses;
use limpet_model::pod::Role;
use limpet_model::sandbox::in_order_of_node;
use limpet_model::stop_signal::StopSignal;
use limpet_model::verdict::{PodVerdict, VerdictPhase};

/// The most bytes of all termination messages of a pod's containers, each of which has its share (kubelet's
/// `MaxPodTerminationMessageLogLength`).
const MAX_TERMINATION_MESSAGES: usize = 12 << 10;

/// The current status of `pod`.
///
/// `qos_class` is in Kubernetes' words.
pub fn generate(pod: &PodState, node: NodeState, qos_class: &str, now: Now, before: Option<&PodStatus>) -> PodStatus {
    let phase = phase(pod);
    let (mut init_statuses, mut main_statuses, mut ephemeral_statuses) = (Vec::new(), Vec::new(), Vec::new());
    for slot in &pod.containers {
        let list = match slot.role {
            Role::Init | Role::Sidecar => &mut init_statuses,
            Role::Main => &mut main_statuses,
            Role::Ephemeral => &mut ephemeral_statuses,
        };
        // The status is kept as long as the pod, so it has no spare room for three more.
        list.reserve_exact(1);
        list.push(container_status(pod, slot, node, now));
    }
    main_statuses.sort_by(|a, b| a.name.cmp(&b.name));
    if matches!(&*phase, "Failed" | "Succeeded") {
        let last_init = pod.containers.iter().rfind(|slot| matches!(slot.role, Role::Init | Role::Sidecar));
        let ends_with_sidecar = last_init.is_some_and(|slot| slot.role == Role::Sidecar);
        never_ran::set(&mut init_statuses, &mut main_statuses, ends_with_sidecar);
    }
    let node_ips: Vec<IpAddr> = node.network.addresses.iter().collect();
    let pod_ips = pod_ips(pod, node.network.addresses);
    let verdict = pod.verdict.as_ref();
    let has_begun = || pod.containers.iter().any(|slot| slot.instance.is_some() || slot.busy.is_some());
    // A pod that is rejected or held back lists no containers.
    let refused = verdict.is_some_and(|it| it.is_rejection() || !it.is_final()) && !has_begun();
    let rejected = refused && verdict.is_some_and(PodVerdict::is_rejection);
    let conditions = || conditions::of_pod(pod, &phase, (&init_statuses, &main_statuses), now.wall, before);
    PodStatus {
        conditions: (!rejected).then(conditions),
        resources: resources::while_resized(pod),
        host_ip: node_ips.first().filter(|_| !rejected).map(IpAddr::to_string),
        host_ips: (!rejected && !node_ips.is_empty())
            .then(|| node_ips.iter().map(|ip| HostIP { ip: ip.to_string() }).collect()),
        init_container_statuses: (!refused && !init_statuses.is_empty()).then_some(init_statuses),
        container_statuses: (!refused).then_some(main_statuses),
        ephemeral_container_statuses: (!refused && !ephemeral_statuses.is_empty()).then_some(ephemeral_statuses),
        reason: verdict.map(|verdict| verdict.reason.to_string()),
        message: verdict.map(|verdict| verdict.message.clone()),
        pod_ip: pod_ips.first().map(IpAddr::to_string),
        pod_ips: (!pod_ips.is_empty()).then(|| pod_ips.iter().map(|ip| PodIP { ip: ip.to_string() }).collect()),
        phase: Some(phase),
        qos_class: Some(qos_class.to_owned()),
        start_time: Some(Time(pod.start_time)),
        ..PodStatus::default()
    }
}

/// The addresses of its sandbox, even if that is gone; with `hostNetwork` those of the node.
fn pod_ips(pod: &PodState, node: NodeAddresses) -> Vec<IpAddr> {
    let had_sandbox = pod.sandbox.may_exist() || !pod.last_addresses.is_empty();
    if pod.record.host_network() && had_sandbox {
        return node.iter().collect();
    }
    in_order_of_node(pod.addresses(), node)
}

/// The pod's phase, by kubelet's checks in kubelet's order.
fn phase(pod: &PodState) -> String {
    if let Some(verdict) = &pod.verdict {
        match verdict.phase {
            VerdictPhase::Pending => return "Pending".to_owned(),
            // It is withheld while a container may run.
            VerdictPhase::Failed if plan::is_finished(pod) && !lives(pod) => return "Failed".to_owned(),
            VerdictPhase::Failed => {}
        }
    }
    let mains: Vec<&ContainerSlot> = pod.containers.iter().filter(|slot| slot.role == Role::Main).collect();
    let exit = |slot: &&ContainerSlot| slot.instance.as_ref().and_then(Instance::exit).map(|exit| exit.code);
    if is_final(pod) {
        // Whatever its policy, nothing of it runs again.
        let succeeded = mains.iter().all(|slot| exit(slot) == Some(0));
        return if succeeded { "Succeeded" } else { "Failed" }.to_owned();
    }
    let phase = if plan::init_failed(pod) {
        if lives(pod) { "Pending" } else { "Failed" }
    } else if !plan::was_initialized(pod)
        || mains.iter().any(|slot| slot.instance.is_none() || first_waits_for_hook(slot))
    {
        "Pending"
    } else if lives(pod) || mains.iter().any(|slot| plan::wants_restart(pod, slot)) {
        "Running"
    } else if mains.iter().all(|slot| exit(slot) == Some(0)) {
        "Succeeded"
    } else {
        "Failed"
    };
    phase.to_owned()
}

/// Whether this is its last status, because it is deleted and nothing of it is left.
fn is_final(pod: &PodState) -> bool {
    pod.ending.is_some() && matches!(pod.sandbox, SandboxState::Gone)
}

/// Whether its first instance runs, and the `postStart` hook is not over.
fn first_waits_for_hook(slot: &ContainerSlot) -> bool {
    slot.awaits_post_start() && slot.previous.is_none()
}

/// Whether a container runs or is being started. As long as one does, for example a sidecar, the phase is not final.
fn lives(pod: &PodState) -> bool {
    pod.containers.iter().any(|slot| slot.is_running() || matches!(slot.busy, Some(OngoingAction::Starting(_))))
}

fn container_status(pod: &PodState, slot: &ContainerSlot, node: NodeState, now: Now) -> ContainerStatus {
    let spec_image = pod.container_spec(&slot.name).and_then(|spec| spec.image.clone()).unwrap_or_default();
    let state = state(pod, slot, node, now);
    let ready = match slot.role {
        Role::Init => slot.has_completed() && !restart_all::is_superseded(pod, slot),
        Role::Sidecar | Role::Main => slot.is_ready(),
        // Its readiness is not used, so kubelet leaves it false.
        Role::Ephemeral => false,
    };
    // A waiting container reports its last exit as `lastState`; a terminated one reports it as `state`.
    let last = match (&slot.instance, &slot.previous) {
        (Some(instance), _) if state.waiting.is_some() && !instance.is_running() => terminated(pod, instance),
        (_, Some(previous)) => terminated(pod, previous),
        _ => None,
    };
    ContainerStatus {
        name: slot.name.clone(),
        image: slot.instance.as_ref().map_or(spec_image, |instance| instance.image.clone()),
        image_id: slot.instance.as_ref().map(image_id).unwrap_or_default(),
        container_id: slot.instance.as_ref().map(|instance| format!("containerd://{}", instance.id)),
        ready,
        started: (slot.role != Role::Ephemeral).then(|| slot.is_started()),
        restart_count: slot.instance.as_ref().map_or(0, |instance| i32::try_from(instance.attempt).unwrap_or(i32::MAX)),
        state: Some(state),
        last_state: Some(ContainerState { terminated: last, ..ContainerState::default() }),
        resources: resources_until_resized(slot),
        stop_signal: stop_signal(pod, slot),
        volume_mounts: volume_mounts(pod, slot),
        user: slot.instance.as_ref().and_then(|instance| instance.user.as_deref()).map(user),
        ..ContainerStatus::default()
    }
}

/// Who its first process runs as.
fn user(user: &ContainerUser) -> k8s::ContainerUser {
    let linux = LinuxContainerUser {
        uid: user.uid.into(),
        gid: user.gid.into(),
        supplemental_groups: Some(user.groups.iter().copied().map(i64::from).collect()),
    };
    k8s::ContainerUser { linux: Some(linux) }
}

/// Its current resources during a resize.
fn resources_until_resized(slot: &ContainerSlot) -> Option<ResourceRequirements> {
    let from = slot.resize().map(|resize| &resize.from).or_else(|| slot.restarts_for_resize())?;
    Some(from.container(&slot.name)?.resources.clone().unwrap_or_default())
}

/// The signal that ends it, if its spec or its image specifies one.
fn stop_signal(pod: &PodState, slot: &ContainerSlot) -> Option<String> {
    let asked = pod.container_spec(&slot.name)?.lifecycle.as_ref().is_some_and(|hooks| hooks.stop_signal.is_some());
    let signal = slot.instance.as_ref()?.stop_signal;
    (asked || signal != StopSignal::default()).then(|| signal.to_string())
}

/// The container's mounts, with the effective `recursiveReadOnly`.
fn volume_mounts(pod: &PodState, slot: &ContainerSlot) -> Option<Vec<VolumeMountStatus>> {
    let mounts = pod.container_spec(&slot.name)?.volume_mounts.as_ref()?;
    let status = |mount: &VolumeMount| {
        let below = match mount.recursive_read_only.as_deref() {
            Some("Enabled" | "IfPossible") => "Enabled",
            _ => "Disabled",
        };
        let read_only = mount.read_only.unwrap_or(false);
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| below.to_owned()),
            ..VolumeMountStatus::default()
        }
    };
    (!mounts.is_empty()).then(|| mounts.iter().map(status).collect())
}

/// The image in kubelet's form: repository and digest.
fn image_id(instance: &Instance) -> String {
    let repository = instance.image.split('@').next().unwrap_or_default();
    let name = match repository.rsplit_once(':') {
        Some((name, tag)) if !tag.contains('/') => name,
        _ => repository,
    };
    format!("{name}@{}", instance.image_digest)
}

fn state(pod: &PodState, slot: &ContainerSlot, node: NodeState, now: Now) -> ContainerState {
    if let Some(instance) = &slot.instance {
        if slot.awaits_post_start() {
            return waits_for_hook(instance);
        }
        if instance.is_running() {
            let started_at = instance.started_at.map(Time);
            return ContainerState { running: Some(ContainerStateRunning { started_at }), ..ContainerState::default() };
        }
        if pod.ending.is_some() || pod.is_failed() || !plan::wants_restart(pod, slot) || plan::is_finished(pod) {
            return ContainerState { terminated: terminated(pod, instance), ..ContainerState::default() };
        }
    }
    let (reason, message) = waiting(pod, slot, node, now);
    let message = (!message.is_empty()).then_some(message);
    ContainerState {
        waiting: Some(ContainerStateWaiting { reason: Some(reason), message }),
        ..ContainerState::default()
    }
}

/// A container is not shown as running before its `postStart` hook has ended, nor while it is stopped because that
/// has failed.
fn waits_for_hook(instance: &Instance) -> ContainerState {
    let (reason, message) = match &instance.post_start {
        PostStart::Failed(message) => ("PostStartHookError", Some(message.to_string())),
        PostStart::Done | PostStart::Due(_) | PostStart::Running => ("ContainerCreating", None),
    };
    let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

/// Why a container that should run does not.
fn waiting(pod: &PodState, slot: &ContainerSlot, node: NodeState, now: Now) -> (String, String) {
    if let Some(retry) = &slot.retry {
        return (retry.reason.to_owned(), retry.message.clone());
    }
    if let ImageState::Failed(retry) = &slot.image {
        return (retry.reason.to_owned(), retry.message.clone());
    }
    if let Some(Instance { life: crate::state::Life::Exited { retry_at, .. }, pause, .. }) = &slot.instance
        && *retry_at > now.mono
    {
        let message = format!(
            "back-off {} restarting failed container={} pod={}_{}({})",
            go_duration::show(*pause),
            slot.name,
            pod.record.key.name(),
            pod.record.key.namespace(),
            pod.record.uid
        );
        return ("CrashLoopBackOff".to_owned(), message);
    }
    if restart_all::is_superseded(pod, slot) {
        let cause = restart_all::cause(pod).map(|(slot, exit)| format!(": {} exited with {}", slot.name, exit.code));
        let message = format!("all containers of the pod are restarted{}", cause.unwrap_or_default());
        return (restart_all::RESTARTING_ALL.to_owned(), message);
    }
    let is_before = |other: &&ContainerSlot| other.name != slot.name;
    let waits_for_another = match slot.role {
        Role::Main => !plan::is_initialized(pod),
        Role::Init | Role::Sidecar => {
            pod.containers.iter().take_while(is_before).any(|other| plan::holds_back_next(pod, other))
        }
        Role::Ephemeral => false,
    };
    if waits_for_another {
        return ("PodInitializing".to_owned(), String::new());
    }
    if matches!(pod.sandbox, SandboxState::Ready(_))
        && let Some(awaited) = awaits::by_container(pod, slot, node)
    {
        return (awaited.reason().to_owned(), awaited.to_string());
    }
    let message = match &pod.retry {
        Some(retry) => retry.message.clone(),
        None if !node.runtime_ready => "waiting for containerd".to_owned(),
        None if !node.network_ready && !pod.record.host_network() => {
            "network is not ready: no CNI configuration".to_owned()
        }
        None => {
            let awaited = awaits::by_sandbox(pod).or_else(|| awaits::by_images(pod));
            awaited.map(|awaited| awaited.to_string()).unwrap_or_default()
        }
    };
    // kubelet's reason, for containers of every role.
    let has_inits = pod.containers.iter().any(|slot| matches!(slot.role, Role::Init | Role::Sidecar));
    let reason = if has_inits { "PodInitializing" } else { "ContainerCreating" };
    (reason.to_owned(), message)
}

fn terminated(pod: &PodState, instance: &Instance) -> Option<ContainerStateTerminated> {
    let exit: &Exit = instance.exit()?;
    let longest = MAX_TERMINATION_MESSAGES / pod.containers.len().max(1);
    let message = &exit.message[..exit.message.floor_char_boundary(longest)];
    Some(ContainerStateTerminated {
        container_id: Some(format!("containerd://{}", instance.id)),
        exit_code: exit.code,
        finished_at: Some(Time(exit.finished_at)),
        message: (!message.is_empty()).then(|| message.to_owned()),
        reason: Some(exit.reason.clone()),
        signal: None,
        started_at: instance.started_at.map(Time),
    })
}

#[cfg(test)]
mod tests;
