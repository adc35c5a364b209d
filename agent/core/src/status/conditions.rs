//! The conditions of a pod: whether it is initialized, ready, being resized or disrupted, and if not, why. Pure;
//! kubelet's rules (docs/kubelet.md).

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::plan::{self, restart_all};
use crate::state::{ContainerSlot, PodState, Resize, SandboxState};
use crate::status::resources;
use limpet_model::pod::Role;

/// The conditions that kubelet owns, each with the time of its last change.
pub(super) fn of_pod(
    pod: &PodState,
    phase: &str,
    (inits, mains): (&[ContainerStatus], &[ContainerStatus]),
    now: Timestamp,
    before: Option<&PodStatus>,
) -> Vec<PodCondition> {
    let is_sidecar = |status: &&ContainerStatus| {
        pod.containers.iter().any(|slot| slot.role == Role::Sidecar && slot.name == status.name)
    };
    let counted = inits.iter().filter(is_sidecar).chain(mains);
    let unready: Vec<&str> = counted.filter(|status| !status.ready).map(|status| status.name.as_str()).collect();
    let uninitialized: Vec<&str> = if plan::was_initialized(pod) {
        Vec::new()
    } else {
        pod.containers.iter().filter(|slot| is_incomplete(pod, slot)).map(|slot| slot.name.as_str()).collect()
    };
    let ended = match phase {
        "Succeeded" => Some("PodCompleted"),
        "Failed" => Some("PodFailed"),
        _ => None,
    };
    let containers_ready = condition_state(ended, "ContainersNotReady", "unready", &unready);
    let ready = if containers_ready.holds { gates(pod) } else { containers_ready.clone() };
    let initialized = match ended {
        Some("PodCompleted") => ConditionState { holds: true, reason: Some("PodCompleted".into()), message: None },
        _ => condition_state(None, "ContainersNotInitialized", "incomplete", &uninitialized),
    };
    let scheduled = ConditionState { holds: true, reason: None, message: None };
    [
        ("PodReadyToStartContainers", sandboxed(&pod.sandbox, ended.is_some())),
        ("Initialized", initialized),
        ("Ready", ready),
        ("ContainersReady", containers_ready),
        ("PodScheduled", scheduled),
    ]
    .into_iter()
    .chain(pending_resize(pod).filter(|_| ended.is_none()).map(|state| ("PodResizePending", state)))
    .chain(resizing(pod).filter(|_| ended.is_none()).map(|state| ("PodResizeInProgress", state)))
    .chain(restarting_all(pod, ended).map(|state| ("AllContainersRestarting", state)))
    .chain(disrupted(pod).map(|state| ("DisruptionTarget", state)))
    .map(|(name, state)| condition(name, state, now, before))
    .collect()
}

/// Whether it keeps the pod from being initialized. In a pod that is being deleted, no init container runs again for
/// another sandbox.
fn is_incomplete(pod: &PodState, slot: &ContainerSlot) -> bool {
    match slot.role {
        Role::Init if pod.ending.is_some() => !slot.has_completed(),
        _ => plan::holds_back_next(pod, slot),
    }
}

/// Whether every readiness gate is open. Other clients set their conditions at the apiserver.
fn gates(pod: &PodState) -> ConditionState {
    let set = pod.record.pod.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let shut = pod.record.spec().readiness_gates.iter().flatten().filter_map(|gate| {
        let name = &gate.condition_type;
        match set.iter().find(|condition| condition.type_ == *name) {
            None => Some(format!("corresponding condition of pod readiness gate {name:?} does not exist.")),
            Some(condition) if condition.status == "True" => None,
            Some(condition) => {
                Some(format!("the status of pod readiness gate {name:?} is not \"True\", but {}", condition.status))
            }
        }
    });
    let shut: Vec<String> = shut.collect();
    let reason = (!shut.is_empty()).then(|| "ReadinessGatesNotReady".to_owned());
    ConditionState { holds: shut.is_empty(), reason, message: (!shut.is_empty()).then(|| shut.join(", ")) }
}

