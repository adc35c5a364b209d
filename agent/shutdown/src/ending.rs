//! The end of all pods, step by step. Part of [`super`].

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use limpet_core::node_shutdown::{
    PodEndProgress, PodEndState, ShutdownOrder, ShutdownPolicy, ShutdownProgress, ShutdownStep, steps,
};
use limpet_core::status::observed::{Observed, ObservedPod};
use limpet_model::pod::{PodRecord, PodUid};
use limpet_model::verdict::NODE_SHUTDOWN;
use tokio::sync::{mpsc, oneshot, watch};

/// How long a step may take beyond its grace periods if the machine does not wait: until killed processes are gone
/// and networks are released.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(30);
/// The most readings of the list: a pod that started meanwhile is found by the next one.
const MOST_READINGS: usize = 3;

/// Ends the pods.
pub(crate) struct Ending {
    pub(crate) policy: ShutdownPolicy,
    pub(crate) observed: Observed,
    pub(crate) orders: mpsc::Sender<ShutdownOrder>,
    pub(crate) progress: watch::Sender<ShutdownProgress>,
    /// Whether the machine waits no longer than the periods of the policy.
    pub(crate) strict: bool,
}

impl Ending {
    /// Shows that it has begun.
    pub(crate) fn announce(&self) {
        let steps = self.steps(&HashSet::new());
        let pods = steps.iter().flat_map(|step| &step.pods).map(|(record, grace)| waiting(record, *grace)).collect();
        self.progress.send_replace(ShutdownProgress { shutting_down: true, done: false, pods });
    }

    /// Resolves when all pods have ended, or their time is over.
    pub(crate) async fn run(self) {
        let mut ordered = HashSet::new();
        for _ in 0..MOST_READINGS {
            let steps = self.steps(&ordered);
            if steps.is_empty() {
                break;
            }
            for step in steps {
                ordered.extend(step.pods.iter().map(|(record, _)| record.uid.clone()));
                self.perform(step).await;
            }
        }
        self.progress.send_modify(|progress| progress.done = true);
    }

    /// The steps for running pods that were not `ordered` to end.
    fn steps(&self, ordered: &HashSet<PodUid>) -> Vec<ShutdownStep> {
        let observed = self.observed.load();
        let left = observed.pods.values().filter(|pod| is_active(pod) && !ordered.contains(&pod.record.uid));
        steps(&self.policy, left.map(|pod| Arc::clone(&pod.record)))
    }

    async fn perform(&self, step: ShutdownStep) {
        let longest = step.pods.iter().map(|(_, grace)| *grace).max().unwrap_or_default();
        let limit = match step.limit {
            Some(limit) if self.strict => limit,
            _ => longest.saturating_add(CLEANUP_TIMEOUT),
        };
        let records: Vec<Arc<PodRecord>> = step.pods.iter().map(|(record, _)| Arc::clone(record)).collect();
        let end = async {
            let mut ends = FuturesUnordered::new();
            for (record, grace) in step.pods {
                let (done, ended) = oneshot::channel();
                let (key, uid) = (record.key.clone(), record.uid.clone());
                self.show(&record, grace, PodEndState::Ending);
                // Without a supervisor the agent is stopping.
                let _ = self.orders.send(ShutdownOrder { key, uid, grace, done }).await;
                ends.push(async move {
                    // Dropped if nothing had to be ended.
                    let _ = ended.await;
                    (record, grace)
                });
            }
            while let Some((record, grace)) = ends.next().await {
                self.show(&record, grace, PodEndState::Ended);
            }
        };
        if tokio::time::timeout(limit, end).await.is_err() {
            records.iter().for_each(|record| self.mark_overdue(record));
        }
    }

    fn show(&self, record: &PodRecord, grace: Duration, state: PodEndState) {
        let name = record.key.to_string();
        self.progress.send_modify(|progress| match progress.pods.iter_mut().find(|ending| ending.pod == name) {
            Some(ending) => ending.state = state,
            None => progress.pods.push(PodEndProgress { state, ..waiting(record, grace) }),
        });
    }

    fn mark_overdue(&self, record: &PodRecord) {
        let name = record.key.to_string();
        self.progress.send_modify(|progress| {
            let unfinished = |end: &&mut PodEndProgress| end.pod == name && end.state != PodEndState::Ended;
            if let Some(straggler) = progress.pods.iter_mut().find(unfinished) {
                tracing::warn!(pod = %record.key, "a pod did not end in time for the shutdown");
                straggler.state = PodEndState::Overdue;
            }
        });
    }
}

fn waiting(record: &PodRecord, grace: Duration) -> PodEndProgress {
    PodEndProgress { pod: record.key.to_string(), grace_seconds: grace.as_secs(), state: PodEndState::Waiting }
}

/// Whether the pod has something to end: it has not finished, and is not held back.
fn is_active(pod: &ObservedPod) -> bool {
    let finished = matches!(pod.status.phase.as_deref(), Some("Succeeded" | "Failed"));
    !finished && pod.status.reason.as_deref() != Some(NODE_SHUTDOWN)
}
