//! Completes calls of the OCI runtime: updates the state, publishes events and answers requests.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use prost::Message as _;
use rustix::event::epoll::EventFlags;
use rustix::process::WaitStatus;

use super::Shim;
use super::operations::{Kind, Operation, PID_FILE, deletion_of, remove};
use crate::cgroup::{Cgroup, OomWatch};
use crate::cleanup::STARTED_FILE;
use crate::console::ConsoleSocket;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::messages::{Mount, PidResponse, TaskCreate, TaskDelete, TaskEvent, TaskExecStarted, TaskIo, TaskStart};
use crate::poller::Source;
use crate::process::{Key, State};
use crate::rootfs;
use crate::runtime;
use crate::stdio::Stdio;

/// The socket on which the runtime sends a terminal, and where the terminal's output goes, if that is open already.
type Terminal = (ConsoleSocket, Option<OwnedFd>);

impl Shim {
    /// Completes a call of the runtime, whose process has ended.
    pub(super) fn finish_operation(&mut self, operation: Operation, status: WaitStatus) {
        let reason = runtime::last_error(&operation.log);
        let result = match status.exit_status() {
            Some(0) => Ok(()),
            _ if reason.is_empty() => {
                let reason = format!("the OCI runtime did not terminate successfully: {}", ending(status));
                Err(failure_of(&operation.kind, &reason))
            }
            _ => Err(failure_of(&operation.kind, &reason)),
        };
        self.complete(operation, result);
    }

    /// Completes an operation with its result.
    pub(super) fn complete(&mut self, operation: Operation, result: Result<(), Failure>) {
        remove(operation.input.as_deref());
        let Operation { key, kind, call, console, terminal_output, .. } = operation;
        let is_busy = !matches!(kind, Kind::Exec | Kind::Kill | Kind::Quiet);
        if is_busy && let Some(container) = self.containers.get_mut(&key.container) {
            container.busy = false;
        }
        let terminal = console.map(|socket| (socket, terminal_output));
        let answer = match kind {
            Kind::Create(rootfs) => self.created(&key, result, terminal, rootfs),
            Kind::Start => self.started(&key, result),
            Kind::Exec => self.exec_started(&key, result, terminal),
            Kind::Delete => self.deleted(&key, result),
            Kind::Kill | Kind::Update => result.map(|()| Vec::new()),
            Kind::Pause => self.changed(&key, result, State::Paused),
            Kind::Resume => self.changed(&key, result, State::Running),
            Kind::Quiet => Ok(Vec::new()),
        };
        if let Some(call) = call {
            self.reply(call, answer);
        }
        self.settle(&key.container);
        let deferred = self.containers.get_mut(&key.container).map(|container| std::mem::take(&mut container.deferred));
        for (call, request) in deferred.into_iter().flatten() {
            self.handle(call, request);
        }
    }

    fn created(
        &mut self,
        key: &Key,
        result: Result<(), Failure>,
        terminal: Option<Terminal>,
        rootfs: Vec<Mount>,
    ) -> Result<Vec<u8>, Failure> {
        let bundle = self.bundle(key);
        let created = result.and_then(|()| {
            self.take_terminal(key, terminal)?;
            read_pid(&bundle.join(PID_FILE))
        });
        let pid = match created {
            Ok(pid) => pid,
            Err(failure) => {
                self.forget_container(&key.container);
                return Err(failure);
            }
        };
        let Some(container) = self.containers.get_mut(&key.container) else {
            return Err(Failure::not_found("container not created"));
        };
        container.init.pid = pid;
        container.init.state = State::Created;
        container.cgroup = Cgroup::of_process(pid).ok();
        let Stdio { stdin, stdout, stderr, terminal } = container.init.stdio.clone();
        let event = TaskCreate {
            container_id: key.container.clone(),
            bundle: bundle.to_string_lossy().into_owned(),
            rootfs,
            io: Some(TaskIo { stdin, stdout, stderr, terminal }),
            pid,
        };
        self.publisher.publish("/tasks/create", "TaskCreate", &event);
        self.take_early_exit(key, pid);
        Ok(PidResponse { pid }.encode_to_vec())
    }

