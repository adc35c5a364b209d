//! The task of one pod: takes its messages, plans, has the executor act, applies outcomes, waits.
//!
//! Actions run beside the loop, so a pull or a hanging call never delays a newer command; a command never cuts an
//! action but a pull in half.

mod ephemeral_containers;
mod eviction;
mod exits;
mod messages;
mod oom_kills;
mod resize;
mod restarts;
mod shutdown;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use super::WorkerContext;
use super::allocator::AllocationGuard;
use super::hook_jobs::HookJobs;
use super::inbox::{EvictionOrder, Inbox};
use super::process_watch::ProcessWatch;
use eviction::{LimitBackOff, Orders};
use limpet_core::allocation::Refused;
use limpet_core::node_state::NodeState;
use limpet_core::outcome::{self, Outcome};
use limpet_core::plan::{self, Action, Step, awaits, plan};
use limpet_core::state::{ContainerSlot, Now, PodState, SandboxState};
use limpet_host::call_watch::watched;
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::object::{PodObjects, claim};
use limpet_model::pod::{PodKey, PodRecord, PodUid};
use oom_kills::UnjudgedKills;

/// How long an action may wait for one call before it is reported.
const HANGS_AFTER: Duration = Duration::from_secs(10);
/// How long actions under way may take once the agent stops.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// One pod's task.
#[derive(Debug)]
pub struct PodWorker {
    key: PodKey,
    inbox: Arc<Inbox>,
    context: WorkerContext,
    /// The node's state; the supervisor wakes the worker when it changes.
    node: watch::Receiver<NodeState>,
    /// How many changes of the node's network the current incarnation knows of.
    network_changes: u64,
    stop: CancellationToken,
    /// The incarnation being worked on; others found beside it are ended first, one after the other.
    current: Option<PodState>,
    others: VecDeque<PodState>,
    /// The version that is to run once everything else of this key is gone.
    next: Option<Arc<PodRecord>>,
    /// The objects that the version that is to run refers to.
    objects: Option<Arc<PodObjects>>,
    /// Nothing of this key is to run any more.
    unwanted: bool,
    /// What its end may take, when that is not the pod's own to say.
    grace: Option<Duration>,
    jobs: JoinSet<(u64, Outcome)>,
    unjudged_kills: UnjudgedKills,
    pulls: BTreeMap<usize, AbortHandle>,
    hooks: HookJobs,
    /// Probes in progress: nothing waits for them, and they end with the worker.
    probes: JoinSet<(u64, Outcome)>,
    processes: ProcessWatch,
    /// What the pod has of the node, or waits for.
    allocation: AllocationGuard,
    /// Changes of the devices of plugins.
    device_changes: watch::Receiver<u64>,
    /// Registrations of drivers of volumes, and their ends.
    volume_drivers: watch::Receiver<u64>,
    /// Who waits for the end of the pod, because the node is short of what it takes.
    evicting: Option<oneshot::Sender<()>>,
    /// Who waits for the end of the pod, because the node shuts down.
    shutting_down: Vec<oneshot::Sender<()>>,
    /// The pauses before a pod runs again that has exceeded a limit of its own, and the end of one that lasts.
    limit_back_off: LimitBackOff,
    again_at: Option<std::time::Instant>,
    /// An order to end for another incarnation, until that is the current one.
    postponed: Option<EvictionOrder>,
    /// To the pods that end for this one.
    orders: Orders,
    /// containerd was reconnected in its life: a new start may meet the remains of one that was cut off.
    reconnected: bool,
    /// Counts incarnations, so that the outcome of an aborted job of an earlier one is not taken for a later one's.
    generation: u64,
}

