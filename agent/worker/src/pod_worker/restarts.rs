//! Restarts requested by `limpet restart`. Part of [`super`].

use super::PodWorker;
use limpet_core::outcome::restart::request_restart;
use limpet_core::pod_order::{RestartError, RestartOrder};
use limpet_core::state::Now;

impl PodWorker {
    /// Restarts containers of the pod, unless the pod is ending.
    pub(super) fn restart(&mut self, order: RestartOrder, now: Now) {
        let RestartOrder { key, container, done } = order;
        let restarted = match self.current.as_mut() {
            None => Err(RestartError::Over(key.clone())),
            Some(pod) => request_restart(pod, container.as_deref(), now),
        };
        if let Ok(containers) = &restarted {
            tracing::info!(pod = %key, containers = containers.join(","), "restart on request");
        }
        // The caller may have gone; the restart continues anyway.
        let _ = done.send(restarted);
    }
}