    /// Connects the terminal that the runtime has sent.
    fn take_terminal(&mut self, key: &Key, terminal: Option<Terminal>) -> Result<(), Failure> {
        let Some((console, output)) = terminal else { return Ok(()) };
        let Some(stdio) = self.process_mut(key).map(|process| process.stdio.clone()) else { return Ok(()) };
        let terminal = console.receive();
        let terminal =
            terminal.map_err(|error| Failure::unknown(format!("failed to retrieve console master: {error}")))?;
        let streams = Self::open_terminal(&stdio, terminal, output);
        let streams = streams.map_err(|error| Failure::unknown(format!("failed to start console copy: {error}")))?;
        if let Some(process) = self.process_mut(key) {
            process.streams = streams;
        }
        self.watch_streams(key);
        Ok(())
    }

    fn started(&mut self, key: &Key, result: Result<(), Failure>) -> Result<Vec<u8>, Failure> {
        result?;
        let Some(container) = self.containers.get_mut(&key.container) else {
            return Err(Failure::not_found("container not created"));
        };
        container.init.state = State::Running;
        let pid = container.init.pid;
        let started = container.bundle.join(STARTED_FILE);
        let recorded = fs::write(&started, "");
        // Without the watch containerd does not learn of memory shortage; the exit is still reported.
        if let Some(watch) = container.cgroup.as_ref().and_then(|cgroup| cgroup.watch_oom().ok()) {
            let source = Source::Memory(key.container.clone());
            let token = match &watch {
                OomWatch::V1(event) => self.poller.add(event, source, EventFlags::IN),
                OomWatch::V2(file) => self.poller.add(file, source, EventFlags::PRI),
            };
            container.oom = token.map(|token| (watch, token));
        }
        let event = TaskStart { container_id: key.container.clone(), pid };
        self.publisher.publish("/tasks/start", "TaskStart", &event);
        if let Err(error) = recorded {
            self.warn(&format!("write {}: {error}", started.display()));
        }
        Ok(PidResponse { pid }.encode_to_vec())
    }

    fn exec_started(
        &mut self,
        key: &Key,
        result: Result<(), Failure>,
        terminal: Option<Terminal>,
    ) -> Result<Vec<u8>, Failure> {
        let pid_file = self.bundle(key).join(format!("{}.pid", key.exec));
        let started = result.and_then(|()| {
            let pid = read_pid(&pid_file)?;
            self.take_terminal(key, terminal)?;
            Ok(pid)
        });
        let pid = match started {
            Ok(pid) => pid,
            Err(failure) => {
                self.close_streams(key);
                // The process never ran, and calls that wait for it must not wait forever.
                self.end_process(key, Exit::unknown(0));
                return Err(failure);
            }
        };
        if let Some(process) = self.process_mut(key) {
            process.pid = pid;
            process.state = State::Running;
            process.spec = None;
        }
        let event = TaskExecStarted { container_id: key.container.clone(), exec_id: key.exec.clone(), pid };
        self.publisher.publish("/tasks/exec-started", "TaskExecStarted", &event);
        self.take_early_exit(key, pid);
        Ok(PidResponse { pid }.encode_to_vec())
    }

    fn deleted(&mut self, key: &Key, result: Result<(), Failure>) -> Result<Vec<u8>, Failure> {
        match result {
            // A container that was already deleted counts as deleted.
            Err(failure) if !failure.message.contains("does not exist") => return Err(failure),
            _ => {}
        }
        let Some(container) = self.containers.get(&key.container) else { return Ok(Vec::new()) };
        let response = deletion_of(&container.init);
        let event = TaskDelete {
            container_id: key.container.clone(),
            pid: response.pid,
            exit_status: response.exit_status,
            exited_at: response.exited_at,
        };
        self.forget_container(&key.container);
        self.publisher.publish("/tasks/delete", "TaskDelete", &event);
        Ok(response.encode_to_vec())
    }

