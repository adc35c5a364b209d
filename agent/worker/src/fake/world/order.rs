//! Checks the order in which a pod's containers start and end, and the grace of its sidecars, independently of the
//! plan.

use std::time::Duration;

use limpet_core::plan::{KillCause, restart_all};
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::container::ContainerId;
use limpet_model::pod::Role;
use limpet_model::stop_signal::MIN_GRACE_PERIOD;
use limpet_model::verdict::PodVerdict;
use tokio::time::Instant;

use super::{Container, World, is_running, short};

/// When a pod began to end.
#[derive(Debug)]
pub(super) struct PodEnd {
    /// According to any agent.
    first: Instant,
    /// According to the current agent: one that started later counts from its own start.
    known: Instant,
    /// The undisturbed period in which it was known.
    quiet: u32,
}

impl World {
    /// Records that the agent stops a container because its pod ends.
    pub(in crate::fake) fn note_end(&mut self, pod: &PodState) {
        let (now, quiet) = (Instant::now(), self.quiet);
        // If a start was in progress, the end was requested before the first stop.
        let began = pod.ends_since.map_or(now, Instant::from);
        let end = self.ends.entry(pod.record.uid.to_string()).or_insert(PodEnd { first: began, known: began, quiet });
        if end.quiet != quiet {
            (end.known, end.quiet) = (now, quiet);
        }
    }

    /// The earliest and the latest time for SIGKILL of a container that gets its stop signal now.
    pub(super) fn kill_times(&mut self, pod: &PodState, slot: &ContainerSlot, cause: KillCause) -> (Instant, Instant) {
        let now = Instant::now();
        let own_grace = Duration::from_secs(pod.record.grace_seconds());
        let grace = pod.verdict.as_ref().and_then(PodVerdict::grace).map_or(own_grace, |most| own_grace.min(most));
        let end = self.ends.get(pod.record.uid.as_str()).filter(|_| cause == KillCause::PodEnds);
        let Some(end) = end.filter(|_| slot.role == Role::Sidecar) else {
            let kill_at = now + grace.max(MIN_GRACE_PERIOD);
            return (kill_at, kill_at);
        };
        let (first, known) = (end.first + grace, end.known + grace);
        // A stop that was begun for an edit continues when the pod ends.
        let stopping = slot.stopping().zip(pod.ends_since);
        let begun_before = stopping.is_some_and(|(stopping, ends_since)| stopping.began < ends_since);
        if now < first
            && !begun_before
            && let Some(other) = self.ends_before(pod, slot)
        {
            let what = format!("sidecar {}/{} is stopped while {other} runs", pod.record.key, slot.name);
            self.violate(what);
        }
        (first.max(now + MIN_GRACE_PERIOD), known.max(now + MIN_GRACE_PERIOD))
    }

    /// A container that the agent knows to be running, and that has to end before the sidecar.
    fn ends_before(&self, pod: &PodState, sidecar: &ContainerSlot) -> Option<String> {
        let at = pod.containers.iter().position(|slot| slot.name == sidecar.name);
        let runs = |slot: &ContainerSlot| {
            let known = slot.instance.as_ref().filter(|instance| instance.is_running());
            known.is_some_and(|instance| self.containers.get(&instance.id).is_some_and(is_running))
        };
        let mut others = pod.containers.iter().enumerate().filter(|(index, slot)| match slot.role {
            Role::Sidecar => Some(*index) > at,
            Role::Init | Role::Main => true,
            Role::Ephemeral => false,
        });
        others.find(|(_, slot)| runs(slot)).map(|(_, slot)| slot.name.clone())
    }

    /// What should have come first in the pod's sandbox and did not: init containers succeed and sidecars start in
    /// order. A regular container waits for none once one was started, an ephemeral one never.
    pub(super) fn out_of_order(&self, pod: &PodState, slot: &ContainerSlot, id: &ContainerId) -> Option<String> {
        let (uid, sandbox) = (&pod.record.uid, self.sandbox(&pod.record.uid));
        let restarts = restart_all::pod_restarts(pod);
        let is_here = |container: &&Container| {
            let identity = &container.recorded.identity;
            identity.uid == uid.as_str() && identity.sandbox == sandbox && identity.pod_restarts == restarts
        };
        let here: Vec<&Container> = self.containers.values().filter(is_here).collect();
        let is_main = |container: &&Container| {
            let identity = &container.recorded.identity;
            !identity.init && identity.ephemeral.is_none()
        };
        if slot.role == Role::Ephemeral || slot.role == Role::Main && here.iter().any(is_main) {
            return None;
        }
        let named = |name: &str| -> Vec<&Container> {
            here.iter().copied().filter(|container| container.recorded.identity.container == name).collect()
        };
        let mut inits = pod.containers.iter().take_while(|other| other.name != slot.name);
        let missing = inits.find(|other| match other.role {
            Role::Init => !named(&other.name).iter().any(|container| container.exit_code() == Some(0)),
            Role::Sidecar => named(&other.name).is_empty(),
            Role::Main | Role::Ephemeral => false,
        })?;
        Some(format!("{} starts before {} in its sandbox", short(id), missing.name))
    }
}
