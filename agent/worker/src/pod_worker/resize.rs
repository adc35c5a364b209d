//! Applies a newer version of a pod in place; resources for which the node has no room wait. Part of [`super`].

use std::sync::Arc;

use limpet_core::allocation::NoRoom;
use limpet_core::state::Deferred;
use limpet_model::pod::PodRecord;

use super::PodWorker;

impl PodWorker {
    /// Updates the pod to `desired`, except for resources that do not fit yet.
    pub(super) fn take_in_place(&mut self, desired: Arc<PodRecord>) {
        let Some(pod) = &mut self.current else { return };
        let desired = desired.keeping_ephemeral(&pod.record);
        let before = pod.deferred.take().map(|deferred| deferred.desired);
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
        let Some(NoRoom { refusal, victims }) = refused else { return };
        if before.is_none_or(|before| before.fingerprint != desired.fingerprint) {
            self.context.reporter.report_deferred(pod, &desired, &refusal);
        }
        pod.deferred = Some(Box::new(Deferred { desired, message: refusal.message }));
        self.preempt(&victims);
    }

    /// Tries the waiting resize again.
    pub(super) fn retry_resize(&mut self) {
        let pod = self.current.as_ref().filter(|pod| pod.ending.is_none() && !pod.is_failed());
        if let Some(deferred) = pod.and_then(|pod| pod.deferred.as_ref()) {
            self.take_in_place(Arc::clone(&deferred.desired));
        }
    }
}
