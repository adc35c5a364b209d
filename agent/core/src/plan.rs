//! What to do next with one pod: the whole policy, a pure function of what is known of it and of the time.
//!
//! kubelet's decisions (kubelet-semantics 4.3, 4.4, 4.6) as far as limpet acts on them. One call yields the actions
//! that may run side by side now; whatever is under way is marked busy in the state and is not planned again, so a
//! crash between two actions is an ordinary case.

mod ending;

use std::time::Duration;

use std::time::Instant;

use super::state::{Busy, ContainerSlot, ImageState, Instance, Life, PodState, SandboxState};
use ending::{clear, end, release, terminate};

/// The reason kubelet gives while there is no CNI configuration.
pub const NETWORK_NOT_READY: &str = "NetworkNotReady";

/// What a signal is sent for; the event's words follow from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KillCause {
    /// The pod ends.
    PodEnds,
    /// Image or resources of this container were edited.
    DefinitionChanged,
    /// The pod's sandbox is gone; its containers cannot go on in it.
    SandboxLost,
}

/// One thing to do. Containers are named by their place in [`PodState::containers`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// cgroup, namespaces, network and volumes.
    PrepareSandbox,
    /// Write the volumes anew whose files come from objects or from the pod itself.
    UpdateVolumes,
    /// Find the image, or pull it, as the pull policy says.
    EnsureImage(usize),
    /// Start the container's next attempt.
    Start(usize),
    /// SIGTERM, with SIGKILL due after the grace.
    Terminate(usize, Duration, KillCause),
    /// SIGKILL to everything in it.
    Kill(usize),
    /// Write the newest instance's end down, then delete its task and snapshot.
    Reap(usize),
    /// The same for the instance before it.
    ReapPrevious(usize),
    /// Remove the records and logs of the instances older than that.
    Forget(usize),
    /// Take the sandbox down, keep records, logs and volumes: the pod has run to its end.
    ReleaseSandbox,
    /// Take everything of the pod down.
    TearDown,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// These, side by side.
    Do(Vec<Action>),
    /// Nothing before an event, or before that moment.
    Wait(Option<Instant>),
    /// Nothing ever again: the pod is gone.
    Finished,
}

/// What is true conditions the pod.
#[derive(Debug, Clone, Copy)]
pub struct NodeConditions {
    /// containerd answers.
    pub runtime_ready: bool,
    /// A CNI configuration is there.
    pub network_ready: bool,
}

/// Gathers actions and the earliest moment worth waking for.
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
pub fn plan(pod: &PodState, conditions: NodeConditions, now: Instant) -> Step {
    if !conditions.runtime_ready {
        return Step::Wait(None);
    }
    match pod.ending {
        Some(ending) => end(pod, ending, now),
        None if is_finished(pod) => release(pod, now),
        None => run(pod, conditions, now),
    }
}

/// Whether the pod has run to its end: nothing of it runs and its restart policy wants nothing more.
pub fn is_finished(pod: &PodState) -> bool {
    if pod.containers.iter().any(|slot| slot.is_running() || matches!(slot.busy, Some(Busy::Starting(_)))) {
        return false;
    }
    init_failed(pod) || mains(pod).all(|(_, slot)| slot.instance.is_some() && !wants_restart(pod, slot))
}

/// Whether an init container failed for good.
pub fn init_failed(pod: &PodState) -> bool {
    !mains_began(pod) && restart_policy(pod) == "Never" && inits(pod).any(|(_, slot)| failed(slot))
}

fn failed(slot: &ContainerSlot) -> bool {
    slot.instance.as_ref().and_then(Instance::exit).is_some_and(|exit| exit.code != 0)
}

/// The pod's restart policy; `Always` unless it says otherwise.
pub fn restart_policy(pod: &PodState) -> &str {
    pod.record.spec().restart_policy.as_deref().unwrap_or("Always")
}

/// Whether a container that ended is to be started again.
pub fn wants_restart(pod: &PodState, slot: &ContainerSlot) -> bool {
    let Some(exit) = slot.instance.as_ref().and_then(Instance::exit) else { return false };
    match restart_policy(pod) {
        "Never" => false,
        "OnFailure" => exit.code != 0,
        _ => !slot.init || exit.code != 0,
    }
}