/// Whether there is a sandbox in which containers may start. In that of a pod that has ended none does, because it is
/// about to be removed.
fn sandboxed(sandbox: &SandboxState, ended: bool) -> ConditionState {
    let message = match sandbox {
        present if present.may_exist() && ended => "pod sandbox is not ready",
        SandboxState::Ready(_) | SandboxState::Unknown | SandboxState::Examining => {
            return ConditionState { holds: true, reason: None, message: None };
        }
        SandboxState::Absent { .. } | SandboxState::Preparing => "no pod sandbox exists",
        SandboxState::Releasing | SandboxState::Gone => "pod sandbox is not ready",
    };
    ConditionState { holds: false, reason: Some("PodSandboxNotReady".to_owned()), message: Some(message.to_owned()) }
}

/// Whether all containers of a pod with such a rule are being ended in order to start again.
fn restarting_all(pod: &PodState, ended: Option<&str>) -> Option<ConditionState> {
    let holds = ended.is_none() && restart_all::is_ending_all(pod);
    let message = restart_all::cause(pod).filter(|_| holds);
    restart_all::may_restart_all(pod).then(|| ConditionState {
        holds,
        reason: ended.or(holds.then_some("RestartAllContainersStarted")).map(str::to_owned),
        message: message.map(|(slot, exit)| format!("container {} exited with {}", slot.name, exit.code)),
    })
}

/// The condition that the pod has ended because the node was short of something, for a critical pod, or for a
/// shutdown.
fn disrupted(pod: &PodState) -> Option<ConditionState> {
    let verdict = pod.verdict.as_ref().filter(|verdict| verdict.is_final())?;
    let message = match verdict.is_preemption() {
        true => "Pod was preempted by Kubelet to accommodate a critical pod.".to_owned(),
        false => verdict.message.clone(),
    };
    let reason = Some("TerminationByKubelet".to_owned());
    let state = ConditionState { holds: true, reason, message: Some(message) };
    (pod.is_under_eviction() || verdict.is_preemption() || verdict.is_node_shutdown()).then_some(state)
}

/// That the pod does not have the resources of a newer version.
fn pending_resize(pod: &PodState) -> Option<ConditionState> {
    let refused = pod.refused_resize.as_ref()?;
    let (reason, message) = (refused.refusal.reason().to_owned(), refused.message.clone());
    Some(ConditionState { holds: true, reason: Some(reason), message: Some(message) })
}

/// The condition about resizes that are due or in progress; the first infeasible one takes precedence.
fn resizing(pod: &PodState) -> Option<ConditionState> {
    let resizes: Vec<&Resize> = pod.containers.iter().filter_map(ContainerSlot::resize).collect();
    let failed = resizes.iter().find_map(|resize| resize.retry.as_ref()).or(pod.cgroup.retry.as_ref());
    let of_pod = resources::while_resized(pod).is_some();
    let restarts = pod.containers.iter().any(|slot| slot.restarts_for_resize().is_some());
    (!resizes.is_empty() || restarts || of_pod).then(|| ConditionState {
        holds: true,
        reason: failed.map(|_| "Error".to_owned()),
        message: failed.map(|retry| retry.message.clone()),
    })
}

#[derive(Debug, Clone)]
struct ConditionState {
    holds: bool,
    reason: Option<String>,
    message: Option<String>,
}

fn condition_state(ended: Option<&str>, reason: &str, adjective: &str, names: &[&str]) -> ConditionState {
    match ended {
        Some(reason) => ConditionState { holds: false, reason: Some(reason.to_owned()), message: None },
        None if names.is_empty() => ConditionState { holds: true, reason: None, message: None },
        None => ConditionState {
            holds: false,
            reason: Some(reason.to_owned()),
            message: Some(format!("containers with {adjective} status: [{}]", names.join(" "))),
        },
    }
}

fn condition(name: &str, state: ConditionState, now: Timestamp, before: Option<&PodStatus>) -> PodCondition {
    let status = if state.holds { "True" } else { "False" };
    let known = before
        .and_then(|before| before.conditions.as_ref())
        .and_then(|conditions| conditions.iter().find(|condition| condition.type_ == name));
    let changed = match known {
        Some(known) if known.status == status => known.last_transition_time.clone(),
        _ => Some(Time(now)),
    };
    PodCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: state.reason,
        message: state.message,
        // kubelet sets it only in these conditions.
        last_probe_time: changed.clone().filter(|_| name == "PodResizePending" || name == "PodResizeInProgress"),
        last_transition_time: changed,
        ..PodCondition::default()
    }
}
