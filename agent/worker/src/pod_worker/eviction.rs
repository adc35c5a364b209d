//! What a worker does when the node is short of something: its pod ends or does not start, and runs again once the
//! shortage is over. Part of [`super`].

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use limpet_core::backoff;
use limpet_core::eviction::recovery;
use limpet_core::node_state::NodeState;
use limpet_core::plan::is_finished;
use limpet_core::state::Now;
use limpet_model::pod::PodRecord;
use limpet_model::verdict::PodVerdict;
use tokio::sync::{mpsc, oneshot};

use super::PodWorker;
use crate::WorkerContext;
use crate::allocator::Allocator;
use crate::inbox::EvictionOrder;

/// Orders to end pods for this one that are still to be sent. The node counts those pods as ending, so it has to
/// learn of an order that is never sent.
#[derive(Debug)]
pub(super) struct Orders {
    node: Arc<Allocator>,
    to: mpsc::Sender<EvictionOrder>,
    victims: VecDeque<Arc<PodRecord>>,
}

impl Orders {
    pub(super) fn new(context: &WorkerContext) -> Self {
        let (node, to) = (Arc::clone(&context.allocator), context.evictions.clone());
        Self { node, to, victims: VecDeque::new() }
    }

    /// Sends the next order; never resolves while there is none. Cancel safe.
    pub(super) async fn send_next(&mut self) {
        if self.victims.is_empty() {
            return std::future::pending().await;
        }
        // Without a supervisor the agent is stopping.
        let Ok(permit) = self.to.reserve().await else { return std::future::pending().await };
        let Some(victim) = self.victims.pop_front() else { return };
        let (key, uid) = (victim.key.clone(), victim.uid.clone());
        // The end is noticed by what the pod releases.
        let (done, _) = oneshot::channel();
        permit.send(EvictionOrder { key, uid, verdict: PodVerdict::preempted(), done });
    }
}

impl Drop for Orders {
    fn drop(&mut self) {
        self.victims.iter().for_each(|victim| self.node.forget_order(&victim.key));
    }
}

/// When a pod that has exceeded its own limit runs again: after the pauses of a crashing container.
#[derive(Debug, Default)]
pub(super) struct LimitBackOff {
    /// The next pause.
    pause: Duration,
    /// When the pod last ran again.
    since: Option<Instant>,
    until: Option<Instant>,
}

impl LimitBackOff {
    /// When a pod is due of which nothing is left at `now`; `None` if immediately.
    fn due(&mut self, now: Instant) -> Option<Instant> {
        let until = *self.until.get_or_insert_with(|| {
            let ran = self.since.map_or(Duration::MAX, |since| now.saturating_duration_since(since));
            let pause = backoff::after_exit(self.pause, ran);
            self.pause = backoff::next(pause);
            now + pause
        });
        Some(until).filter(|until| *until > now)
    }

    fn ran(&mut self, now: Instant) {
        (self.since, self.until) = (Some(now), None);
    }
}

/// A worker's state of evictions: its own pod's, and those for its pod.
#[derive(Debug)]
pub(super) struct Eviction {
    /// The caller that waits for the end of the pod.
    pub(super) waiting: Option<oneshot::Sender<()>>,
    /// An order for another incarnation, until that is the current one.
    pub(super) postponed: Option<EvictionOrder>,
    /// The back-off of a pod that has exceeded its own limit, and the end of the current pause.
    limit_back_off: LimitBackOff,
    pub(super) again_at: Option<Instant>,
    /// Orders to the pods that end for this one.
    pub(super) orders: Orders,
}

impl Eviction {
    pub(super) fn new(context: &WorkerContext) -> Self {
        let orders = Orders::new(context);
        Self { waiting: None, postponed: None, limit_back_off: LimitBackOff::default(), again_at: None, orders }
    }
}

impl PodWorker {
    /// Ends the pod, unless it is ending anyway: immediately, or once earlier incarnations are gone.
    pub(super) fn evict(&mut self, order: EvictionOrder) {
        let Some(pod) = self.current.as_mut().filter(|pod| pod.record.uid == order.uid) else {
            if self.others.is_empty() {
                // Otherwise it would count as ending, and no other pod would be ordered to end.
                self.context.allocator.forget_order(&self.key);
            } else {
                self.eviction.postponed = Some(order);
            }
            return;
        };
        if pod.ending.is_some() || pod.is_failed() || is_finished(pod) {
            return;
        }
        self.context.reporter.report_eviction(pod, &order.verdict);
        pod.fail(order.verdict);
        self.eviction.waiting = Some(order.done);
        self.jobs.abort_pulls();
    }

    /// Has other pods ended so that this one can start. It is woken when their resources are free.
    pub(super) fn preempt(&mut self, victims: &[Arc<PodRecord>]) {
        for victim in victims {
            tracing::info!(pod = %self.key, victim = %victim.key, "a pod is terminated to admit a critical pod");
        }
        self.eviction.orders.victims.extend(victims.iter().cloned());
    }

    /// Recreates a pod that was evicted, once the shortage is over.
    pub(super) fn settle_eviction(&mut self, node: NodeState, now: Now) {
        let Some(pod) = &mut self.current else { return };
        if recovery::is_cleared(pod)
            && let Some(done) = self.eviction.waiting.take()
        {
            // The caller may no longer be waiting.
            let _ = done.send(());
        }
        self.eviction.again_at = None;
        let runs_again = recovery::runs_again(pod, node);
        if runs_again && pod.exceeded_limit() {
            self.eviction.again_at = self.eviction.limit_back_off.due(now.mono);
        }
        if runs_again && self.eviction.again_at.is_none() {
            self.eviction.limit_back_off.ran(now.mono);
            self.context.reporter.report_eviction_over(pod);
            let record = Arc::clone(&pod.record).without_added();
            // A critical pod may need it.
            self.allocation.release();
            self.begin_again(record, now);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
