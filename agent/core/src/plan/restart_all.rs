//! `RestartAllContainers`, an action of `restartPolicyRules`: if a container exits with a code that such a rule
//! names, every container of the pod is ended without its grace period and started again in its order, including init
//! containers, in the same sandbox and with the same volumes. Ephemeral containers are not touched.
//!
//! The progress is recorded only on the containers: each has the number of restarts of all before its start, so a
//! crash in the middle is an ordinary case.

use std::time::{Duration, Instant};

use super::ending::{held_back, stop};
use super::{Action, KillCause, Plan};
use crate::state::{ContainerSlot, OngoingAction, PodState, RESTART_ALL};
use limpet_model::container::Exit;
use limpet_model::pod::Role;

/// kubelet's reason for the state of a container that waits because all are restarted.
pub const RESTARTING_ALL: &str = "RestartingAllContainers";

/// How often all containers of the pod have been restarted, including the restart in progress.
pub fn pod_restarts(pod: &PodState) -> u32 {
    let of_slot = |slot: &ContainerSlot| {
        let started = slot
            .instance
            .as_ref()
            .map(|instance| instance.pod_restarts.saturating_add(u32::from(pod.asks_for_all(slot))));
        started.max(starting(slot))
    };
    restartable(pod).filter_map(of_slot).max().unwrap_or_default()
}

/// Whether the container's newest instance was started before the last restart of all.
pub fn is_superseded(pod: &PodState, slot: &ContainerSlot) -> bool {
    slot.role != Role::Ephemeral
        && slot.instance.as_ref().is_some_and(|instance| instance.pod_restarts < pod_restarts(pod))
}

/// Whether a start of the container is in progress that no restart of all has superseded.
pub(super) fn is_starting(pod: &PodState, slot: &ContainerSlot) -> bool {
    starting(slot).is_some_and(|restarts| slot.role == Role::Ephemeral || restarts >= pod_restarts(pod))
}

/// Whether a rule of a container may restart all.
pub fn may_restart_all(pod: &PodState) -> bool {
    let rules = pod.record.containers().flat_map(|container| container.restart_policy_rules.iter().flatten());
    rules.into_iter().any(|rule| rule.action == RESTART_ALL)
}

/// Whether all are being restarted and a process from before that still runs.
pub fn is_ending_all(pod: &PodState) -> bool {
    restartable(pod).any(|slot| outlives(pod, slot))
}

/// The container whose exit requires a restart of all and that has not been restarted itself yet, with that exit.
pub fn cause(pod: &PodState) -> Option<(&ContainerSlot, &Exit)> {
    let slot = restartable(pod).find(|slot| pod.asks_for_all(slot))?;
    Some((slot, slot.instance.as_ref()?.exit()?))
}

/// Ends what was started before the last restart of all and still runs, with a grace period of 0, like kubelet.
/// Returns whether anything has to be waited for.
pub(super) fn end_superseded(plan: &mut Plan, pod: &PodState, now: Instant) -> bool {
    for (index, slot) in pod.containers.iter().enumerate() {
        if is_superseded(pod, slot) {
            stop(plan, index, slot, Duration::ZERO, KillCause::AllRestart, now);
        }
        if lost_start(pod, slot) && slot.busy.is_none() && !held_back(plan, slot, now) {
            plan.push(Action::Discard(index));
        }
    }
    is_ending_all(pod)
}

/// Whether a start before the last restart of all may have left a process, because its answer was lost.
fn lost_start(pod: &PodState, slot: &ContainerSlot) -> bool {
    slot.role != Role::Ephemeral && slot.unknown_start().is_some() && slot.start_follows < pod_restarts(pod)
}

fn outlives(pod: &PodState, slot: &ContainerSlot) -> bool {
    is_superseded(pod, slot) && slot.is_running()
        || starting(slot).is_some() && !is_starting(pod, slot)
        || lost_start(pod, slot)
}

fn restartable(pod: &PodState) -> impl Iterator<Item = &ContainerSlot> {
    pod.containers.iter().filter(|slot| slot.role != Role::Ephemeral)
}

/// The restarts of all before the start in progress.
fn starting(slot: &ContainerSlot) -> Option<u32> {
    matches!(slot.busy, Some(OngoingAction::Starting(_))).then_some(slot.start_follows)
}

#[cfg(test)]
mod tests;
