//! What a worker does when the node is short of something: its pod ends or does not start, and runs once that is over. Part
//! of [`super`].

use std::sync::Arc;

use limpet_core::eviction::admission;
use limpet_core::node_state::NodeState;
use limpet_core::plan::is_finished;
use limpet_core::state::Now;

use super::PodWorker;
use crate::worker::inbox::EvictionOrder;

impl PodWorker {
    /// Ends the pod, unless it ends anyway.
    pub(super) fn evict(&mut self, order: EvictionOrder) {
        let Some(pod) = &mut self.current else { return };
        if pod.record.uid != order.uid || pod.ending.is_some() || pod.is_failed() || is_finished(pod) {
            return;
        }
        self.context.reporter.report_eviction(pod, &order.verdict);
        pod.fail(order.verdict);
        self.evicting = Some(order.done);
        self.abort_pulls();
    }

    /// Refuses a pod that has not begun while the node is short of something, and makes one anew that was ended for what it
    /// is no longer short of.
    pub(super) fn settle_eviction(&mut self, node: NodeState, now: Now) {
        let Some(pod) = &mut self.current else { return };
        if admission::is_cleared(pod)
            && let Some(done) = self.evicting.take()
        {
            // Nobody may be waiting any more.
            let _ = done.send(());
        }
        if admission::runs_again(pod, node) {
            self.context.reporter.report_pressure_over(pod);
            let record = Arc::clone(&pod.record);
            self.begin_anew(record, now);
        }
        if let Some(pod) = &mut self.current
            && admission::settle(pod, node)
        {
            self.context.reporter.report_refusal(pod);
        }
    }
}
