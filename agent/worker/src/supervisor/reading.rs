//! Reads the runtime's whole state, beside the supervisor's loop, and applies it.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use limpet_core::plan::is_finished;
use limpet_core::state::PodState;
use limpet_kinds::has_workload;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::object::claim;
use limpet_model::pod::{PodKey, PodRecord};
use tokio::task::{JoinError, JoinSet};

use super::{Supervisor, command_for};
use crate::adoption::{self, FoundPod};
use crate::executor::ExecutorError;
use limpet_core::allocation::uses_node;

/// The pause after a failed reading while containerd's events still arrive.
const READ_AGAIN: Duration = Duration::from_secs(1);
/// The most events that are stored for pods that a reading may find; workers notice further ones themselves.
const MOST_EVENTS: usize = 4_096;

/// The result of a reading.
pub(super) type Found = Result<Result<BTreeMap<PodKey, FoundPod>, ExecutorError>, JoinError>;

/// The current reading, at most one.
#[derive(Debug, Default)]
pub(super) struct Reading {
    job: JoinSet<Result<BTreeMap<PodKey, FoundPod>, ExecutorError>>,
    /// Pods that ended meanwhile: the reading has their earlier state.
    ended: HashSet<PodKey>,
    /// Events of containers without a worker.
    events: Vec<LifecycleEvent>,
}

impl Reading {
    /// The result of the reading; never resolves while there is none. Cancel safe.
    pub(super) async fn next(&mut self) -> Found {
        match self.job.join_next().await {
            Some(read) => read,
            None => std::future::pending().await,
        }
    }

    /// Notes that a pod has ended.
    pub(super) fn pod_ended(&mut self, key: &PodKey) {
        if !self.job.is_empty() {
            self.ended.insert(key.clone());
        }
    }

    /// Stores an event for a pod that the reading may find.
    pub(super) fn keep(&mut self, event: LifecycleEvent) {
        if !self.job.is_empty() && self.events.len() < MOST_EVENTS {
            self.events.push(event);
        }
    }
}

impl Supervisor {
    /// Reads the runtime's whole state after a pause.
    pub(super) fn begin_reading(&mut self, pause: Duration) {
        let (executor, first) = (Arc::clone(&self.context.executor), !self.adopted);
        let node_name = self.context.reporter.node_name.clone();
        let known: BTreeSet<PodKey> = self.workers.keys().cloned().collect();
        // Events that were stored for a failed reading may concern what the next one finds.
        let events = std::mem::take(&mut self.reading.events);
        self.reading = Reading { events, ..Reading::default() };
        self.reading.job.spawn(async move {
            tokio::time::sleep(pause).await;
            adoption::read(executor, node_name, known, first).await
        });
    }

    /// Reconciles every worker with the runtime's whole state.
    pub(super) fn read(&mut self, read: Found) {
        let mut pods = match read {
            Ok(Ok(pods)) => pods,
            Ok(Err(error)) => {
                tracing::warn!(%error, "cannot read containerd's state although its events arrive; retrying in a second");
                return self.begin_reading(READ_AGAIN);
            }
            Err(error) => {
                tracing::error!(%error, "reading containerd's state panicked");
                return self.begin_reading(READ_AGAIN);
            }
        };
        if let Some(controllers) = self.found_workloads.take() {
            let records = pods.values().flat_map(|pod| &pod.incarnations).map(|pod| &pod.record);
            let is_of_interest =
                |record: &&Arc<PodRecord>| has_workload(record) || claim::local_names(record).next().is_some();
            // Without sources there are no controllers.
            let _ = controllers.send(records.filter(is_of_interest).cloned().collect());
        }
        let count = pods.values().map(|pod| pod.containers.len()).sum();
        for (key, inbox) in &self.workers {
            let containers = pods.remove(key).map(|pod| pod.containers).unwrap_or_default();
            inbox.put(|messages| messages.containers = Some(containers));
        }
        pods.retain(|key, _| !self.reading.ended.contains(key));
        let adopted = pods.len();
        for (key, pod) in pods {
            self.adopt(key, pod);
        }
        self.adopted = true;
        for event in std::mem::take(&mut self.reading.events) {
            self.route(event);
        }
        self.start_waiting();
        self.settle_provisional();
        self.change_node(|node| node.runtime_ready = true);
        self.context.reporter.runtime_ready(count, adopted);
    }

    /// Starts a worker for a pod that was found running.
    fn adopt(&mut self, key: PodKey, found_pod: FoundPod) {
        let mut desired = self.desired.pods.get(&key).cloned();
        let mut incarnations: Vec<PodState> = found_pod.incarnations;
        // The desired incarnation comes last: everything else with the key ends first.
        incarnations.sort_by_key(|pod| desired.as_ref().is_some_and(|wanted| wanted.uid == pod.record.uid));
        if let Some(source) = incarnations.last().map(|pod| pod.record.source)
            && self.provisional.add(&key, source, &self.desired)
        {
            desired = None;
        }
        if desired.is_none() {
            // Without its source, nothing is known about a pod's objects either, so their files stay unchanged.
            for pod in incarnations.iter_mut().filter(|pod| !self.provisional.has_source(pod.record.source)) {
                pod.take_objects(Arc::default());
                pod.volumes.written = pod.volumes_version();
            }
        }
        if incarnations.is_empty() && desired.is_none() {
            return;
        }
        // A pod that has ended has no slot; its worker keeps the status and the logs.
        let runs = |pod: &&PodState| uses_node(pod) || (!pod.is_failed() && !is_finished(pod));
        let running = incarnations.iter().rfind(runs);
        let allocation = running.map(|pod| self.context.allocator.enter_running(&pod.record));
        self.spawn(key.clone(), incarnations, desired.map(|record| command_for(&record)), allocation);
        if let Some(inbox) = self.workers.get(&key) {
            inbox.put(|messages| messages.containers = Some(found_pod.containers));
        }
    }
}
