//! When a pod's containers are probed, and when the results are recorded. The consequences of the results are decided
//! together with everything else.

use std::time::{Duration, Instant};

use super::{Action, Plan, grace};
use crate::node_state::NodeState;
use crate::state::{ContainerSlot, Instance, PodState};
use limpet_model::probe::ProbeKind;

/// Plans the probes that are due. `pod_ends`: the whole pod is being stopped, so nothing is restarted any more.
pub(super) fn probes(plan: &mut Plan, pod: &PodState, node: NodeState, pod_ends: bool, now: Instant) {
    for (index, slot) in pod.containers.iter().enumerate() {
        let up = slot.instance.as_ref().filter(|instance| instance.is_up());
        let Some(probes) = up.and_then(|instance| instance.probes.as_ref()) else { continue };
        for (kind, due) in probes.due(pod_ends || slot.stopping().is_some()) {
            match due <= now {
                true => plan.push(Action::Probe(index, kind, probes.next(kind, node.probe_grid, now))),
                false => plan.wake_at(due),
            }
        }
        match probes.unrecorded() {
            Some((_, Some(at))) if at > now => plan.wake_at(at),
            Some((record, _)) => plan.push(Action::RecordProbes(index, record)),
            None => {}
        }
    }
}

/// The probe for which a running container is ended, and the grace period for that.
pub(super) fn verdict(pod: &PodState, slot: &ContainerSlot) -> Option<(ProbeKind, Duration)> {
    let running = slot.instance.as_ref().filter(|instance| instance.is_running());
    let (kind, probe_grace) = running.and_then(Instance::failed_probe)?;
    Some((kind, probe_grace.unwrap_or(grace(pod))))
}
