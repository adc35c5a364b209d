//! Detects, records and reports exits of processes, in order.

use nix::sys::signal::Signal;
use rustix::process::{WaitOptions, WaitStatus};
use std::os::fd::AsFd as _;

use super::Shim;
use crate::cgroup::{Cgroup, OomWatch};
use crate::exit::Exit;
use crate::messages::{TaskEvent, TaskExit, WaitResponse};
use crate::process::{Container, Key, State};

/// The most exits that are kept for a runtime that may just have started their processes.
const MAX_EARLY_EXITS: usize = 4_096;
/// `SIGKILL`.
const KILL: u32 = 9;

impl Shim {
    pub(super) fn handle_signals(&mut self) {
        while let Ok(Some(signal)) = self.signals.read_signal() {
            if i32::try_from(signal.ssi_signo) == Ok(Signal::SIGTERM as i32) && !self.serves_a_process() {
                // The host is shutting down. With a process left the shim continues, to record its exit.
                self.begin_ending();
            }
        }
        // One signal may stand for several exits.
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            self.child_ended(pid.as_raw_nonzero().get().unsigned_abs(), status);
        }
    }

    fn serves_a_process(&self) -> bool {
        !self.operations.is_empty()
            || self.containers.values().flat_map(Container::processes).any(|(_, process)| process.exit.is_none())
    }

    fn child_ended(&mut self, pid: u32, status: WaitStatus) {
        if let Some(operation) = self.operations.remove(&pid) {
            self.finish_operation(operation, status);
        } else if let Some(key) = self.key_of(pid) {
            self.process_ended(&key, Exit::now(pid, status));
        } else if !self.operations.is_empty() {
            if self.early_exits.len() >= MAX_EARLY_EXITS {
                self.early_exits.remove(0);
            }
            self.early_exits.push(Exit::now(pid, status));
        }
        if self.operations.is_empty() {
            self.early_exits = Vec::new();
        }
    }

    /// The process with this PID, if it is known to run.
    fn key_of(&self, pid: u32) -> Option<Key> {
        self.containers.iter().find_map(|(id, container)| {
            let mut processes = container.processes();
            let (exec, _) = processes.find(|(_, process)| process.pid == pid && process.exit.is_none())?;
            Some(Key { container: id.clone(), exec: exec.to_owned() })
        })
    }

    /// Handles an exit that came before the runtime had reported the process.
    pub(super) fn take_early_exit(&mut self, key: &Key, pid: u32) {
        // An earlier process may have had the same PID.
        if let Some(index) = self.early_exits.iter().rposition(|exit| exit.pid == pid) {
            let exit = self.early_exits.remove(index);
            self.process_ended(key, exit);
        }
    }

    fn process_ended(&mut self, key: &Key, exit: Exit) {
        if !key.is_init() {
            self.end_process(key, exit);
            return self.settle(&key.container);
        }
        let Some(container) = self.containers.get_mut(&key.container) else { return };
        container.ended = Some(exit);
        let (shares_pids, paused) = (container.shares_pids, container.init.state == State::Paused);
        if shares_pids && let Err(failure) = self.kill_container(None, &key.container, KILL, true) {
            self.warn(&format!("container {}: kill its other processes: {failure}", key.container));
        }
        if paused {
            // A frozen process cannot end.
            self.call_quietly(&key.container, "resume");
        }
        self.give_up_start_fifo(&key.container);
        self.settle(&key.container);
    }

    /// Reports the exit of a container's first process once everything that must precede it was reported: its start,
    /// and the exits of its other processes.
    pub(super) fn settle(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else { return };
        if container.busy || container.execs.values().any(|process| process.runs()) {
            return;
        }
        let Some(mut exit) = container.ended.take() else { return };
        exit.oom_kills = container.cgroup.as_ref().map_or(0, Cgroup::oom_kills);
        let recorded = exit.record(&container.exit_file);
        if let Err(error) = recorded {
            let path = container.exit_file.display().to_string();
            self.warn(&format!("container {id}: record its exit in {path}: {error}"));
        }
        self.end_process(&Key::init(id), exit);
    }

    /// Handles a process's exit: answers all `Wait` calls for it.
    pub(super) fn end_process(&mut self, key: &Key, exit: Exit) {
        let Some(process) = self.process_mut(key) else { return };
        process.exit = Some(exit);
        process.state = State::Stopped;
        let waiters = std::mem::take(&mut process.waiters);
        let id = if key.is_init() { &key.container } else { &key.exec };
        if exit.pid != 0 {
            let event = TaskExit {
                container_id: key.container.clone(),
                id: id.clone(),
                pid: exit.pid,
                exit_status: exit.code,
                exited_at: Some(exit.timestamp()),
            };
            self.publisher.publish("/tasks/exit", "TaskExit", &event);
        }
        let response = WaitResponse { exit_status: exit.code, exited_at: Some(exit.timestamp()) };
        for call in waiters {
            self.reply_with(call, &response);
        }
    }

    /// Handles memory shortage in a container, or the removal of its cgroup.
    pub(super) fn handle_memory(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else { return };
        let Some((watch, token)) = &container.oom else { return };
        let exists =
            container.cgroup.as_ref().and_then(|cgroup| cgroup.directory("memory")).is_some_and(|path| path.exists());
        if watch.take().is_none() || !exists {
            match watch {
                OomWatch::V1(fd) | OomWatch::V2(fd) => self.poller.remove(fd.as_fd(), *token),
            }
            container.oom = None;
            return;
        }
        let kills = container.cgroup.as_ref().map_or(0, Cgroup::oom_kills);
        // cgroup v2 reports changes of any of several counts.
        if matches!(watch, OomWatch::V1(_)) || kills > container.oom_kills {
            container.oom_kills = kills;
            self.publisher.publish("/tasks/oom", "TaskOOM", &TaskEvent { container_id: id.to_owned() });
        }
    }
}
