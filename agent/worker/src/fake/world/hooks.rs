//! Hooks of simulated containers: how long they take, how they end, and checks of their order.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::Container;
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::state::{ContainerSlot, PodState, Stopping};
use limpet_model::container::{ContainerId, Exit};
use limpet_model::pod::{PodRecord, Role};
use limpet_model::stop_signal::MIN_GRACE_PERIOD;
use tokio::time::{Instant, sleep};

use super::processes::UnderWay;
use super::{World, is_running, short};
use crate::fake::FakeExecutor;

/// Longer than any grace period.
const HANG_DURATION: Duration = Duration::from_secs(600);

/// The state of a container's hooks.
#[derive(Debug, Default)]
pub(super) struct HookLog {
    /// The number of the agent that has started the container.
    agent: u32,
    /// Its `postStart` hook runs.
    post_start_runs: bool,
    /// Its `postStart` hook has succeeded.
    post_start_done: bool,
    /// The latest end of its running `preStop` hook.
    pre_stop_until: Option<Instant>,
    /// Its `preStop` hook was begun.
    pre_stop_begun: bool,
    has_pre_stop: bool,
}

/// The logs of all containers.
pub(super) type HookLogs = BTreeMap<ContainerId, HookLog>;

/// A running hook, until it is dropped.
struct Running {
    world: Arc<Mutex<World>>,
    id: ContainerId,
}

impl Drop for Running {
    fn drop(&mut self) {
        let mut world = self.world.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(log) = world.hooks.get_mut(&self.id) {
            (log.post_start_runs, log.pre_stop_until) = (false, None);
        }
    }
}

impl FakeExecutor {
    pub(in crate::fake) async fn post_start(&self, pod: &PodState, index: usize) -> Outcome {
        let Some(id) = pod.containers[index].instance.as_ref().map(|instance| instance.id.clone()) else {
            return Outcome::PostStarted { index, id: None, result: Ok(()) };
        };
        let (takes, succeeds) = self.world().begin_post_start(pod, index, &id);
        let _under_way = UnderWay::new(&self.world);
        let running = Running { world: Arc::clone(&self.world), id: id.clone() };
        sleep(takes).await;
        drop(running);
        let failure = |transient| Failure { reason: "PostStartHookError", message: "simulated".to_owned(), transient };
        let mut world = self.world();
        let result = match (world.is_connected(), succeeds) {
            (false, _) => Err(failure(true)),
            (true, false) => Err(failure(false)),
            (true, true) => Ok(()),
        };
        if let (Ok(()), Some(log)) = (&result, world.hooks.get_mut(&id)) {
            log.post_start_done = true;
        }
        drop(world);
        Outcome::PostStarted { index, id: Some(id), result }
    }

    pub(in crate::fake) async fn pre_stop(
        &self,
        id: &ContainerId,
        stopping: Stopping,
    ) -> Result<Option<Exit>, Failure> {
        let until = Instant::from(stopping.grace_over);
        let takes = self.world().begin_pre_stop(id, until);
        let _under_way = UnderWay::new(&self.world);
        let _running = Running { world: Arc::clone(&self.world), id: id.clone() };
        tokio::select! {
            () = sleep(takes) => {}
            () = tokio::time::sleep_until(until) => {}
        }
        Ok(None)
    }
}

/// How much later than its grace period a container may get SIGKILL because of its hook.
pub(in crate::fake) fn hook_allowance(slot: &ContainerSlot) -> Duration {
    if slot.hooks.pre_stop { MIN_GRACE_PERIOD } else { Duration::ZERO }
}

impl World {
    fn draw_hook(&mut self) -> Duration {
        match self.rng.u32(0..8) {
            0 if !self.calm => HANG_DURATION,
            1..4 => Duration::from_secs(self.rng.u64(0..12)),
            _ => Duration::from_millis(self.rng.u64(0..500)),
        }
    }

    /// Records that a container was started.
    pub(super) fn hooks_of_started(&mut self, id: &ContainerId, slot: &ContainerSlot) {
        let log = HookLog { agent: self.agents, has_pre_stop: slot.hooks.pre_stop, ..HookLog::default() };
        self.hooks.insert(id.clone(), log);
    }

