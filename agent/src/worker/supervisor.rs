//! The owner of all pod workers: executor them wishes and events, adopts what runs, and notices what nobody owns.

mod sync_loop;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::inbox::{Inbox, PodCommand};
use super::perform::ContainerdExecutor;
use super::pod_worker::PodWorker;
use crate::server::Heartbeat;
use crate::worker::clock;
use limpet_containerd::error::RuntimeError;
use limpet_core::merge::{DesiredPods, Merged, PodChange};
use limpet_core::plan::NodeConditions;
use limpet_core::provisional::Provisional;
use limpet_core::state::PodState;
use limpet_host::network::NetworkStatus;
use limpet_model::container::ContainerId;
use limpet_model::container::FoundContainer;
use limpet_model::image_name::normalize;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::object::PodObjects;
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use limpet_model::source::SourceKind;

/// After a look at containerd's state that failed, while its events still come.
const READ_AGAIN: Duration = Duration::from_secs(1);

/// What the supervisor listens to.
#[derive(Debug)]
pub struct Intake {
    /// From the merge.
    pub merged: mpsc::Receiver<Merged>,
    /// From containerd.
    pub lifecycle: mpsc::Receiver<LifecycleEvent>,
    /// From the CNI configuration directory.
    pub network: watch::Receiver<NetworkStatus>,
    /// From the directory of image archives: the images that have come by them.
    pub images: watch::Receiver<Arc<HashSet<String>>>,
    /// From those who want to know whether this loop is alive.
    pub heartbeat: Heartbeat,
}

/// Owns the workers.
#[derive(Debug)]
pub struct Supervisor {
    executor: Arc<ContainerdExecutor>,
    conditions: watch::Sender<NodeConditions>,
    desired: Arc<DesiredPods>,
    workers: HashMap<PodKey, Arc<Inbox>>,
    tasks: JoinSet<PodKey>,
    /// The second half of a container's id leads to its pod.
    routes: HashMap<String, PodKey>,
    provisional: Provisional,
    adopted: bool,
    absence_told: bool,
    swept: bool,
    /// Whether pulls may have been broken off for images that nobody wants any more.
    pulls_stale: bool,
    /// The look at containerd's whole state that is under way, one at most.
    reading: JoinSet<Result<Vec<FoundContainer>, RuntimeError>>,
    /// Pods that ended while it is: what it says of them was true before.
    ended_meanwhile: HashSet<PodKey>,
    stop: CancellationToken,
}

impl Supervisor {
    /// A supervisor without workers.
    pub fn new(
        executor: Arc<ContainerdExecutor>,
        sources: Vec<SourceKind>,
        network_ready: bool,
        stop: CancellationToken,
    ) -> Self {
        let (conditions, _) = watch::channel(NodeConditions { runtime_ready: false, network_ready });
        Self {
            executor,
            conditions,
            desired: Arc::default(),
            workers: HashMap::new(),
            tasks: JoinSet::new(),
            routes: HashMap::new(),
            provisional: Provisional::new(sources),
            adopted: false,
            absence_told: false,
            swept: false,
            pulls_stale: true,
            reading: JoinSet::new(),
            ended_meanwhile: HashSet::new(),
            stop,
        }
    }

    /// Supervises until the agent stops; then waits for the workers to put down what they are doing.
    pub async fn run(mut self, mut intake: Intake) {
        loop {
            tokio::select! {
                () = self.stop.cancelled() => break,
                Some(merged) = intake.merged.recv() => self.merged(merged),
                Some(event) = intake.lifecycle.recv() => self.lifecycle(event),
                Some(read) = self.reading.join_next() => self.read(read).await,
                Ok(()) = intake.network.changed() => {
                    let ready = intake.network.borrow_and_update().is_ready();
                    self.conditions.send_modify(|conditions| conditions.network_ready = ready);
                }
                Ok(()) = intake.images.changed() => {
                    let images = Arc::clone(&intake.images.borrow_and_update());
                    self.workers.values().for_each(|inbox| inbox.put(|mail| mail.images = Some(Arc::clone(&images))));
                }
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                () = intake.heartbeat.beat() => {}
            }
            self.sweep().await;
            self.forget_pulls().await;
        }
        while self.tasks.join_next().await.is_some() {}
    }

