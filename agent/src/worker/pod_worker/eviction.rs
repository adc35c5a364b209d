//! What a worker does when the node is short of something: its pod ends or does not start, and runs once that is over. Part
//! of [`super`].

use std::sync::Arc;

use limpet_core::eviction::admission;
use limpet_core::node_state::NodeState;
use limpet_core::plan::is_finished;
use limpet_core::state::Now;
use limpet_model::pod::PodRecord;
use limpet_model::verdict::PodVerdict;
use tokio::sync::oneshot;

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

    /// Has other pods end so that this one can start. It is woken when what they had is free.
    pub(super) fn preempt(&self, victims: &[Arc<PodRecord>]) {
        for victim in victims {
            let (done, _) = oneshot::channel();
            let (key, uid) = (victim.key.clone(), victim.uid.clone());
            tracing::info!(pod = %self.key, victim = %key, "a pod ends in order to admit a critical one");
            let order = EvictionOrder { key, uid, verdict: PodVerdict::preempted(), done };
            if self.context.evictions.try_send(order).is_err() {
                tracing::warn!(pod = %self.key, victim = %victim.key, "too many pods are to end at once: this one does not");
            }
        }
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
            let record = Arc::clone(&pod.record).without_added();
            // A critical pod may need it.
            self.hold.give_back();
            self.begin_anew(record, now);
        }
        if let Some(pod) = &mut self.current
            && admission::settle(pod, node)
        {
            self.context.reporter.report_refusal(pod);
        }
    }
}
