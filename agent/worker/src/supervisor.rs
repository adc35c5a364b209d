//! Owns all pod workers: passes commands and events to them, adopts running pods, and has orphans removed.
//!
//! Its loop awaits no I/O: reading the runtime's state, removing orphans and forgetting pulls are separate jobs.

mod cleanup;
mod reading;
mod sync_loop;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::WorkerContext;
use super::allocator::AllocationGuard;
use super::inbox::{EvictionOrder, Inbox, PodCommand};
use super::pod_worker::{PodWorker, WorkEnded};
use super::workloads::Adopted;
use cleanup::Cleanup;
use limpet_core::admission::may_preempt;
use limpet_core::allocation::Refused;
use limpet_core::debug_order::{DebugError, DebugOrder};
use limpet_core::merge::{DesiredPods, Merged, PodChange};
use limpet_core::node_shutdown::{ShutdownIntake, ShutdownOrder};
use limpet_core::node_state::{NodeNetwork, NodePressure, NodeState};
use limpet_core::pod_order::{PodOrder, RestartError, RestartOrder};
use limpet_core::provisional::Provisional;
use limpet_core::state::PodState;
use limpet_host::network::NetworkStatus;
use limpet_model::container::ContainerId;
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::object::PodObjects;
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use limpet_model::source::SourceKind;
use limpet_telemetry::health::Heartbeat;
use reading::Reading;

/// The supervisor's inputs.
#[derive(Debug)]
pub struct Intake {
    /// From the merge.
    pub merged: mpsc::Receiver<Merged>,
    /// From containerd.
    pub lifecycle: mpsc::Receiver<LifecycleEvent>,
    /// From the CNI configuration directory.
    pub network: watch::Receiver<NetworkStatus>,
    /// From the node's own network.
    pub node_network: watch::Receiver<NodeNetwork>,
    /// From the directory of image archives: the imported images.
    pub images: watch::Receiver<Arc<HashSet<String>>>,
    /// From the measurements of the node: its shortages.
    pub pressure: watch::Receiver<NodePressure>,
    /// The pods that have to end because of a shortage.
    pub evictions: mpsc::Receiver<EvictionOrder>,
    /// From the task that ends the pods when the node shuts down.
    pub shutdown: ShutdownIntake,
    /// From the local socket: users' orders about pods.
    pub orders: mpsc::Receiver<PodOrder>,
    /// Requests that check whether this loop is alive.
    pub heartbeat: Heartbeat,
}

/// Owns the workers.
#[derive(Debug)]
pub struct Supervisor {
    context: WorkerContext,
    /// The node's state for the workers; only the supervisor changes it.
    node: watch::Sender<NodeState>,
    desired: Arc<DesiredPods>,
    workers: BTreeMap<PodKey, Arc<Inbox>>,
    tasks: JoinSet<WorkEnded>,
    /// Pods by the second half of their containers' ids.
    routes: HashMap<String, PodKey>,
    provisional: Provisional,
    /// Pods that are being deleted and of which nothing is left.
    torn_down: HashSet<PodUid>,
    /// Pods that are being deleted and were reported as gone by their workers; nothing is left of them either.
    gone: HashSet<PodUid>,
    /// Whether a pod waits until the node has fewer pods.
    waits_for_slot: bool,
    /// Changes of plugins' devices, for which such a pod may be waiting.
    device_changes: watch::Receiver<u64>,
    /// Whether the runtime's state was read once.
    adopted: bool,
    /// Tells the controllers of workloads which of their pods were found.
    found_workloads: Option<oneshot::Sender<Vec<Arc<PodRecord>>>>,
    absence_reported: bool,
    reading: Reading,
    cleanup: Cleanup,
    stop: CancellationToken,
}

impl Supervisor {
    /// A supervisor without workers.
    pub fn new(context: WorkerContext, sources: Vec<SourceKind>, stop: CancellationToken) -> Self {
        let (node, _) = watch::channel(NodeState { probe_grid: context.probe_grid, ..NodeState::default() });
        Self {
            device_changes: context.allocator.device_changes(),
            context,
            node,
            desired: Arc::default(),
            workers: BTreeMap::new(),
            tasks: JoinSet::new(),
            routes: HashMap::new(),
            provisional: Provisional::new(sources),
            torn_down: HashSet::new(),
            gone: HashSet::new(),
            waits_for_slot: false,
            adopted: false,
            found_workloads: None,
            absence_reported: false,
            reading: Reading::default(),
            cleanup: Cleanup::default(),
            stop,
        }
    }

    /// The node's state for watchers.
    pub fn node_state(&self) -> watch::Receiver<NodeState> {
        self.node.subscribe()
    }