    fn begin_post_start(&mut self, pod: &PodState, index: usize, id: &ContainerId) -> (Duration, bool) {
        let succeeds = self.calm || self.rng.u32(0..4) > 0;
        let takes = self.draw_hook();
        self.note(|| format!("postStart {} takes {takes:?} succeeds {succeeds}", short(id)));
        let mut wrong = self.later_before(pod, index, id);
        if let Some(log) = self.hooks.get_mut(id) {
            if log.post_start_done || log.post_start_runs {
                wrong = Some(format!("the postStart of {} runs again", short(id)));
            }
            log.post_start_runs = true;
        }
        wrong.into_iter().for_each(|what| self.violate(what));
        (takes, succeeds)
    }

    /// A container later in the spec that the same agent started before this one's hook began, if there are no
    /// faults: an agent does not know of a start whose answer was lost.
    fn later_before(&self, pod: &PodState, index: usize, id: &ContainerId) -> Option<String> {
        let agent = self.hooks.get(id).filter(|_| self.fault_rate == 0 && self.quiet == 1)?.agent;
        let later = pod.containers.iter().skip(index + 1).filter(|slot| slot.role == Role::Main);
        let after = later.filter_map(|slot| {
            let other = pod.next_id(slot);
            self.hooks.get(&other).filter(|log| log.agent == agent && self.is_running(&other)).map(|_| other)
        });
        after.map(|other| format!("{} starts before the postStart of {}", short(&other), short(id))).next()
    }

    /// The hooks that a container's start should have waited for.
    pub(super) fn hooks_before(&self, pod: &PodState, slot: &ContainerSlot, id: &ContainerId) -> Option<String> {
        let before = pod.containers.iter().take_while(|other| other.name != slot.name);
        let mut running = before.filter_map(|other| other.instance.as_ref().map(|instance| &instance.id));
        let runs = running.find(|other| {
            self.hooks.get(*other).is_some_and(|log| log.post_start_runs)
                && self.is_running(other)
                && self.containers[*other].stop.is_none()
        })?;
        Some(format!("{} starts while the postStart of {} runs", short(id), short(runs)))
    }

    fn begin_pre_stop(&mut self, id: &ContainerId, until: Instant) -> Duration {
        let takes = self.draw_hook();
        self.note(|| format!("preStop {} takes {takes:?}", short(id)));
        if let Some(log) = self.hooks.get_mut(id) {
            (log.pre_stop_begun, log.pre_stop_until) = (true, Some(until));
        }
        takes
    }

    /// Checks a container's hooks when it gets its stop signal.
    pub(super) fn check_pre_stop(&mut self, id: &ContainerId) {
        if self.containers.get(id).and_then(|container| container.stop.as_ref()).is_some_and(|stop| stop.at_once) {
            return;
        }
        let Some(log) = self.hooks.get(id).filter(|log| log.has_pre_stop && self.is_running(id)) else { return };
        let wrong = match log.pre_stop_until {
            _ if !log.pre_stop_begun => "without its preStop",
            Some(until) if Instant::now() < until => "while its preStop runs",
            _ => return,
        };
        self.violate(format!("SIGTERM to {} {wrong}", short(id)));
    }

    /// At rest, checks for running containers whose hook this agent has not run, though it has started them.
    pub fn check_post_starts(&mut self, record: &PodRecord) {
        let mut missing = Vec::new();
        let pending = self.hooks.iter().filter(|(_, log)| log.agent == self.agents && !log.post_start_done);
        for id in pending.map(|(id, _)| id) {
            let Some(container) = self.containers.get(id).filter(|container| is_running(container)) else { continue };
            let (uid, name) = (&container.recorded.identity.uid, &container.recorded.identity.container);
            let mut containers = record.spec().containers.iter();
            let has = |container: &Container| {
                container.name == *name && container.lifecycle.as_ref().is_some_and(|hooks| hooks.post_start.is_some())
            };
            if uid == record.uid.as_str() && containers.any(has) {
                missing.push(format!("the postStart of {} has not run", short(id)));
            }
        }
        missing.into_iter().for_each(|what| self.violate(what));
    }
}