impl PodWorker {
    /// A worker for `key`; `adopted` are the incarnations found running, the one to keep last;
    /// `allocation` is what the pod has of the node already.
    pub fn new(
        key: PodKey,
        inbox: Arc<Inbox>,
        context: WorkerContext,
        node: watch::Receiver<NodeState>,
        stop: CancellationToken,
        adopted: Vec<PodState>,
        allocation: AllocationGuard,
    ) -> Self {
        let mut others: VecDeque<PodState> = adopted.into();
        let current = others.pop_front();
        let network_changes = node.borrow().network.changes;
        let device_changes = context.allocator.device_changes();
        let volume_drivers = context.executor.volume_drivers();
        allocation.adopt(current.iter().chain(&others));
        let orders = Orders::new(&context);
        Self {
            key,
            inbox,
            context,
            network_changes,
            node,
            stop,
            current,
            others,
            next: None,
            objects: None,
            unwanted: false,
            grace: None,
            jobs: JoinSet::new(),
            unjudged_kills: UnjudgedKills::default(),
            pulls: BTreeMap::new(),
            hooks: HookJobs::default(),
            probes: JoinSet::new(),
            processes: ProcessWatch::default(),
            allocation,
            device_changes,
            volume_drivers,
            evicting: None,
            shutting_down: Vec::new(),
            limit_back_off: LimitBackOff::default(),
            again_at: None,
            postponed: None,
            orders,
            reconnected: false,
            generation: 0,
        }
    }

    /// Works until the pod is gone and no other version is desired, or the agent stops.
    pub async fn run(mut self) -> WorkEnded {
        loop {
            let now = self.context.executor.now();
            let messages = self.inbox.take();
            self.read(messages, now);
            self.processes.follow(self.current.as_ref(), &self.context, &self.inbox);
            let node = *self.node.borrow();
            if std::mem::replace(&mut self.network_changes, node.network.changes) != node.network.changes
                && let Some(pod) = &mut self.current
            {
                pod.take_network_change();
            }
            self.judge(node, now);
            self.settle_eviction(node, now);
            self.settle_shutdown(node, now);
            self.admit(node);
            self.retry_resize();
            self.judge_kills(now);
            self.hooks.drop_ended(self.current.as_ref());
            let step = self.current.as_ref().map_or(Step::Finished, |pod| plan(pod, node, now.mono));
            if let Some(pod) = &self.current {
                self.context.reporter.publish(pod, node, now);
                if waits_for_network(pod, node) {
                    self.context.reporter.report_network_wait(pod);
                }
                for (slot, awaited) in awaits::addresses(pod, node) {
                    self.context.reporter.report_awaited(pod, slot, &awaited);
                }
            }
            match step {
                Step::Do(actions) => actions.into_iter().for_each(|action| self.begin(action)),
                Step::Finished => {
                    self.context.reporter.retire(&self.key);
                    let last = self.current.as_ref().map(|pod| pod.record.uid.clone());
                    if !self.advance(now) {
                        return WorkEnded { key: self.key, gone: last.filter(|_| self.unwanted) };
                    }
                }
                Step::Wait(until) => {
                    let until = until.into_iter().chain(self.again_at).chain(self.unjudged_kills.next()).min();
                    if self.wait(until).await {
                        self.drain().await;
                        return WorkEnded { key: self.key, gone: None };
                    }
                }
            }
        }
    }