fn inits(pod: &PodState) -> impl Iterator<Item = (usize, &ContainerSlot)> {
    pod.containers.iter().enumerate().filter(|(_, slot)| slot.init)
}

fn mains(pod: &PodState) -> impl Iterator<Item = (usize, &ContainerSlot)> {
    pod.containers.iter().enumerate().filter(|(_, slot)| !slot.init)
}

/// Once a regular container was started, initialisation counts as done (kubelet-semantics 4.3).
pub fn mains_began(pod: &PodState) -> bool {
    mains(pod).any(|(_, slot)| slot.instance.is_some() || matches!(slot.busy, Some(Busy::Starting(_))))
}

/// Whether initialisation is behind the pod.
pub fn is_initialized(pod: &PodState) -> bool {
    mains_began(pod)
        || inits(pod)
            .all(|(_, slot)| slot.instance.as_ref().and_then(Instance::exit).is_some_and(|exit| exit.code == 0))
}

/// The pod is to run.
fn run(pod: &PodState, conditions: NodeConditions, now: Instant) -> Step {
    let mut plan = Plan::default();
    if matches!(pod.sandbox, SandboxState::Absent { .. }) && pod.containers.iter().any(ContainerSlot::is_running) {
        // The namespaces' pins are gone while containers still run in them: nothing could join those.
        for (index, slot) in pod.containers.iter().enumerate().filter(|(_, slot)| slot.busy.is_none()) {
            let grace = Duration::from_secs(pod.record.grace_seconds());
            terminate(&mut plan, index, slot, grace, KillCause::SandboxLost, now);
        }
        return plan.step();
    }
    let wanted = wanted(pod);
    prepare(&mut plan, pod, conditions, now);
    volumes(&mut plan, pod, now);
    for index in 0..pod.containers.len() {
        container(&mut plan, pod, index, wanted.contains(&index), now);
    }
    one_at_the_shim(&mut plan, pod);
    plan.step()
}

/// The pod's shim ends with its last task: a start must not meet a deletion. Starts come first.
fn one_at_the_shim(plan: &mut Plan, pod: &PodState) {
    let clears = |action: &Action| matches!(action, Action::Reap(_) | Action::ReapPrevious(_) | Action::Forget(_));
    let starts = |action: &Action| matches!(action, Action::Start(_));
    if pod.containers.iter().any(|slot| slot.busy == Some(Busy::Reaping)) {
        plan.actions.retain(|action| !starts(action));
    }
    let starting = pod.containers.iter().any(|slot| matches!(slot.busy, Some(Busy::Starting(_))));
    if starting || plan.actions.iter().any(starts) {
        plan.actions.retain(|action| !clears(action));
    }
    if may_have_lost_shim(pod) {
        let mut first = !starting;
        plan.actions.retain(|action| !starts(action) || std::mem::replace(&mut first, false));
    }
}

/// A shim that was killed leaves its socket. Two starts that find it dead at the same time would each make a new shim, and
/// one of them would serve nothing for ever: the first start goes alone.
fn may_have_lost_shim(pod: &PodState) -> bool {
    let killed =
        |slot: &ContainerSlot| slot.instance.as_ref().and_then(Instance::exit).is_some_and(|exit| exit.code == 137);
    let disturbed = |slot: &ContainerSlot| slot.retry.is_some() || killed(slot);
    !pod.containers.iter().any(ContainerSlot::is_running)
        && (pod.outlived_connection || pod.containers.iter().any(disturbed))
}

/// The containers that should have a running instance now: one init container, or all the others.
fn wanted(pod: &PodState) -> Vec<usize> {
    if !is_initialized(pod) {
        let next = inits(pod)
            .find(|(_, slot)| slot.instance.as_ref().and_then(Instance::exit).is_none_or(|exit| exit.code != 0));
        return next.map(|(index, _)| index).into_iter().collect();
    }
    mains(pod)
        .filter(|(_, slot)| slot.instance.is_none() || slot.is_running() || wants_restart(pod, slot))
        .map(|(index, _)| index)
        .collect()
}

/// The containers that are made anew because their image or resources are not what they were made with.
pub fn renewed(pod: &PodState) -> Vec<usize> {
    if pod.ending.is_some() || is_finished(pod) {
        return Vec::new();
    }
    wanted(pod).into_iter().filter(|index| !pod.containers[*index].is_current()).collect()
}

