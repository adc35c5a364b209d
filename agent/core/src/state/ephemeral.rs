//! Ephemeral containers of a running pod. Part of [`super`].

use std::sync::Arc;

use limpet_model::pod::{PodRecord, Role};

use super::{ContainerSlot, PodState};

impl PodState {
    /// Applies a version that differs only in added ephemeral containers: they start, and nothing else changes.
    pub fn add_ephemeral(&mut self, record: Arc<PodRecord>) {
        for added in &record.ephemeral {
            if self.containers.iter().all(|slot| slot.name != added.name) {
                self.containers.push(ContainerSlot::new(&added.name, Role::Ephemeral, String::new()));
            }
        }
        self.record = record;
    }

    /// The container whose PID namespace an ephemeral container joins; `None` if it uses its own, the pod's or the
    /// host's.
    pub fn target_of(&self, slot: &ContainerSlot) -> Option<&str> {
        let spec = self.record.spec();
        let shared = spec.host_pid == Some(true) || spec.share_process_namespace == Some(true);
        self.record.target_of(&slot.name).filter(|_| !shared)
    }
}

#[cfg(test)]
mod tests;
