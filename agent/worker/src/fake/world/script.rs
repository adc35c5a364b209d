//! Containers that behave as a test says, by the pod that they are of, where others behave by chance.

use std::time::Duration;

use limpet_core::plan::KillCause;
use limpet_core::state::{ContainerSlot, PodState};
use limpet_model::container::ContainerId;

use super::{World, short};

/// The behaviour of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Script {
    /// Whether its image can be pulled.
    pub can_be_pulled: bool,
    /// The result of its readiness probe.
    pub is_ready: bool,
    /// When its process exits by itself, and with which code.
    pub exits: Option<(Duration, i32)>,
    /// Whether it reads what may be undone, so that its restart may be asked for.
    pub reads_objects: bool,
}

/// The behaviour of a container of that pod, with the objects that the pod has now.
pub type ScriptOf = fn(&PodState, &ContainerSlot) -> Script;

impl World {
    /// The behaviour of a container that starts now; `None`: chance decides.
    pub(in crate::fake) fn script(&self, pod: &PodState, slot: &ContainerSlot) -> Option<Script> {
        self.script_of.map(|script_of| script_of(pod, slot))
    }

    /// Checks that a restart is asked only of a container that reads what may be undone.
    pub(super) fn check_asked_restart(&mut self, id: &ContainerId, cause: KillCause) {
        let script = self.containers.get(id).and_then(|container| container.script);
        if cause == KillCause::RestartAsked && script.is_some_and(|script| !script.reads_objects) {
            self.violate(format!("{} is restarted, and reads nothing that was undone", short(id)));
        }
    }
}
