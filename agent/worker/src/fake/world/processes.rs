//! The processes of the simulated node: how long each lives, how it handles signals, and how the agent learns of its end.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use limpet_model::container::{ContainerId, Task};
use limpet_model::lifecycle::LifecycleEvent;
use limpet_model::pod::PodUid;
use limpet_model::process::{EndedProcess, ProcessHandle, Processes};
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Script, World, short};
use limpet_host::clock::sleep_until_or_forever;

impl World {
    pub(super) fn draw_obedience(&mut self) -> Option<Duration> {
        match self.behaviour {
            Some(behaviour) => behaviour.obeys,
            None => self.rng.bool().then(|| Duration::from_millis(self.rng.u64(0..3_000))),
        }
    }

    /// Some processes exit by themselves.
    pub(super) fn draw_life(&mut self, pid: u32, init: bool) {
        if let Some(behaviour) = self.behaviour.filter(|_| !(init && self.calm)) {
            self.due.extend(behaviour.exits.map(|(after, code)| (Instant::now() + after, pid, code)));
            return self.due_changed.notify_one();
        }
        let exits = init || (!self.calm && self.rng.u32(0..3) == 0);
        if exits {
            let after = Duration::from_millis(self.rng.u64(0..20_000));
            let code = i32::from(!self.calm && self.rng.u32(0..4) == 0);
            self.due.push((Instant::now() + after, pid, code));
            self.due_changed.notify_one();
        }
    }

    /// A process whose container has a script exits as that says.
    pub(super) fn follow_script(&mut self, pid: u32, script: Script) {
        self.due.extend(script.exits.map(|(after, code)| (Instant::now() + after, pid, code)));
        self.due_changed.notify_one();
    }

    pub(in crate::fake) fn terminate(&mut self, id: &ContainerId) {
        self.check_pre_stop(id);
        let Some(container) = self.containers.get(id) else { return };
        let obeys = container.obeys;
        if let (Some(Task::Running { pid }), Some(after)) = (container.task, obeys) {
            self.due.push((Instant::now() + after, pid, 143));
            self.due_changed.notify_one();
        }
        self.note(|| format!("SIGTERM {} obeys {obeys:?}", short(id)));
    }

    pub(in crate::fake) fn kill(&mut self, id: &ContainerId) {
        if let Some(Task::Running { pid }) = self.task(id) {
            self.exit(pid, 137);
        }
    }

    /// Ends a process; the runtime's event may be lost.
    pub fn exit(&mut self, pid: u32, code: i32) {
        let Some((id, alive)) = self.alive.remove(&pid) else { return };
        let at = self.wall();
        alive.send_replace(false);
        self.note(|| format!("exit {} pid {pid} code {code}", short(&id)));
        if self.has_dead_shim(&id) {
            return;
        }
        if let Some(container) = self.containers.get_mut(&id) {
            container.task = Some(Task::Stopped { code, at });
            container.recorded_exit = Some((code, at));
        }
        if code != 0 {
            self.ask_for_all(&id);
        }
        let lost = self.rng.u32(0..1_000) < self.fault_rate;
        if let (true, false, Some(events)) = (self.connected, lost, &self.events) {
            // An agent that is not running learns of it when it reads the whole state.
            let _ = events.try_send(LifecycleEvent::Exited { id, pid, code, at });
        }
    }

    /// Handles an exit code that a rule for restarting all containers may name.
    pub(super) fn ask_for_all(&mut self, id: &ContainerId) {
        let Some(container) = self.containers.get(id).filter(|container| container.restarts_all) else { return };
        let identity = &container.recorded.identity;
        let asked = self.asked_restarts.entry(identity.uid.clone()).or_default();
        *asked = (*asked).max(identity.pod_restarts + 1);
    }

    /// Makes the runtime forget all tasks, and removes the records of their exits, which are in memory. An unrecorded exit is then unknown, which counts as 137.
    pub(super) fn forget_tasks(&mut self) {
        let ended = self.containers.iter().filter(|(_, container)| container.task.is_some());
        let unknown = ended.filter(|(_, container)| container.recorded.state.exit.is_none());
        let unknown: Vec<_> = unknown.map(|(id, _)| id.clone()).collect();
        unknown.iter().for_each(|id| self.ask_for_all(id));
        self.containers.values_mut().for_each(|container| (container.task, container.recorded_exit) = (None, None));
    }

    /// How many processes were started so far.
    pub fn starts(&self) -> u64 {
        u64::from(self.next_pid - 100)
    }

    /// The processes that run now.
    pub fn running(&self) -> Vec<u32> {
        self.alive.keys().copied().collect()
    }

    /// Ends every process that is due. Returns when the next is due.
    pub fn exit_due(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let due: Vec<(u32, i32)> =
            self.due.iter().filter(|(at, ..)| *at <= now).map(|(_, pid, code)| (*pid, *code)).collect();
        self.due.retain(|(at, ..)| *at > now);
        due.into_iter().for_each(|(pid, code)| self.exit(pid, code));
        self.due.iter().map(|(at, ..)| *at).min()
    }
}

/// Ends processes when they are due, while it is polled.
pub async fn live(world: &Mutex<World>) {
    let lock = || world.lock().unwrap_or_else(PoisonError::into_inner);
    let due_changed = Arc::clone(&lock().due_changed);
    loop {
        let next = lock().exit_due();
        let due = sleep_until_or_forever(next);
        tokio::select! {
            biased;
            () = due_changed.notified() => {}
            () = due => {}
        }
    }
}

/// Counts a call while it is in progress, however it ends.
pub(in crate::fake) struct UnderWay<'a>(&'a Mutex<World>);

impl<'a> UnderWay<'a> {
    pub(in crate::fake) fn new(world: &'a Mutex<World>) -> Self {
        world.lock().unwrap_or_else(PoisonError::into_inner).under_way += 1;
        Self(world)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).under_way -= 1;
    }
}

/// The processes of the simulated node.
#[derive(Debug, Clone)]
pub(in crate::fake) struct WorldProcesses(pub(in crate::fake) Arc<Mutex<World>>);

impl Processes for WorldProcesses {
    fn open(&self, pid: u32) -> Option<Arc<dyn ProcessHandle>> {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Some(match world.alive.get(&pid) {
            Some((_, alive)) => Arc::new(Handle(alive.subscribe())),
            None => Arc::new(EndedProcess),
        })
    }

    fn in_container(&self, _: &PodUid, container: &ContainerId) -> Option<u32> {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        world.alive.iter().find(|(_, (id, _))| id == container).map(|(pid, _)| *pid)
    }

    fn is_in_container(&self, pid: u32, container: &ContainerId) -> bool {
        let world = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        world.alive.get(&pid).is_some_and(|(id, _)| id == container)
    }
}

/// One simulated process.
#[derive(Debug)]
struct Handle(watch::Receiver<bool>);

impl ProcessHandle for Handle {
    fn is_alive(&self) -> bool {
        *self.0.borrow()
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
        let mut alive = self.0.clone();
        Box::pin(async move { alive.wait_for(|alive| !alive).await.map(drop).map_err(io::Error::other) })
    }
}