    fn merged(&mut self, merged: Merged) {
        sync_loop::log(&merged.changes);
        self.executor.count_merge(&merged.changes, merged.took);
        self.desired = merged.desired;
        self.pulls_stale |= self.executor.has_unfinished_pulls();
        for change in &merged.changes {
            let record = change.record();
            match change {
                // What runs came of another source, which has not been heard.
                PodChange::Removed(_) if self.provisional.contains(&record.key) => {}
                PodChange::Removed(_) => self.command(&record.key, PodCommand::End { grace: None }),
                PodChange::Added(_)
                | PodChange::Updated { .. }
                | PodChange::Deleting { .. }
                | PodChange::Reconciled { .. } => self.want(record),
            }
        }
        self.executor.report_duplicates(&self.desired, &merged.contested);
        self.settle_provisional();
        // What runs of another source than the desired one refers to that source's objects.
        for key in merged.objects_changed.iter().filter(|key| !self.provisional.contains(key)) {
            if let (Some(record), Some(inbox)) = (self.desired.pods.get(key), self.workers.get(key)) {
                let objects = Arc::new(self.desired.objects_of(record));
                inbox.put(|mail| mail.objects = Some(objects));
            }
        }
    }

    /// Hands a wanted pod to its worker, unless what was found running under its key may come first.
    fn want(&mut self, record: &Arc<PodRecord>) {
        if self.provisional.holds_back(record, &self.desired) {
            tracing::info!(pod = %record.key, source = %record.source, "waits: what runs came of a source not heard yet");
        } else {
            self.command(&record.key, command_for(record));
        }
    }

    /// Ends what was found running once its source has spoken and does not want it, or executor it to the source that does.
    fn settle_provisional(&mut self) {
        for key in self.provisional.settle(&self.desired) {
            match self.desired.pods.get(&key).cloned() {
                Some(record) => self.command(&key, command_for(&record)),
                None => {
                    tracing::info!(pod = %key, "SyncLoop REMOVE: its manifest went while the agent was not there");
                    self.command(&key, PodCommand::End { grace: None });
                }
            }
        }
    }

    fn command(&mut self, key: &PodKey, mut wish: PodCommand) {
        if let PodCommand::Run(record) = &wish {
            let digits = ContainerId::pod_digits(&record.uid);
            match self.routes.get(&digits) {
                // A manifest was renamed and wrote its UID: containers and directories are still the other pod's. When
                // that has ended, `start_waiting` finds this one without a worker.
                Some(owner) if owner != key && self.workers.contains_key(owner) => {
                    tracing::info!(pod = %key, uid = %record.uid, before = %owner, "waits for the pod that had its uid");
                    if !self.workers.contains_key(key) {
                        return;
                    }
                    wish = PodCommand::End { grace: None };
                }
                _ => drop(self.routes.insert(digits, key.clone())),
            }
        }
        match (self.workers.get(key), wish) {
            (Some(inbox), wish) => {
                let objects = self.objects_for(&wish);
                inbox.put(|mail| {
                    mail.command = Some(wish);
                    mail.objects = objects;
                });
            }
            // Before the first look at containerd nobody knows what runs.
            (None, PodCommand::Run(_)) if !self.adopted => {}
            (None, PodCommand::Run(record)) if self.workers.len() >= self.executor.max_pods() => {
                self.executor.report_out_of_pods(&record)
            }
            (None, PodCommand::Run(record)) => self.spawn(key.clone(), Vec::new(), Some(PodCommand::Run(record))),
            // It may have been waiting for a place.
            (None, PodCommand::End { .. }) => self.executor.retire(key),
        }
    }

    /// The objects that a wished version refers to.
    fn objects_for(&self, wish: &PodCommand) -> Option<Arc<PodObjects>> {
        match wish {
            PodCommand::Run(record) => Some(Arc::new(self.desired.objects_of(record))),
            PodCommand::End { .. } => None,
        }
    }