    /// Waits for messages, an outcome, or `until`. True: the agent stops.
    async fn wait(&mut self, until: Option<std::time::Instant>) -> bool {
        let alarm = sleep_until_or_forever(until.map(Into::into));
        let allocator = &self.context.allocator;
        let has_devices = self.current.as_ref().is_some_and(|pod| allocator.wants_plugins(&pod.record));
        let has_drivers = self.current.as_ref().is_some_and(|pod| claim::may_need_driver(&pod.record));
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return true,
            () = self.orders.send_next() => {}
            () = self.inbox.arrived() => {}
            Some(joined) = self.jobs.join_next() => self.finish(joined),
            Some(joined) = self.probes.join_next() => self.probed(joined),
            (process, answer) = self.processes.missed_exit() => self.missed_exit(process, answer),
            () = self.allocation.freed() => {}
            Ok(()) = self.device_changes.changed(), if has_devices => {}
            Ok(()) = self.volume_drivers.changed(), if has_drivers => {
                self.current.iter_mut().for_each(PodState::take_driver_change);
            }
            () = alarm => {}
        }
        false
    }

    /// The agent stops: what is under way is finished, pulls are cut (they resume), probes are, too, containers keep
    /// running.
    async fn drain(&mut self) {
        self.abort_pulls();
        self.probes.abort_all();
        let finish = async { while self.jobs.join_next().await.is_some() {} };
        if tokio::time::timeout(DRAIN_TIMEOUT, finish).await.is_err() {
            tracing::warn!(pod = %self.key, actions = self.jobs.len(), "the pod's worker stopped before its actions had ended");
        }
    }

    fn finish(&mut self, joined: Result<(u64, Outcome), tokio::task::JoinError>) {
        if let Some(pod) = &mut self.current {
            // Another action that still hangs reports it again.
            pod.hanging = None;
        }
        match joined {
            Ok((generation, outcome)) if generation == self.generation => {
                if let Outcome::ImageEnsured { index, .. } = &outcome {
                    self.pulls.remove(index);
                }
                let ended = match &outcome {
                    Outcome::Ended { id, .. } => Some(id.clone()),
                    _ => None,
                };
                let now = self.context.executor.now();
                let Some(pod) = &mut self.current else { return };
                let lack = match &outcome {
                    Outcome::HostLacks(lack) => Some(lack.refusal()),
                    _ => None,
                };
                let started = match &outcome {
                    Outcome::Started { result: Ok(instance), .. } => Some(instance.id.clone()),
                    _ => None,
                };
                if let Some((id, exit)) = outcome::apply(pod, outcome, now) {
                    self.exited(&id, 0, exit.code, exit.finished_at, now);
                    return;
                }
                if let Some(refusal) = lack {
                    self.context.reporter.report_host_lack(pod, &refusal);
                }
                let newest = |slot: &ContainerSlot| slot.instance.as_ref().map(|instance| instance.id.clone());
                if let Some(index) =
                    ended.and_then(|id| pod.containers.iter().position(|slot| newest(slot) == Some(id.clone())))
                {
                    self.context.reporter.report_exit(pod, index, now);
                }
                if let Some(id) = started {
                    self.count_kills(id, now);
                }
            }
            Ok(_) => {}
            Err(error) if error.is_cancelled() => {}
            Err(error) => tracing::error!(pod = %self.key, %error, "an action panicked"),
        }
    }

    fn probed(&mut self, joined: Result<(u64, Outcome), tokio::task::JoinError>) {
        match joined {
            Ok((generation, outcome)) if generation == self.generation => {
                let now = self.context.executor.now();
                if let Some(pod) = &mut self.current {
                    outcome::apply(pod, outcome, now);
                }
            }
            Err(error) if !error.is_cancelled() => tracing::error!(pod = %self.key, %error, "a probe panicked"),
            _ => {}
        }
    }

    fn begin(&mut self, action: Action) {
        let Some(pod) = &mut self.current else { return };
        if action == Action::TearDown {
            std::mem::take(&mut self.pulls).into_values().for_each(|pull| pull.abort());
        }
        let executor = Arc::clone(&self.context.executor);
        // A probe does not ask for what its own beginning changes: the container's state is not copied for it.
        let before = (!matches!(action, Action::Probe(..))).then(|| pod.clone());
        outcome::begin(pod, &action);
        let (generation, before) = (self.generation, before.unwrap_or_else(|| pod.clone()));
        self.hooks.yield_to(&action);
        if let Some(index) = HookJobs::runs_hook(&action) {
            // A hook may take as long as it needs: nothing hangs.
            let job = self.jobs.spawn(async move { (generation, executor.perform(before, action).await) });
            self.hooks.insert(index, job);
            return;
        }
        let index = match action {
            Action::EnsureImage(index) => Some(index),
            _ => None,
        };
        if matches!(action, Action::Probe(..)) {
            // It has a timeout of its own, which may be long.
            self.probes.spawn(async move { (generation, executor.perform(before, action).await) });
            return;
        }
        let report = self.hang_reporter(pod_container(&before, &action));
        let job = self
            .jobs
            .spawn(async move { (generation, watched(HANGS_AFTER, report, executor.perform(before, action)).await) });
        if let Some(index) = index {
            self.pulls.insert(index, job);
        }
    }

    /// Ends the pod once the node has a reason to.
    fn judge(&mut self, node: NodeState, now: Now) {
        let Some(pod) = &mut self.current else { return };
        pod.count_active(now);
        if let Some(verdict) = plan::verdict(pod, node, now.mono) {
            self.context.reporter.report_deadline(pod, &verdict);
            pod.fail(verdict);
            std::mem::take(&mut self.pulls).into_values().for_each(|pull| pull.abort());
        }
        if pod.ends_since.is_none() && plan::stops_all(pod, node) {
            pod.ends_since = Some(now.mono);
        }
    }

    /// Asks whether the node takes the pod now: the only place where a pod with a worker is refused before it begins.
    fn admit(&mut self, node: NodeState) {
        // What several incarnations use is kept until one is left.
        let alone = self.others.is_empty();
        let Some(pod) = &mut self.current else {
            return if alone {
                self.allocation.release()
            };
        };
        if let Some(Refused { verdict, victims }) = self.allocation.admit(pod, node, alone) {
            self.context.reporter.report_not_admitted(pod, &verdict);
            self.preempt(&victims.unwrap_or_default());
        }
    }

    /// Reports a call that hangs to the worker's own inbox.
    fn hang_reporter(&self, container: Option<String>) -> impl Fn(&'static str) + Send + use<> {
        let (inbox, key) = (Arc::clone(&self.inbox), self.key.clone());
        move |call| {
            let of = container.as_deref().map(|name| format!(" of container {name}")).unwrap_or_default();
            let seconds = HANGS_AFTER.as_secs();
            let message = format!("{call}{of} has not returned for more than {seconds} s: it hangs");
            tracing::warn!(pod = %key, message, "an action is taking long");
            inbox.put(|messages| messages.hanging = Some(message));
        }
    }

    fn abort_pulls(&mut self) {
        std::mem::take(&mut self.pulls).into_values().for_each(|pull| pull.abort());
    }

    /// What was begun for the current incarnation is of no use to another one.
    fn leave_incarnation(&mut self) {
        self.abort_pulls();
        self.hooks.drop_ended(None);
        self.probes.abort_all();
        self.evicting = None;
        self.shutting_down.clear();
        self.allocation.forget_resize();
        self.generation += 1;
    }

    /// Runs the same version in a new incarnation; nothing is left of the current one.
    fn begin_again(&mut self, record: Arc<PodRecord>, now: Now) {
        self.leave_incarnation();
        self.current = Some(self.incarnation(record, now));
        self.hand_over_objects();
    }

    /// Goes on to the next incarnation. False: there is none.
    fn advance(&mut self, now: Now) -> bool {
        self.leave_incarnation();
        self.current = self.others.pop_front();
        if self.current.is_none() {
            self.allocation.release();
        }
        if self.current.is_none()
            && let Some(next) = self.next.take()
        {
            self.current = Some(self.incarnation(next, now));
        }
        self.settle(now);
        if let Some(order) = self.postponed.take() {
            self.evict(order);
        }
        self.current.is_some()
    }
}

/// What a worker leaves.
#[derive(Debug)]
pub struct WorkEnded {
    pub key: PodKey,
    /// The pod that has ended as it was ordered to, and is reported as gone; `None`: it was not ordered to end, or the
    /// agent stops.
    pub gone: Option<PodUid>,
}

/// The container that an action is about.
fn pod_container(pod: &PodState, action: &Action) -> Option<String> {
    let index = match action {
        Action::Start(index) | Action::Resize(index) | Action::Stop(index, ..) => index,
        Action::Reap(index) | Action::ReapPrevious(index) | Action::Forget(index) | Action::Discard(index) => index,
        _ => return None,
    };
    pod.containers.get(*index).map(|slot| slot.name.clone())
}

/// Whether a missing network is what keeps the pod from starting.
fn waits_for_network(pod: &PodState, node: NodeState) -> bool {
    let no_sandbox = matches!(pod.sandbox, SandboxState::Absent { .. });
    node.runtime_ready && !node.network_ready && no_sandbox && pod.ending.is_none() && !pod.record.host_network()
}
