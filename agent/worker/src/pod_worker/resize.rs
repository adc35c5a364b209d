//! Applies a newer version of a pod in place, except for resources that the node refuses. Part of [`super`].

use std::sync::Arc;

use limpet_core::allocation::NotResized;
use limpet_core::state::RefusedResize;
use limpet_model::pod::PodRecord;

use super::PodWorker;

impl PodWorker {
    /// Updates the pod to `desired`, except for resources that are refused. It gets those that do not fit once they do.
    pub(super) fn take_in_place(&mut self, desired: Arc<PodRecord>) {
        let Some(pod) = &mut self.current else { return };
        let desired = desired.keeping_ephemeral(&pod.record);
        let before = pod.refused_resize.take().map(|refused| refused.desired);
        let is_retry = before.as_ref().is_some_and(|before| Arc::ptr_eq(before, &desired));
        let refused = self.allocation.resize(pod, &desired).err();
        let taken = match &refused {
            None => desired.clone(),
            Some(_) => Arc::new(desired.with_resources_of(&pod.record)),
        };
        if refused.is_none() || !is_retry {
            for index in pod.update(taken) {
                self.jobs.abort_pull(index);
            }
        }
        let Some(NotResized { refusal, cause, victims }) = refused else { return };
        if before.is_none_or(|before| before.fingerprint != desired.fingerprint) {
            self.context.reporter.report_refused_resize(pod, &desired, refusal, &cause);
        }
        pod.refused_resize = Some(Box::new(RefusedResize { desired, refusal, message: cause.message }));
        self.preempt(&victims);
    }

    /// Tries the waiting resize again.
    pub(super) fn retry_resize(&mut self) {
        let pod = self.current.as_ref().filter(|pod| pod.ending.is_none() && !pod.is_failed());
        if let Some(refused) = pod.and_then(|pod| pod.refused_resize.as_ref()) {
            self.take_in_place(Arc::clone(&refused.desired));
        }
    }
}