    fn spawn(&mut self, key: PodKey, adopted: Vec<PodState>, wish: Option<PodCommand>) {
        for pod in &adopted {
            self.routes.insert(ContainerId::pod_digits(&pod.record.uid), key.clone());
        }
        let inbox = Arc::new(Inbox::default());
        if let Some(wish) = wish {
            let objects = self.objects_for(&wish);
            inbox.put(|mail| {
                mail.command = Some(wish);
                mail.objects = objects;
            });
        }
        self.workers.insert(key.clone(), Arc::clone(&inbox));
        let worker = PodWorker::new(
            key,
            inbox,
            Arc::clone(&self.executor),
            self.conditions.subscribe(),
            self.stop.child_token(),
            adopted,
        );
        self.tasks.spawn(worker.run());
    }

    fn lifecycle(&mut self, event: LifecycleEvent) {
        match event {
            LifecycleEvent::Connected => self.begin_reading(Duration::ZERO),
            LifecycleEvent::Disconnected => self.disconnected(),
            LifecycleEvent::Exited { id, pid, code, at } => {
                self.route(&id, |mail| {
                    mail.exits.insert((id.clone(), pid), (code, at));
                });
            }
            LifecycleEvent::OutOfMemory { id } => self.route(&id, |mail| {
                mail.out_of_memory.insert(id.clone());
            }),
            LifecycleEvent::OutOfMemoryVictim { id, victim } => self.route(&id, |mail| {
                mail.victims.insert(id.clone(), victim);
            }),
            LifecycleEvent::Signalled { id, sender } => self.route(&id, |mail| {
                mail.signals.insert(id.clone(), sender);
            }),
        }
    }

    /// Said once, however often the reconnection fails.
    fn disconnected(&mut self) {
        self.reading = JoinSet::new();
        if self.conditions.borrow().runtime_ready {
            self.conditions.send_modify(|conditions| conditions.runtime_ready = false);
            self.executor.runtime_gone(self.workers.len());
        } else if !self.adopted && !self.absence_told {
            self.executor.runtime_absent();
        }
        self.absence_told = true;
    }

    fn route(&self, id: &ContainerId, change: impl FnOnce(&mut super::inbox::Mail)) {
        if let Some(inbox) = self.routes.get(id.pod_part()).and_then(|key| self.workers.get(key)) {
            inbox.put(change);
        }
    }

    /// Reads containerd's whole state, after a pause, beside everything else.
    fn begin_reading(&mut self, pause: Duration) {
        let (executor, first) = (Arc::clone(&self.executor), !self.adopted);
        self.ended_meanwhile.clear();
        self.reading = JoinSet::new();
        self.reading.spawn(async move {
            tokio::time::sleep(pause).await;
            executor.list(first).await
        });
    }

    /// Brings every worker in line with containerd's whole state.
    async fn read(&mut self, read: Result<Result<Vec<FoundContainer>, RuntimeError>, tokio::task::JoinError>) {
        let found = match read {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => {
                tracing::warn!(%error, "containerd answers events and not its state; asked again in a second");
                return self.begin_reading(READ_AGAIN);
            }
            Err(error) => {
                tracing::error!(%error, "the look at containerd's state failed");
                return self.begin_reading(READ_AGAIN);
            }
        };
        let count = found.len();
        let mut by_pod: BTreeMap<PodKey, Vec<FoundContainer>> = BTreeMap::new();
        for container in found {
            by_pod.entry(container.recorded.identity.pod_key()).or_default().push(container);
        }
        for (key, inbox) in &self.workers {
            let own = by_pod.remove(key).unwrap_or_default();
            inbox.put(|mail| mail.found = Some(own));
        }
        by_pod.retain(|key, _| !self.ended_meanwhile.contains(key));
        let pods = by_pod.len();
        for (key, containers) in by_pod {
            self.adopt(key, containers).await;
        }
        self.adopted = true;
        self.start_waiting();
        self.settle_provisional();
        self.conditions.send_modify(|conditions| conditions.runtime_ready = true);
        self.executor.runtime_ready(count, pods);
    }

