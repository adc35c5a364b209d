//! The running hooks of a pod. A hook runs until it ends, its container's stop continues without it, or its container
//! has ended.

use std::collections::BTreeMap;

use limpet_core::plan::Action;
use limpet_core::state::{ContainerSlot, PodState, StopPhase};
use tokio::task::AbortHandle;

/// The jobs of hooks by container; a container has one hook at a time.
#[derive(Debug, Default)]
pub(super) struct HookJobs(BTreeMap<usize, AbortHandle>);

impl HookJobs {
    /// The container whose hook `action` runs.
    pub(super) fn runs_hook(action: &Action) -> Option<usize> {
        match action {
            Action::PostStart(index) => Some(*index),
            Action::Stop(index, stopping, _) if stopping.phase == StopPhase::PreStop => Some(*index),
            _ => None,
        }
    }

    pub(super) fn insert(&mut self, index: usize, job: AbortHandle) {
        self.0.insert(index, job);
    }

    /// Drops the hook that still runs at each phase of a stop: `postStart` at the first, `preStop` at the signal.
    pub(super) fn yield_to(&mut self, action: &Action) {
        if let Action::Stop(index, ..) = action
            && let Some(job) = self.0.remove(index)
        {
            job.abort();
        }
    }

    /// Drops the hooks of containers that no longer run; without a pod, all of them.
    pub(super) fn drop_ended(&mut self, pod: Option<&PodState>) {
        self.0.retain(|index, job| {
            let slot = pod.and_then(|pod| pod.containers.get(*index));
            let runs = slot.is_some_and(ContainerSlot::is_running);
            if !runs {
                job.abort();
            }
            runs && !job.is_finished()
        });
    }
}
