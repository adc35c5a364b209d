//! The task of one pod: takes its messages, plans, has the executor act, applies outcomes, waits.
//!
//! Actions run beside the loop, so a pull or a hanging call never delays a newer command. A command interrupts no
//! action except a pull.

mod ephemeral_containers;
mod eviction;
mod exits;
mod messages;
mod oom_kills;
mod resize;
mod restarts;
mod shutdown;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{oneshot, watch};
use tokio_util::sync::CancellationToken;

use super::WorkerContext;
use super::allocator::AllocationGuard;
use super::inbox::Inbox;
use super::jobs::{Ended, JobKind, Jobs};
use super::process_watch::ProcessWatch;
use eviction::Eviction;
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

/// How long an action may wait for one call before that is reported.
const HANGS_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct PodWorker {
    key: PodKey,
    inbox: Arc<Inbox>,
    context: WorkerContext,
    node: NodeWatch,
    stop: CancellationToken,
    /// The current incarnation; others that were found beside it are ended first, one after the other.
    current: Option<PodState>,
    others: VecDeque<PodState>,
    wanted: Wanted,
    jobs: Jobs,
    processes: ProcessWatch,
    unjudged_kills: UnjudgedKills,
    /// The pod's allocations, or what it waits for.
    allocation: AllocationGuard,
    eviction: Eviction,
    /// Those who wait for the pod's end because the node shuts down.
    shutting_down: Vec<oneshot::Sender<()>>,
    /// Whether containerd was reconnected meanwhile: a new start may meet the remains of an interrupted one.
    reconnected: bool,
}

/// The desired future of the pod.
#[derive(Debug, Default)]
struct Wanted {
    /// The version to run once everything else with this key is gone.
    next: Option<Arc<PodRecord>>,
    /// The objects to which the desired version refers.
    objects: Option<Arc<PodObjects>>,
    /// Whether nothing with this key should run any more.
    ends: bool,
    /// The grace period of its end, if it is not the pod's own.
    grace: Option<Duration>,
}

/// What a worker watches of its node.
#[derive(Debug)]
struct NodeWatch {
    /// The node's state; the supervisor wakes the worker when it changes.
    state: watch::Receiver<NodeState>,
    /// The number of changes of the node's network that the current incarnation knows.
    network_changes: u64,
    /// Changes of the devices of plugins.
    devices: watch::Receiver<u64>,
    /// Changes of the registered volume drivers.
    volume_drivers: watch::Receiver<u64>,
}

impl NodeWatch {
    fn new(context: &WorkerContext, state: watch::Receiver<NodeState>) -> Self {
        let network_changes = state.borrow().network.changes;
        let (devices, volume_drivers) = (context.allocator.device_changes(), context.executor.volume_drivers());
        Self { state, network_changes, devices, volume_drivers }
    }

    /// The node's state, and whether its network has changed since the last call.
    fn look(&mut self) -> (NodeState, bool) {
        let node = *self.state.borrow();
        let before = std::mem::replace(&mut self.network_changes, node.network.changes);
        (node, before != node.network.changes)
    }
}

/// Resolves at the next change; never once the sender is gone, which ends with the agent. Cancel safe.
async fn changed(changes: &mut watch::Receiver<u64>) {
    if changes.changed().await.is_err() {
        std::future::pending().await
    }
}