    /// The pods of workloads that were running when the agent started, for their controllers.
    pub fn adopted(&mut self) -> Adopted {
        let (sender, adopted) = oneshot::channel();
        self.found_workloads = Some(sender);
        adopted
    }

    /// Supervises until the agent stops; then waits for the workers to finish.
    pub async fn run(mut self, mut intake: Intake) {
        let network_ready = intake.network.borrow_and_update().is_ready();
        let network = *intake.node_network.borrow_and_update();
        self.change_node(|node| (node.network_ready, node.network) = (network_ready, network));
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                () = intake.heartbeat.beat() => {}
                Some(event) = intake.lifecycle.recv() => self.lifecycle(event),
                read = self.reading.next() => self.read(read),
                Some(merged) = intake.merged.recv() => self.merged(merged),
                Some(ended) = self.tasks.join_next() => self.ended(ended),
                () = self.context.allocator.slot_freed(), if self.waits_for_slot => self.fill_slots(),
                Ok(()) = self.device_changes.changed(), if self.waits_for_slot => self.fill_slots(),
                Ok(()) = intake.network.changed() => {
                    let ready = intake.network.borrow_and_update().is_ready();
                    self.change_node(|node| node.network_ready = ready);
                }
                Ok(()) = intake.node_network.changed() => {
                    let network = *intake.node_network.borrow_and_update();
                    self.change_node(|node| node.network = network);
                }
                // Before the orders that follow from it.
                Ok(()) = intake.pressure.changed() => {
                    let pressure = *intake.pressure.borrow_and_update();
                    self.change_node(|node| node.pressure = pressure);
                }
                Some(order) = intake.evictions.recv() => {
                    if let Some(inbox) = self.workers.get(&order.key) {
                        inbox.put(|messages| drop(messages.evictions.insert(order.uid.clone(), order)));
                    }
                }
                // Before the orders that follow from it.
                Ok(()) = intake.shutdown.shutting_down.changed() => {
                    let shutting_down = *intake.shutdown.shutting_down.borrow_and_update();
                    self.change_node(|node| node.shutting_down = shutting_down);
                }
                Some(order) = intake.shutdown.orders.recv() => self.shut_down(order),
                Some(order) = intake.orders.recv() => match order {
                    PodOrder::Debug(order) => self.add_debug(order),
                    PodOrder::Restart(order) => self.restart(order),
                },
                Ok(()) = intake.images.changed() => {
                    let images = Arc::clone(&intake.images.borrow_and_update());
                    self.workers.values().for_each(|inbox| inbox.put(|messages| messages.images = Some(Arc::clone(&images))));
                }
                done = self.cleanup.next() => self.cleaned(done),
            }
            self.clean_up();
        }
        while self.tasks.join_next().await.is_some() {}
    }

    /// Passes an order to end to the pod's worker, unless the shutdown was cancelled meanwhile.
    fn shut_down(&self, order: ShutdownOrder) {
        if let Some(inbox) = self.workers.get(&order.key).filter(|_| self.node.borrow().shutting_down) {
            inbox.put(|messages| messages.shutdowns.push(order));
        }
    }

    /// Passes a container to be added to the worker of its pod.
    fn add_debug(&self, order: DebugOrder) {
        match self.workers.get(&order.key) {
            Some(inbox) => inbox.put(|messages| messages.debug.push(order)),
            None => {
                let DebugOrder { key, done, .. } = order;
                // The caller may have gone.
                let _ = done.send(Err(DebugError::NoPod(key)));
            }
        }
    }

    /// Passes a restart on to the worker of its pod.
    fn restart(&self, order: RestartOrder) {
        match self.workers.get(&order.key) {
            Some(inbox) => inbox.put(|messages| messages.restarts.push(order)),
            None => {
                let RestartOrder { key, done, .. } = order;
                // The caller may have gone.
                let _ = done.send(Err(RestartError::NoPod(key)));
            }
        }
    }

    /// Changes the node's state and wakes every worker in the order of their keys; a watch would wake them in any
    /// order.
    fn change_node(&self, change: impl FnOnce(&mut NodeState)) {
        self.node.send_modify(change);
        self.workers.values().for_each(|inbox| inbox.wake());
    }

    fn merged(&mut self, merged: Merged) {
        sync_loop::log(&merged.changes);
        self.context.reporter.count_merge(&merged.changes, merged.took);
        self.desired = merged.desired;
        self.cleanup.pods_changed(self.context.executor.has_unfinished_pulls());
        for change in &merged.changes {
            let record = change.record();
            if matches!(change, PodChange::Removed(_)) {
                self.torn_down.remove(&record.uid);
                self.gone.remove(&record.uid);
            }
            match change {
                // The running pod belongs to another source, which has not reported yet.
                PodChange::Removed(_) if self.provisional.contains(&record.key) => {}
                PodChange::Removed(_) => self.command(&record.key, PodCommand::End { grace: None }),
                PodChange::Added(_)
                | PodChange::Updated { .. }
                | PodChange::Deleting { .. }
                | PodChange::Reconciled { .. } => self.start_or_update(record),
            }
        }
        self.context.reporter.report_duplicates(&self.desired, &merged.contested);
        self.settle_provisional();
        // A running pod of another source than the desired one refers to that source's objects.
        for key in merged.objects_changed.iter().filter(|key| !self.provisional.contains(key)) {
            if let (Some(record), Some(inbox)) = (self.desired.pods.get(key), self.workers.get(key)) {
                let objects = Arc::new(self.desired.objects_of(record));
                inbox.put(|messages| messages.objects = Some(objects));
            }
        }
    }

    /// Passes a desired pod to its worker, unless a pod that was found running under its key may take precedence.
    fn start_or_update(&mut self, record: &Arc<PodRecord>) {
        if self.provisional.holds_back(record, &self.desired) {
            tracing::info!(pod = %record.key, source = %record.source, "pod is not started: a pod of another source still runs under this name, and that source has not reported yet");
        } else if record.is_deleting() && self.adopted && !self.workers.contains_key(&record.key) {
            self.tear_down_remains(record);
        } else {
            if !record.is_deleting() {
                self.gone.remove(&record.uid);
            }
            self.command(&record.key, command_for(record));
        }
    }

    /// Reports a pod that is being deleted and has no worker as gone, once everything that an earlier agent may have
    /// left of it is released: a successor elsewhere may need a volume that is still mounted.
    fn tear_down_remains(&mut self, record: &Arc<PodRecord>) {
        let is_gone = self.gone.contains(&record.uid) || self.context.reporter.is_retired(record);
        if is_gone || self.must_wait(&record.key, record) {
            return;
        }
        if !self.torn_down.insert(record.uid.clone()) {
            return self.context.reporter.retire_unstarted(record);
        }
        let remains = PodState::remains(Arc::clone(record), self.context.executor.now().wall);
        self.spawn(record.key.clone(), vec![remains], Some(command_for(record)), None);
    }

    /// Ends a pod that was found running once its source has reported without it, or hands it to the source that has
    /// it.
    fn settle_provisional(&mut self) {
        for key in self.provisional.remove_resolved(&self.desired) {
            match self.desired.pods.get(&key).cloned() {
                Some(record) => self.command(&key, command_for(&record)),
                None => {
                    tracing::info!(pod = %key, "SyncLoop REMOVE: its manifest was removed while the agent was not running");
                    self.command(&key, PodCommand::End { grace: None });
                }
            }
        }
    }

    fn command(&mut self, key: &PodKey, mut command: PodCommand) {
        if let PodCommand::Run(record) = &command {
            let has_worker = self.workers.contains_key(key);
            if self.must_wait(key, record) {
                // `start_waiting` starts it later.
                if !has_worker {
                    return;
                }
                command = PodCommand::End { grace: None };
            } else if has_worker {
                self.routes.insert(ContainerId::pod_digits(&record.uid), key.clone());
            }
        }
        match (self.workers.get(key), command) {
            (Some(inbox), command) => {
                let objects = self.objects_for(&command);
                inbox.put(|messages| messages.take_command(command, objects));
            }
            // Before containerd's state was first read, it is unknown what runs.
            (None, PodCommand::Run(_)) if !self.adopted => {}
            // Nothing of it exists here, and it does not run again.
            (None, PodCommand::Run(record)) if record.has_ended() || self.context.reporter.has_refused(&record) => {}
            (None, PodCommand::Run(record)) => self.start(key, record),
            // It may have been waiting for a slot.
            (None, PodCommand::End { .. }) => self.context.reporter.retire(key),
        }
    }

    /// Gives the pod a worker if there is a slot for it, or will be once lesser pods have ended.
    fn start(&mut self, key: &PodKey, record: Arc<PodRecord>) {
        match self.context.allocator.enter(&record) {
            Ok(allocation) => self.spawn(key.clone(), Vec::new(), Some(PodCommand::Run(record)), Some(allocation)),
            Err(Refused { verdict, .. }) => {
                self.waits_for_slot |= !verdict.is_final();
                let (node, now) = (*self.node.borrow(), self.context.executor.now());
                self.context.reporter.report_out_of_pods(&record, verdict, node, now);
            }
        }
    }

    /// Whether containers and directories with the pod's UID still belong to another pod: one whose manifest was
    /// renamed and contained the UID, or an orphan that is being removed.
    fn must_wait(&self, key: &PodKey, record: &PodRecord) -> bool {
        let owner = self.routes.get(&ContainerId::pod_digits(&record.uid));
        match owner.filter(|owner| *owner != key && self.workers.contains_key(*owner)) {
            Some(owner) => {
                tracing::info!(pod = %key, uid = %record.uid, before = %owner, "pod is not started: the pod with the same UID has not ended yet");
                true
            }
            None => self.cleanup.is_removing(&record.uid),
        }
    }

    /// The objects to which a desired version refers.
    fn objects_for(&self, command: &PodCommand) -> Option<Arc<PodObjects>> {
        match command {
            PodCommand::Run(record) => Some(Arc::new(self.desired.objects_of(record))),
            PodCommand::End { .. } => None,
        }
    }

    fn spawn(
        &mut self,
        key: PodKey,
        adopted: Vec<PodState>,
        command: Option<PodCommand>,
        allocation: Option<AllocationGuard>,
    ) {
        let wanted = command.iter().filter_map(|command| match command {
            PodCommand::Run(record) => Some(record),
            PodCommand::End { .. } => None,
        });
        for record in adopted.iter().map(|pod| &pod.record).chain(wanted) {
            self.routes.insert(ContainerId::pod_digits(&record.uid), key.clone());
        }
        let inbox = Arc::new(Inbox::default());
        if let Some(command) = command {
            let objects = self.objects_for(&command);
            inbox.put(|messages| messages.take_command(command, objects));
        }
        self.workers.insert(key.clone(), Arc::clone(&inbox));
        let (node, stop) = (self.node.subscribe(), self.stop.child_token());
        let allocation = allocation.unwrap_or_else(|| self.context.allocator.guard(&key));
        let worker = PodWorker::new(key, inbox, self.context.clone(), node, stop, adopted, allocation);
        self.tasks.spawn(worker.run());
    }

    fn lifecycle(&mut self, event: LifecycleEvent) {
        match event {
            LifecycleEvent::Connected => self.begin_reading(Duration::ZERO),
            LifecycleEvent::Disconnected => self.disconnected(),
            event => self.route(event),
        }
    }

    /// Reported once, however often the reconnection fails.
    fn disconnected(&mut self) {
        self.reading = Reading::default();
        if self.node.borrow().runtime_ready {
            self.change_node(|node| node.runtime_ready = false);
            self.context.reporter.runtime_gone(self.workers.len());
        } else if !self.adopted && !self.absence_reported {
            self.context.reporter.runtime_absent();
        }
        self.absence_reported = true;
    }

    /// Passes an event to the worker of its pod. Without a worker, it is stored while the runtime's state is being
    /// read, because that reading may adopt its container.
    fn route(&mut self, event: LifecycleEvent) {
        let Some(id) = event.container() else { return };
        let inbox = self.routes.get(id.pod_part()).and_then(|key| self.workers.get(key));
        match inbox {
            Some(inbox) => inbox.put(|messages| messages.take_event(event)),
            None => self.reading.keep(event),
        }
    }

    fn ended(&mut self, ended: Result<WorkEnded, tokio::task::JoinError>) {
        let WorkEnded { key, gone } = match ended {
            Ok(ended) => ended,
            Err(error) => {
                // A worker never panics on purpose. The next start of the agent adopts its pod.
                tracing::error!(%error, "a pod's worker failed");
                return;
            }
        };
        self.workers.remove(&key);
        let is_deleting =
            |uid: &PodUid| self.desired.pods.get(&key).is_some_and(|pod| pod.is_deleting() && pod.uid == *uid);
        self.gone.extend(gone.filter(is_deleting).filter(|uid| !self.torn_down.contains(uid)));
        self.cleanup.pods_changed(self.context.executor.has_unfinished_pulls());
        self.reading.pod_ended(&key);
        self.routes.retain(|_, owner| *owner != key);
        // A command may have arrived while the worker was ending, and a pod may wait for the slot that is now free.
        if !self.stop.is_cancelled() {
            self.start_waiting();
        }
    }

    /// Starts pods that wait for a slot.
    fn fill_slots(&mut self) {
        self.waits_for_slot = false;
        self.start_waiting();
    }

    /// Starts workers for desired pods without one, as far as there are slots: first pods for which another would
    /// have to end.
    fn start_waiting(&mut self) {
        let mut waiting: Vec<Arc<PodRecord>> = self
            .desired
            .pods
            .iter()
            .filter(|(key, _)| !self.workers.contains_key(*key))
            .map(|(_, r)| Arc::clone(r))
            .collect();
        waiting.sort_by_key(|record| !may_preempt(record));
        for record in waiting {
            self.start_or_update(&record);
        }
    }
}

fn command_for(record: &Arc<PodRecord>) -> PodCommand {
    if !record.is_deleting() {
        return PodCommand::Run(Arc::clone(record));
    }
    let grace = record.pod.metadata.deletion_grace_period_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    PodCommand::End { grace: grace.map(|seconds| Duration::from_secs(seconds.max(1))) }
}
