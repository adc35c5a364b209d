//! Checks how many pods run on the simulated node at a time.

use std::collections::BTreeSet;

use limpet_model::pod::PodUid;

use super::{World, is_running};

impl World {
    /// Whether a container of the pod runs.
    pub fn runs(&self, uid: &PodUid) -> bool {
        self.containers
            .values()
            .any(|container| is_running(container) && container.recorded.identity.uid == uid.as_str())
    }

    /// Checks that no more pods run than allowed.
    pub(super) fn check_places(&mut self) {
        let running = self.containers.values().filter(|container| is_running(container));
        let uids: BTreeSet<&str> = running.map(|container| container.recorded.identity.uid.as_str()).collect();
        let count = uids.len();
        if let Some(most) = self.max_pods.filter(|most| count > *most) {
            self.violate(format!("{count} pods run, where {most} may"));
        }
    }
}