    /// A worker for a pod that was found running.
    async fn adopt(&mut self, key: PodKey, containers: Vec<FoundContainer>) {
        let now = clock::now();
        let mut by_uid: BTreeMap<String, Vec<FoundContainer>> = BTreeMap::new();
        for container in &containers {
            by_uid.entry(container.recorded.identity.uid.clone()).or_default().push(container.clone());
        }
        let mut desired = self.desired.pods.get(&key).cloned();
        let mut incarnations: Vec<PodState> = Vec::new();
        for found in by_uid.into_values() {
            let Some(record) = self.executor.restore(&found) else { continue };
            let mut pod = PodState::new(Arc::new(record), now.wall);
            pod.sandbox = limpet_core::state::SandboxState::Absent { dirty: true };
            self.executor.find_sandbox(&mut pod).await;
            // What never ran is found again, and removed, when the worker reads its mail.
            self.executor.adopt(&mut pod, found, now);
            incarnations.push(pod);
        }
        // The one that is wanted comes last: everything else of the key ends first.
        incarnations.sort_by_key(|pod| desired.as_ref().is_some_and(|wanted| wanted.uid == pod.record.uid));
        if let Some(found) = incarnations.last().map(|pod| pod.record.source)
            && self.provisional.found(&key, found, &self.desired)
        {
            desired = None;
        }
        if desired.is_none() {
            // A source that is not there any more says nothing of its objects either: their files stay as they are.
            for pod in incarnations.iter_mut().filter(|pod| !self.provisional.has_source(pod.record.source)) {
                pod.take_objects(Arc::default());
                pod.volumes.written = pod.volumes_version();
            }
        }
        if incarnations.is_empty() && desired.is_none() {
            return;
        }
        self.spawn(key.clone(), incarnations, desired.map(|record| command_for(&record)));
        if let Some(inbox) = self.workers.get(&key) {
            inbox.put(|mail| mail.found = Some(containers));
        }
    }

    fn ended(&mut self, ended: Result<PodKey, tokio::task::JoinError>) {
        let key = match ended {
            Ok(key) => key,
            Err(error) => {
                // A worker has no code path that panics on purpose; the next start of the agent takes its pod over.
                tracing::error!(%error, "a pod's worker failed");
                return;
            }
        };
        self.workers.remove(&key);
        self.pulls_stale |= self.executor.has_unfinished_pulls();
        self.ended_meanwhile.insert(key.clone());
        self.routes.retain(|_, owner| *owner != key);
        // A wish that came while the worker was ending lies unread, and a pod may wait for the place that is free now.
        if !self.stop.is_cancelled() {
            self.start_waiting();
        }
    }

    /// Starts the workers of pods that are wanted and have none, as far as there are places.
    fn start_waiting(&mut self) {
        let waiting: Vec<Arc<PodRecord>> = self
            .desired
            .pods
            .iter()
            .filter(|(key, _)| !self.workers.contains_key(*key))
            .map(|(_, r)| Arc::clone(r))
            .collect();
        for record in waiting {
            self.want(&record);
        }
    }

    /// Once everything is known, what no pod owns is cleared: once a start. No pod is begun meanwhile, so that nothing
    /// of a new pod is taken for something left behind.
    async fn sweep(&mut self) {
        if self.swept || !self.adopted || !self.provisional.all_have_spoken(&self.desired) {
            return;
        }
        self.swept = true;
        let desired: HashSet<PodUid> = self.desired.pods.values().map(|record| record.uid.clone()).collect();
        for uid in self.executor.traces().await {
            if !desired.contains(&uid) && !self.routes.contains_key(&ContainerId::pod_digits(&uid)) {
                self.executor.clear(&uid).await;
            }
        }
    }

    /// Lets go of what broken-off pulls left, after a start and whenever their pods may be gone.
    async fn forget_pulls(&mut self) {
        if self.swept && self.pulls_stale {
            let wanted: HashSet<String> = self.desired.pods.values().flat_map(|record| images(record)).collect();
            self.pulls_stale = !self.executor.forget_pulls(&wanted).await;
        }
    }
}

/// The normalised names of a pod's images.
fn images(record: &PodRecord) -> Vec<String> {
    let spec = record.spec();
    let containers = spec.init_containers.iter().flatten().chain(&spec.containers);
    containers.filter_map(|container| normalize(container.image.as_deref()?).ok()).collect()
}

fn command_for(record: &Arc<PodRecord>) -> PodCommand {
    if !record.is_deleting() {
        return PodCommand::Run(Arc::clone(record));
    }
    let grace = record.pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    PodCommand::End { grace: grace.map(|seconds| Duration::from_secs(seconds.max(1))) }
}