    fn changed(&mut self, key: &Key, result: Result<(), Failure>, state: State) -> Result<Vec<u8>, Failure> {
        let Some(container) = self.containers.get_mut(&key.container) else { return Ok(Vec::new()) };
        let before = if state == State::Paused { State::Running } else { State::Paused };
        container.init.state = if result.is_ok() { state } else { before };
        result?;
        let event = TaskEvent { container_id: key.container.clone() };
        let (topic, name) = match state {
            State::Paused => ("/tasks/paused", "TaskPaused"),
            _ => ("/tasks/resumed", "TaskResumed"),
        };
        self.publisher.publish(topic, name, &event);
        Ok(Vec::new())
    }

    /// Releases everything that the shim holds for a container.
    pub(super) fn forget_container(&mut self, id: &str) {
        let execs = self.containers.get(id).map(|container| container.execs.keys().cloned().collect::<Vec<_>>());
        for exec in execs.into_iter().flatten().chain([String::new()]) {
            self.close_streams(&Key { container: id.to_owned(), exec });
        }
        let Some(container) = self.containers.remove(id) else { return };
        if let Some((watch, token)) = container.oom {
            match &watch {
                OomWatch::V1(fd) | OomWatch::V2(fd) => self.poller.remove(fd, token),
            }
        }
        if container.has_rootfs
            && let Err(error) = rootfs::unmount_all(&container.bundle.join("rootfs"))
        {
            self.warn(&format!("container {id}: unmount its root: {error}"));
        }
        for call in container.init.waiters.iter().chain(container.execs.values().flat_map(|exec| &exec.waiters)) {
            self.reply(*call, Err(Failure::not_found("container not created")));
        }
        for (call, _) in container.deferred {
            self.reply(call, Err(Failure::not_found("container not created")));
        }
    }
}

/// The failure of a call for which the runtime gives `reason`.
fn failure_of(kind: &Kind, reason: &str) -> Failure {
    let what = match kind {
        Kind::Create(_) => "OCI runtime create failed",
        Kind::Start => "OCI runtime start failed",
        Kind::Exec => "OCI runtime exec failed",
        Kind::Delete => "failed to delete task",
        Kind::Pause => "OCI runtime pause failed",
        Kind::Resume => "OCI runtime resume failed",
        Kind::Update => "OCI runtime update failed",
        Kind::Quiet => "OCI runtime failed",
        Kind::Kill => return kill_failure(reason),
    };
    Failure::unknown(format!("{what}: {reason}"))
}

/// The messages of containerd's shim for a signal that could not be sent.
fn kill_failure(reason: &str) -> Failure {
    let lower = reason.to_lowercase();
    if ["process already finished", "container not running", "no such process"]
        .iter()
        .any(|words| lower.contains(words))
    {
        Failure::not_found("process already finished")
    } else if lower.contains("does not exist") {
        Failure::not_found("no such container")
    } else {
        Failure::unknown(format!("unknown error after kill: {reason}"))
    }
}

fn ending(status: WaitStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exit status {code}"),
        (None, Some(signal)) => format!("signal {signal}"),
        (None, None) => "it did not exit".to_owned(),
    }
}

fn read_pid(path: &Path) -> Result<u32, Failure> {
    let text = fs::read_to_string(path);
    let text =
        text.map_err(|error| Failure::unknown(format!("failed to retrieve OCI runtime container pid: {error}")))?;
    text.trim().parse().map_err(|_| Failure::unknown(format!("{} contains no process id: {text:?}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_to_what_has_ended_is_not_found() {
        for (reason, code) in [
            ("container not running", 5),
            ("os: process already finished", 5),
            ("container does not exist", 5),
            ("operation not permitted", 2),
        ] {
            assert_eq!(kill_failure(reason).code, code, "{reason}");
        }
    }
}
