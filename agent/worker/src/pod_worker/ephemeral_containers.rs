//! Containers that `limpet debug` adds to the pod. Part of [`super`].

use std::sync::Arc;

use limpet_core::plan::is_finished;
use limpet_model::pod::ephemeral;

use super::PodWorker;
use limpet_core::debug_order::{DebugError, DebugOrder};

impl PodWorker {
    /// Adds a container to the pod, unless the pod is ending. It is handled like one that an apiserver adds.
    pub(super) fn add_debug(&mut self, order: DebugOrder) {
        let DebugOrder { key, container, done } = order;
        let lives =
            |pod: &&mut limpet_core::state::PodState| pod.ending.is_none() && !pod.is_failed() && !is_finished(pod);
        let added = match self.current.as_mut().filter(lives) {
            None => Err(DebugError::Over(key)),
            Some(pod) => {
                let (name, image) = (container.name.clone(), container.image.clone().unwrap_or_default());
                ephemeral::add(&pod.record, *container).map_err(DebugError::Invalid).map(|record| {
                    tracing::info!(pod = %key, uid = %record.uid, container = name, image, "debug container added");
                    pod.add_ephemeral(Arc::new(record));
                })
            }
        };
        // The caller may have gone; the container runs anyway.
        let _ = done.send(added);
    }
}
