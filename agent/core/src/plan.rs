//! Decides the next actions of one pod: the whole policy, as a pure function of the pod's state and the time.
//!
//! These are kubelet's decisions (docs/kubelet.md) as far as limpet acts on them. One call returns the actions that
//! may now run concurrently. Actions in progress are marked busy in the state and are not planned again, so a crash
//! between two actions is an ordinary case.

pub mod awaits;
mod container;
mod ending;
mod hooks;
mod probes;
pub mod recreate;
mod restart;
pub mod restart_all;

use std::time::{Duration, Instant};

use super::node_state::NodeState;
use super::state::{ContainerSlot, Instance, OngoingAction, PodState, SandboxState, Stopping};
use container::container;
use ending::{end, evict, release, stop};
use limpet_model::pod::Role;
use limpet_model::pod::compute_resources::CgroupLimits;
use limpet_model::probe::{ProbeKind, ProbeRecord};
use limpet_model::verdict::PodVerdict;
use probes::probes;
pub use restart::wants_restart;

/// The reason kubelet gives while there is no CNI configuration.
pub const NETWORK_NOT_READY: &str = "NetworkNotReady";

/// Why a container is stopped, which determines the event's message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillCause {
    /// The pod is being terminated.
    PodEnds,
    /// Image or resources of this container were edited.
    DefinitionChanged,
    /// The pod's sandbox is gone, so its containers cannot keep running in it.
    SandboxLost,
    /// Its `postStart` hook has failed.
    PostStartFailed,
    /// Its liveness or startup probe has failed.
    ProbeFailed(ProbeKind),
    /// All containers of its pod are restarted.
    AllRestart,
    /// `limpet restart` has asked for it.
    RestartAsked,
    /// Values that it has read at its start have changed, and its pod wants a restart for that.
    ValuesChanged,
}

/// One action. Containers are identified by their index in [`PodState::containers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Find out whether the sandbox of containers that were found running exists.
    ExamineSandbox,
    /// Set up cgroup, namespaces, network and volumes.
    PrepareSandbox,
    /// Rewrite the volumes whose files come from objects or from the pod itself.
    UpdateVolumes,
    /// Measure how much disk space the pod uses.
    MeasureStorage,
    /// Set the limits of the pod's cgroup.
    UpdateCgroup(CgroupLimits),
    /// Find the image, or pull it, according to the pull policy.
    EnsureImage(usize),
    /// Give the running instance the resources of the pod's current version.
    Resize(usize),
    /// Start the container's next attempt.
    Start(usize),
    /// Run the `postStart` hook of the container's newest instance.
    PostStart(usize),
    /// Perform the action of the phase that the container's stop enters, or repeat it.
    Stop(usize, Stopping, KillCause),
    /// Run a probe of the running instance, which is due again at that time.
    Probe(usize, ProbeKind, Instant),
    /// Record the results of the running instance's probes.
    RecordProbes(usize, ProbeRecord),
    /// Record the newest instance's exit, then delete its task and snapshot.
    Reap(usize),
    /// The same for the previous instance.
    ReapPrevious(usize),
    /// Remove the records and logs of older instances.
    Forget(usize),
    /// Remove what a failed start has left, including a process.
    Discard(usize),
    /// Tear down the sandbox, but keep records, logs and volumes, because the pod has finished.
    ReleaseSandbox,
    /// Remove everything of the pod.
    TearDown,
}

/// The next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Perform these actions concurrently.
    Do(Vec<Action>),
    /// Nothing to do before an event, or before that time.
    Wait(Option<Instant>),
    /// Nothing left to do, because the pod is gone.
    Finished,
}

/// Collects actions and the earliest time to wake up.
#[derive(Debug, Default)]
struct Plan {
    actions: Vec<Action>,
    wake: Option<Instant>,
}

