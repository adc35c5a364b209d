//! What a worker does when the node shuts down: its pod ends, and runs again if the shutdown is cancelled. Part of
//! [`super`].

use limpet_core::eviction::recovery;
use limpet_core::node_shutdown::ShutdownOrder;
use limpet_core::node_state::NodeState;
use limpet_core::plan::is_finished;
use limpet_core::state::{ContainerSlot, Now};

use super::PodWorker;

impl PodWorker {
    /// Ends the pod, or makes a pod that is already ending do so in time. Waiting callers get the answer once it has
    /// stopped.
    pub(super) fn shut_down(&mut self, order: ShutdownOrder, now: Now) {
        let Some(pod) = self.current.as_mut().filter(|pod| pod.record.uid == order.uid) else { return };
        if is_finished(pod) && pod.ending.is_none() && !pod.containers.iter().any(ContainerSlot::is_running) {
            return;
        }
        self.context.reporter.report_shutdown(pod, order.grace);
        pod.shut_down(order.grace, now);
        self.shutting_down.push(order.done);
        self.jobs.abort_pulls();
    }

    /// Answers those who wait for the end, and runs the pod again if the shutdown is cancelled.
    pub(super) fn settle_shutdown(&mut self, node: NodeState, now: Now) {
        let Some(pod) = &mut self.current else { return };
        if recovery::is_released(pod) || pod.ending.is_none() && !pod.is_failed() {
            // The caller may no longer be waiting.
            self.shutting_down.drain(..).for_each(|done| _ = done.send(()));
        }
        if recovery::resumes(pod, node) {
            self.context.reporter.report_shutdown_over(pod);
            pod.resume(now);
        }
    }
}