impl PodWorker {
    /// A worker for `key`. `adopted` are the incarnations that were found running, the one to keep last; `allocation`
    /// has what the pod already uses of the node.
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
        allocation.adopt(current.iter().chain(&others));
        Self {
            node: NodeWatch::new(&context, node),
            eviction: Eviction::new(&context),
            key,
            inbox,
            context,
            stop,
            current,
            others,
            wanted: Wanted::default(),
            jobs: Jobs::default(),
            processes: ProcessWatch::default(),
            unjudged_kills: UnjudgedKills::default(),
            allocation,
            shutting_down: Vec::new(),
            reconnected: false,
        }
    }

    /// Works until the pod is gone and no other version is desired, or the agent stops.
    pub async fn run(mut self) -> WorkEnded {
        loop {
            let now = self.context.executor.now();
            let messages = self.inbox.take();
            self.read(messages, now);
            self.processes.follow(self.current.as_ref(), &self.context, &self.inbox);
            let (node, network_changed) = self.node.look();
            if network_changed && let Some(pod) = &mut self.current {
                pod.take_network_change();
            }
            self.judge(node, now);
            self.settle_eviction(node, now);
            self.settle_shutdown(node, now);
            self.admit(node);
            self.retry_resize();
            self.judge_kills(now);
            self.jobs.drop_ended_hooks(self.current.as_ref());
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
                        return WorkEnded { key: self.key, gone: last.filter(|_| self.wanted.ends) };
                    }
                }
                Step::Wait(until) => {
                    let until = until.into_iter().chain(self.eviction.again_at).chain(self.unjudged_kills.next()).min();
                    if self.wait(until).await {
                        // Containers keep running.
                        self.jobs.drain(&self.key).await;
                        return WorkEnded { key: self.key, gone: None };
                    }
                }
            }
        }
    }

    /// Waits for messages, an outcome, or `until`. Returns true if the agent stops.
    async fn wait(&mut self, until: Option<std::time::Instant>) -> bool {
        let alarm = sleep_until_or_forever(until.map(Into::into));
        let allocator = &self.context.allocator;
        let has_devices = self.current.as_ref().is_some_and(|pod| allocator.wants_plugins(&pod.record));
        let has_drivers = self.current.as_ref().is_some_and(|pod| claim::may_need_driver(&pod.record));
        tokio::select! {
            biased;
            () = self.stop.cancelled() => return true,
            () = self.eviction.orders.send_next() => {}
            () = self.inbox.arrived() => {}
            ended = self.jobs.next_ended(&self.key) => self.finish(ended),
            (process, answer) = self.processes.missed_exit() => self.missed_exit(process, answer),
            () = self.allocation.freed() => {}
            () = changed(&mut self.node.devices), if has_devices => {}
            () = changed(&mut self.node.volume_drivers), if has_drivers => {
                self.current.iter_mut().for_each(PodState::take_driver_change);
            }
            () = alarm => {}
        }
        false
    }

    fn finish(&mut self, ended: Ended) {
        let Some(pod) = &mut self.current else { return };
        let now = self.context.executor.now();
        match ended {
            Ended::Probe(outcome) => {
                outcome.and_then(|outcome| outcome::apply(pod, outcome, now));
            }
            Ended::Action(outcome) => {
                // Another action that still hangs will report it again.
                pod.hanging = None;
                if let Some(outcome) = outcome {
                    self.apply(outcome, now);
                }
            }
        }
    }

    /// Applies the outcome of an action, and reports it.
    fn apply(&mut self, outcome: Outcome, now: Now) {
        let Some(pod) = &mut self.current else { return };
        let ended = match &outcome {
            Outcome::Ended { id, .. } => Some(id.clone()),
            _ => None,
        };
        let started = match &outcome {
            Outcome::Started { result: Ok(instance), .. } => Some(instance.id.clone()),
            _ => None,
        };
        let lack = match &outcome {
            Outcome::HostLacks(lack) => Some(lack.refusal()),
            _ => None,
        };
        let judges = matches!(outcome, Outcome::StorageMeasured { .. }) && !pod.is_failed();
        if let Some((id, exit)) = outcome::apply(pod, outcome, now) {
            self.exited(&id, 0, exit.code, exit.finished_at, now);
            return;
        }
        if judges && let Some(verdict) = pod.verdict.as_ref().filter(|verdict| verdict.is_final()) {
            self.context.reporter.report_eviction(pod, verdict);
        }
        if let Some(refusal) = lack {
            self.context.reporter.report_host_lack(pod, &refusal);
        }
        let is_newest = |slot: &ContainerSlot| slot.instance.as_ref().map(|instance| &instance.id) == ended.as_ref();
        if ended.is_some()
            && let Some(index) = pod.containers.iter().position(is_newest)
        {
            self.context.reporter.report_exit(pod, index, now);
        }
        if let Some(id) = started {
            self.count_kills(id, now);
        }
    }

    fn begin(&mut self, action: Action) {
        let Some(pod) = &mut self.current else { return };
        if action == Action::TearDown {
            self.jobs.abort_pulls();
        }
        // The container's state is copied before all actions except a probe, whose beginning changes nothing that is
        // compared.
        let before = (!matches!(action, Action::Probe(..))).then(|| pod.clone());
        outcome::begin(pod, &action);
        let before = before.unwrap_or_else(|| pod.clone());
        self.jobs.yield_to(&action);
        let kind = JobKind::from(&action);
        let report = kind.may_hang().then(|| self.hang_reporter(pod_container(&before, &action)));
        let work = Arc::clone(&self.context.executor).perform(before, action);
        match report {
            Some(report) => self.jobs.spawn(kind, watched(HANGS_AFTER, report, work)),
            None => self.jobs.spawn(kind, work),
        }
    }

    /// Ends the pod if the node has a reason to.
    fn judge(&mut self, node: NodeState, now: Now) {
        let Some(pod) = &mut self.current else { return };
        pod.count_active(now);
        if let Some(verdict) = plan::verdict(pod, node, now.mono) {
            self.context.reporter.report_deadline(pod, &verdict);
            pod.fail(verdict);
            self.jobs.abort_pulls();
        }
        if pod.ends_since.is_none() && plan::stops_all(pod, node) {
            pod.ends_since = Some(now.mono);
        }
    }

    /// Asks whether the node admits the pod now. Only here is a pod with a worker refused before it begins.
    fn admit(&mut self, node: NodeState) {
        // What several incarnations use is kept until only one is left.
        let alone = self.others.is_empty();
        let Some(pod) = &mut self.current else {
            if alone {
                self.allocation.release();
            }
            return;
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
            let subject = container.as_deref().map(|name| format!(" of container {name}")).unwrap_or_default();
            let seconds = HANGS_AFTER.as_secs();
            let message = format!("{call}{subject} has not returned for more than {seconds} s: it hangs");
            tracing::warn!(pod = %key, message, "an action is taking long");
            inbox.put(|messages| messages.hanging = Some(message));
        }
    }

    /// Drops the jobs and watches of the current incarnation.
    fn leave_incarnation(&mut self) {
        self.jobs.leave_incarnation();
        self.eviction.waiting = None;
        self.shutting_down.clear();
        self.allocation.forget_resize();
    }

    /// Runs the same version in a new incarnation, because nothing is left of the current one.
    fn begin_again(&mut self, record: Arc<PodRecord>, now: Now) {
        self.leave_incarnation();
        self.current = Some(self.incarnation(record, now));
        self.hand_over_objects();
    }

    /// Continues with the next incarnation. Returns false if there is none.
    fn advance(&mut self, now: Now) -> bool {
        self.leave_incarnation();
        self.current = self.others.pop_front();
        if self.current.is_none() {
            self.allocation.release();
        }
        if self.current.is_none()
            && let Some(next) = self.wanted.next.take()
        {
            self.current = Some(self.incarnation(next, now));
        }
        self.settle(now);
        if let Some(order) = self.eviction.postponed.take() {
            self.evict(order);
        }
        self.current.is_some()
    }
}

/// What a worker returns at its end.
#[derive(Debug)]
pub struct WorkEnded {
    pub key: PodKey,
    /// The pod that has ended as ordered and is reported as gone; `None` if it was not ordered to end, or the agent
    /// stops.
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

/// Whether a missing network keeps the pod from starting.
fn waits_for_network(pod: &PodState, node: NodeState) -> bool {
    let no_sandbox = matches!(pod.sandbox, SandboxState::Absent { .. });
    node.runtime_ready && !node.network_ready && no_sandbox && pod.ending.is_none() && !pod.record.host_network()
}