impl Plan {
    fn push(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn wake_at(&mut self, at: Instant) {
        self.wake = Some(self.wake.map_or(at, |wake| wake.min(at)));
    }

    fn step(self) -> Step {
        if self.actions.is_empty() { Step::Wait(self.wake) } else { Step::Do(self.actions) }
    }
}

/// Decides the pod's next step.
pub fn plan(pod: &PodState, node: NodeState, now: Instant) -> Step {
    if !node.runtime_ready {
        return Step::Wait(None);
    }
    match pod.ending {
        Some(ending) => end(pod, ending, node, now),
        None if pod.is_under_eviction() => evict(pod, node, now),
        None if is_finished(pod) || pod.is_failed() => release(pod, node, now),
        None => run(pod, node, now),
    }
}

/// The verdict for a pod that has none and whose deadline has passed. `None` while containerd is away, because its
/// state may say that the pod has finished in time.
pub fn verdict(pod: &PodState, node: NodeState, now: Instant) -> Option<PodVerdict> {
    let counts = node.runtime_ready && pod.ending.is_none() && !pod.is_failed() && !is_finished(pod);
    (counts && pod.deadline().is_some_and(|deadline| deadline <= now)).then(PodVerdict::deadline_exceeded)
}

/// Whether all running containers of the pod must stop now, because it is terminated, has finished, or was ended by
/// the node.
pub fn stops_all(pod: &PodState, node: NodeState) -> bool {
    node.runtime_ready && (pod.ending.is_some() || pod.is_failed() || is_finished(pod))
}

/// Whether the pod has finished: no container that it waits for runs, and its restart policy restarts none or the
/// node has ended it.
pub fn is_finished(pod: &PodState) -> bool {
    let mut awaited = pod.containers.iter().filter(|slot| holds_back_completion(slot.role));
    if awaited.any(|slot| slot.is_running() || matches!(slot.busy, Some(OngoingAction::Starting(_)))) {
        return false;
    }
    // What ended before this agent knew of it left nothing behind.
    let over_before = pod.record.has_ended() && pod.containers.iter().all(|slot| slot.instance.is_none());
    over_before
        || pod.is_failed()
        || init_failed(pod)
        || mains(pod).all(|slot| slot.instance.is_some() && !wants_restart(pod, slot))
}

/// Whether a pod is not finished while a container of that role runs. The others are stopped once it is.
fn holds_back_completion(role: Role) -> bool {
    match role {
        Role::Init | Role::Main => true,
        Role::Sidecar | Role::Ephemeral => false,
    }
}

/// Whether an init container failed for good.
pub fn init_failed(pod: &PodState) -> bool {
    let failed = |slot: &ContainerSlot| {
        slot.role == Role::Init && exit_code(slot).is_some_and(|code| code != 0) && !wants_restart(pod, slot)
    };
    !mains_began(pod) && pod.containers.iter().any(failed)
}

fn exit_code(slot: &ContainerSlot) -> Option<i32> {
    slot.instance.as_ref().and_then(Instance::exit).map(|exit| exit.code)
}

/// The pod's restart policy; `Always` by default.
pub fn restart_policy(pod: &PodState) -> &str {
    pod.record.spec().restart_policy.as_deref().unwrap_or("Always")
}

fn mains(pod: &PodState) -> impl Iterator<Item = &ContainerSlot> {
    pod.containers.iter().filter(|slot| slot.role == Role::Main)
}

/// Whether a regular container was started in the current sandbox and after the last restart of all containers, in
/// which case initialisation is complete.
fn mains_began(pod: &PodState) -> bool {
    mains(pod).any(|slot| is_of_present_run(pod, slot) || restart_all::is_starting(pod, slot))
}

/// Whether the container's newest instance was started in the pod's current sandbox and after the last restart of all
/// containers.
fn is_of_present_run(pod: &PodState, slot: &ContainerSlot) -> bool {
    let in_sandbox = match (&pod.sandbox, &slot.instance) {
        (SandboxState::Ready(present), Some(instance)) => instance.sandbox == present.sandbox.id,
        // Unless the opposite is known, nothing of it starts over.
        (SandboxState::Unknown | SandboxState::Examining, Some(_)) => true,
        _ => false,
    };
    in_sandbox && !restart_all::is_superseded(pod, slot)
}

/// Whether initialisation is complete in the current sandbox. In a new one it starts over.
pub fn is_initialized(pod: &PodState) -> bool {
    mains_began(pod) || pod.containers.iter().all(|slot| !holds_back_next(pod, slot))
}

/// Whether initialisation was ever complete.
pub fn was_initialized(pod: &PodState) -> bool {
    mains(pod).any(|slot| slot.instance.is_some()) || is_initialized(pod)
}

/// Whether the containers after it in the order of initialisation have to wait for it. An init container must
/// succeed, and a sidecar must have started, according to its startup probe if it has one.
pub fn holds_back_next(pod: &PodState, slot: &ContainerSlot) -> bool {
    match slot.role {
        Role::Init => !slot.has_completed() || !is_of_present_run(pod, slot),
        Role::Sidecar => !slot.is_started() || restart_all::is_superseded(pod, slot),
        Role::Main | Role::Ephemeral => false,
    }
}

/// Plans a pod that should run.
fn run(pod: &PodState, node: NodeState, now: Instant) -> Step {
    let mut plan = Plan::default();
    if let Some(deadline) = pod.deadline() {
        plan.wake_at(deadline);
    }
    if pod.waits_for_node() {
        return plan.step();
    }
    if matches!(pod.sandbox, SandboxState::Absent { .. }) && pod.containers.iter().any(ContainerSlot::is_running) {
        // The namespaces' pins are gone while containers still run in them, so no container could join them.
        for (index, slot) in pod.containers.iter().enumerate() {
            stop(&mut plan, index, slot, grace(pod), KillCause::SandboxLost, now);
        }
        return plan.step();
    }
    if restart_all::end_superseded(&mut plan, pod, now) {
        return plan.step();
    }
    let wanted = containers_to_run(pod);
    examine(&mut plan, pod, now);
    prepare(&mut plan, pod, node, now);
    cgroup(&mut plan, pod, now);
    volumes(&mut plan, pod, now);
    storage(&mut plan, pod, now);
    for index in 0..pod.containers.len() {
        container(&mut plan, pod, index, wanted.contains(&index), node, now);
    }
    probes(&mut plan, pod, node, false, now);
    one_at_the_shim(&mut plan, pod);
    plan.step()
}

/// The pod's shim exits with its last task, so a start must not race a deletion. Starts come first.
fn one_at_the_shim(plan: &mut Plan, pod: &PodState) {
    let clears = |action: &Action| matches!(action, Action::Reap(_) | Action::ReapPrevious(_) | Action::Forget(_));
    let starts = |action: &Action| matches!(action, Action::Start(_));
    if pod.containers.iter().any(|slot| slot.busy == Some(OngoingAction::Reaping)) {
        plan.actions.retain(|action| !starts(action));
    }
    let starting = pod.containers.iter().any(|slot| matches!(slot.busy, Some(OngoingAction::Starting(_))));
    if starting || plan.actions.iter().any(starts) {
        plan.actions.retain(|action| !clears(action));
    }
    if may_have_lost_shim(pod) {
        let mut first = !starting;
        plan.actions.retain(|action| !starts(action) || std::mem::replace(&mut first, false));
    }
}

/// A killed shim leaves its socket behind. Two concurrent starts that find it dead would each launch a new shim, and
/// one of them would never serve a task. So the first start runs alone.
fn may_have_lost_shim(pod: &PodState) -> bool {
    let killed =
        |slot: &ContainerSlot| slot.instance.as_ref().and_then(Instance::exit).is_some_and(|exit| exit.code == 137);
    let disturbed = |slot: &ContainerSlot| slot.retry.is_some() || killed(slot);
    !pod.containers.iter().any(ContainerSlot::is_running)
        && (pod.outlived_connection || pod.containers.iter().any(disturbed))
}

/// The containers that should have a running instance now: an init container when it is its turn, sidecars from their
/// turn on, and regular containers once the pod is initialised.
fn containers_to_run(pod: &PodState) -> Vec<usize> {
    let turn = match is_initialized(pod) {
        true => None,
        false => pod.containers.iter().position(|slot| holds_back_next(pod, slot)),
    };
    let runs_now = |(index, slot): &(usize, &ContainerSlot)| match slot.role {
        Role::Init => turn == Some(*index),
        Role::Sidecar => turn.is_none_or(|turn| *index <= turn),
        Role::Main => turn.is_none() && (slot.instance.is_none() || slot.is_running() || wants_restart(pod, slot)),
        Role::Ephemeral => slot.instance.is_none() || slot.is_running(),
    };
    pod.containers.iter().enumerate().filter(runs_now).map(|(index, _)| index).collect()
}

/// The containers that are recreated because their image or resources changed.
pub fn renewed(pod: &PodState) -> Vec<usize> {
    if pod.ending.is_some() || pod.is_failed() || is_finished(pod) {
        return Vec::new();
    }
    containers_to_run(pod).into_iter().filter(|index| pod.containers[*index].is_outdated()).collect()
}

/// Plans another examination of a sandbox about which nothing is known.
fn examine(plan: &mut Plan, pod: &PodState, now: Instant) {
    if !matches!(pod.sandbox, SandboxState::Unknown) {
        return;
    }
    match &pod.retry {
        Some(retry) if retry.retry_at > now => plan.wake_at(retry.retry_at),
        _ => plan.push(Action::ExamineSandbox),
    }
}

/// Plans a sandbox if the pod has none and nothing prevents it.
fn prepare(plan: &mut Plan, pod: &PodState, node: NodeState, now: Instant) {
    if !matches!(pod.sandbox, SandboxState::Absent { .. }) {
        return;
    }
    if !pod.record.host_network() && !node.network_ready || awaits::by_sandbox(pod).is_some() {
        // A change of either wakes the worker.
        return;
    }
    match &pod.retry {
        Some(retry) if retry.retry_at > now => plan.wake_at(retry.retry_at),
        _ => plan.push(Action::PrepareSandbox),
    }
}

/// Plans the limits of the pod's cgroup after an edit of resources, and once after an adoption.
fn cgroup(plan: &mut Plan, pod: &PodState, now: Instant) {
    let Some(limits) = pod.due_cgroup_limits() else { return };
    match &pod.cgroup.retry {
        Some(retry) if retry.retry_at > now => plan.wake_at(retry.retry_at),
        _ => plan.push(Action::UpdateCgroup(limits)),
    }
}

/// Plans an update of the volume files made from edited objects, and of what drivers publish periodically. Containers
/// keep running.
fn volumes(plan: &mut Plan, pod: &PodState, now: Instant) {
    if !matches!(pod.sandbox, SandboxState::Ready(_)) {
        return;
    }
    let Some(due) = pod.volumes_due(now) else { return };
    let due = pod.volumes.retry.as_ref().map_or(due, |retry| due.max(retry.retry_at));
    match due > now {
        true => plan.wake_at(due),
        false => plan.push(Action::UpdateVolumes),
    }
}

/// Plans the next measurement of a pod with limited disk space, while something of it runs.
fn storage(plan: &mut Plan, pod: &PodState, now: Instant) {
    let Some(watch) = pod.storage.as_deref().filter(|watch| !watch.measuring) else { return };
    if !pod.containers.iter().any(ContainerSlot::is_running) {
        return;
    }
    match watch.due {
        Some(due) if due > now => plan.wake_at(due),
        _ => plan.push(Action::MeasureStorage),
    }
}

/// The pod's own grace period, or a shorter one that the node gives it.
fn grace(pod: &PodState) -> Duration {
    let own_grace = Duration::from_secs(pod.record.grace_seconds());
    let of_verdict = pod.verdict.as_ref().and_then(PodVerdict::grace);
    of_verdict.into_iter().chain(pod.shutdown_grace).fold(own_grace, Duration::min)
}

#[cfg(test)]
mod hook_tests;
#[cfg(test)]
mod new_sandbox_tests;
#[cfg(test)]
mod probe_tests;
#[cfg(test)]
mod role_tests;
#[cfg(test)]
mod stop_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod turn_tests;