/// Makes the sandbox when there is none and nothing forbids it.
fn prepare(plan: &mut Plan, pod: &PodState, conditions: NodeConditions, now: Instant) {
    if !matches!(pod.sandbox, SandboxState::Absent { .. }) {
        return;
    }
    if !pod.record.host_network() && !conditions.network_ready || pod.awaits_objects() {
        // The change of either wakes the worker.
        return;
    }
    match &pod.retry {
        Some(retry) if retry.retry_at > now => plan.wake_at(retry.retry_at),
        _ => plan.push(Action::PrepareSandbox),
    }
}

/// Brings the files of volumes up to date that come from what was edited. Containers run on meanwhile.
fn volumes(plan: &mut Plan, pod: &PodState, now: Instant) {
    if !matches!(pod.sandbox, SandboxState::Ready(_)) || !pod.volumes_are_due() {
        return;
    }
    match &pod.volumes.retry {
        Some(retry) if retry.retry_at > now => plan.wake_at(retry.retry_at),
        _ => plan.push(Action::UpdateVolumes),
    }
}

/// One container's next action.
fn container(plan: &mut Plan, pod: &PodState, index: usize, wanted: bool, now: Instant) {
    let slot = &pod.containers[index];
    if slot.busy.is_some() {
        return;
    }
    if slot.is_running() {
        if wanted && !slot.is_current() {
            replace(plan, pod, index, now);
        } else {
            clear(plan, index, slot, false, now);
        }
        return;
    }
    if !wanted {
        // The image of a container whose turn comes later is fetched meanwhile; one that is done is only cleared.
        if slot.instance.is_none() {
            image(plan, pod, index, now);
        }
        clear(plan, index, slot, true, now);
        return;
    }
    let due = due(slot);
    if due.is_some_and(|due| due > now) {
        plan.wake_at(due.unwrap_or(now));
        clear(plan, index, slot, true, now);
        return;
    }
    let image_ready = image(plan, pod, index, now);
    if let (true, SandboxState::Ready(_), false) = (image_ready, &pod.sandbox, pod.awaits_objects()) {
        plan.push(Action::Start(index));
    } else {
        clear(plan, index, slot, true, now);
    }
}

/// Not before this moment may the container be started: its crash back-off, or the trouble of the last try.
fn due(slot: &ContainerSlot) -> Option<Instant> {
    let backoff = match &slot.instance {
        Some(Instance { life: Life::Exited { retry_at, .. }, .. }) if slot.is_current() => Some(*retry_at),
        _ => None,
    };
    backoff.max(slot.retry.as_ref().map(|retry| retry.retry_at))
}

/// An edited image or limit: the new image first, then the old process, so that a pull that fails stops nothing.
fn replace(plan: &mut Plan, pod: &PodState, index: usize, now: Instant) {
    let slot = &pod.containers[index];
    if image(plan, pod, index, now) {
        let grace = Duration::from_secs(pod.record.grace_seconds());
        terminate(plan, index, slot, grace, KillCause::DefinitionChanged, now);
    }
}

/// Whether the image is ready for the container's next attempt; plans to get it when nothing is under way.
fn image(plan: &mut Plan, pod: &PodState, index: usize, now: Instant) -> bool {
    let slot = &pod.containers[index];
    match &slot.image {
        ImageState::Ready { attempt, .. } if *attempt == slot.next_attempt() || !always_pulls(pod, slot) => true,
        // Its credentials may be among them.
        ImageState::Unknown | ImageState::Ready { .. } if pod.awaits_objects() => false,
        ImageState::Unknown | ImageState::Ready { .. } => {
            plan.push(Action::EnsureImage(index));
            false
        }
        ImageState::Pulling => false,
        ImageState::Failed(retry) if retry.retry_at > now => {
            plan.wake_at(retry.retry_at);
            false
        }
        ImageState::Failed(_) => {
            plan.push(Action::EnsureImage(index));
            false
        }
    }
}

fn always_pulls(pod: &PodState, slot: &ContainerSlot) -> bool {
    pod.container_spec(&slot.name).and_then(|spec| spec.image_pull_policy.as_deref()) == Some("Always")
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
