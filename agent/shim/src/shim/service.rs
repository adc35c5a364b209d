//! containerd's task service: handles each request, immediately if possible.

use std::os::fd::AsFd as _;
use std::path::{Component, Path, PathBuf};

use prost::Message as _;
use prost_types::Any;
use rustix::termios::{Winsize, tcsetwinsize};

use super::Shim;
use crate::cgroup::Cgroup;
use crate::failure::Failure;
use crate::messages::{
    ConnectResponse, ContainerRequest, CreateTaskRequest, Empty, ExecProcessRequest, KillRequest, PidsResponse,
    ProcessDetails, ProcessInfo, ProcessRequest, Request, ResizePtyRequest, StateResponse, StatsResponse,
    TaskExecAdded, UpdateTaskRequest, WaitResponse,
};
use crate::metrics;
use crate::process::{Call, Container, Key, Process, State};
use crate::signal;
use crate::stdio::Stdio;

/// The two versions of the service, which are alike.
const SERVICES: [&str; 2] = ["containerd.task.v2.Task", "containerd.task.v3.Task"];
/// The most requests that wait for one container.
const MAX_DEFERRED: usize = 256;
/// The most undeleted commands of a container.
const MAX_EXECS: usize = 4_096;
/// The longest id, as in containerd.
const MAX_ID: usize = 76;

/// The response, or `None` if it is sent later.
type Answer = Result<Option<Vec<u8>>, Failure>;

fn empty() -> Answer {
    Ok(Some(Vec::new()))
}

fn message(message: &impl prost::Message) -> Answer {
    Ok(Some(message.encode_to_vec()))
}

impl Shim {
    /// Answers a request, or arranges a later answer.
    pub(super) fn handle(&mut self, call: Call, request: Request) {
        if self.has_to_wait(&request) {
            let id = ContainerRequest::decode(&*request.payload).unwrap_or_default().id;
            if let Some(container) = self.containers.get_mut(&id) {
                if container.deferred.len() >= MAX_DEFERRED {
                    return self.reply(call, Err(Failure::exhausted("too many requests wait for the container")));
                }
                container.deferred.push((call, request));
            }
            return;
        }
        match self.answer(call, &request) {
            Ok(Some(payload)) => self.reply(call, Ok(payload)),
            Ok(None) => {}
            Err(failure) => self.reply(call, Err(failure)),
        }
    }

    /// Whether the runtime is changing the request's container.
    fn has_to_wait(&self, request: &Request) -> bool {
        let id = ContainerRequest::decode(&*request.payload).unwrap_or_default().id;
        let Some(container) = self.containers.get(&id) else { return false };
        let method = request.method.as_str();
        if container.init.state == State::Creating {
            return !matches!(method, "Create" | "Connect" | "Shutdown");
        }
        let exec = match method {
            "Start" | "Delete" | "Kill" | "Wait" | "ResizePty" | "CloseIO" => {
                ProcessRequest::decode(&*request.payload).unwrap_or_default().exec_id
            }
            _ => String::new(),
        };
        if exec.is_empty() {
            return container.busy && matches!(method, "Start" | "Delete" | "Pause" | "Resume" | "Update");
        }
        container.execs.get(&exec).is_some_and(|process| process.state == State::Starting)
    }

    fn answer(&mut self, call: Call, request: &Request) -> Answer {
        if !SERVICES.contains(&request.service.as_str()) {
            return Err(Failure::unimplemented(format!("service {}", request.service)));
        }
        let payload = &*request.payload;
        match request.method.as_str() {
            "State" => self.state(&ProcessRequest::decode(payload)?),
            "Create" => self.create(call, CreateTaskRequest::decode(payload)?),
            "Start" => self.start(call, &ProcessRequest::decode(payload)?),
            "Delete" => self.delete(call, &ProcessRequest::decode(payload)?),
            "Pids" => self.pids(&ContainerRequest::decode(payload)?.id),
            "Pause" => self.pause(call, &ContainerRequest::decode(payload)?.id),
            "Resume" => self.resume(call, &ContainerRequest::decode(payload)?.id),
            "Checkpoint" => Err(Failure::unimplemented(
                "checkpoint: limpet's shim does not save containers; use the runtime io.containerd.runc.v2",
            )),
            "Kill" => self.kill(call, &KillRequest::decode(payload)?),
            "Exec" => self.exec(ExecProcessRequest::decode(payload)?),
            "ResizePty" => self.resize(&ResizePtyRequest::decode(payload)?),
            "CloseIO" => self.close_input(&ProcessRequest::decode(payload)?),
            "Update" => self.update(call, UpdateTaskRequest::decode(payload)?),
            "Wait" => self.wait(call, &ProcessRequest::decode(payload)?),
            "Stats" => self.stats(&ContainerRequest::decode(payload)?.id),
            "Connect" => self.connect(&ContainerRequest::decode(payload)?.id),
            "Shutdown" => self.shutdown(),
            other => Err(Failure::unimplemented(format!("method {other}"))),
        }
    }

    fn container(&mut self, id: &str) -> Result<&mut Container, Failure> {
        self.containers.get_mut(id).ok_or_else(|| Failure::not_found("container not created"))
    }

    fn process(&mut self, request: &ProcessRequest) -> Result<&mut Process, Failure> {
        let missing = || Failure::not_found(format!("process does not exist {}", request.exec_id));
        self.container(&request.id)?.process_mut(&request.exec_id).ok_or_else(missing)
    }

    fn state(&mut self, request: &ProcessRequest) -> Answer {
        let container = self.container(&request.id)?;
        let bundle = container.bundle.to_string_lossy().into_owned();
        let paused = matches!(container.init.state, State::Pausing | State::Paused).then_some(container.init.state);
        let process = self.process(request)?;
        let Stdio { stdin, stdout, stderr, terminal } = process.stdio.clone();
        let id = if request.exec_id.is_empty() { request.id.clone() } else { request.exec_id.clone() };
        message(&StateResponse {
            id,
            bundle,
            pid: process.pid,
            // Processes in a paused container are paused, too.
            status: paused.filter(|_| process.runs()).unwrap_or(process.state).number(),
            stdin,
            stdout,
            stderr,
            terminal,
            exit_status: process.exit.map_or(0, |exit| exit.code),
            exited_at: process.exit.map(|exit| exit.timestamp()),
            exec_id: request.exec_id.clone(),
        })
    }

    fn create(&mut self, call: Call, request: CreateTaskRequest) -> Answer {
        check_id(&request.id)?;
        if self.containers.contains_key(&request.id) {
            return Err(Failure::exists(format!("container {}", request.id)));
        }
        if !request.checkpoint.is_empty() {
            return Err(Failure::unimplemented("limpet's shim does not restore checkpoints"));
        }
        let bundle = PathBuf::from(&request.bundle);
        if !bundle.is_absolute() || bundle.components().any(|part| part == Component::ParentDir) {
            return Err(Failure::invalid(format!("bundle {}", bundle.display())));
        }
        self.continue_serving()?;
        self.create_container(call, request, &bundle)?;
        Ok(None)
    }

    fn start(&mut self, call: Call, request: &ProcessRequest) -> Answer {
        let state = self.process(request)?.state;
        if state != State::Created {
            return Err(Failure::unknown(format!("cannot start a {} process", state.word())));
        }
        let key = Key { container: request.id.clone(), exec: request.exec_id.clone() };
        if key.is_init() {
            self.start_container(call, &key)?;
        } else {
            let container = self.container(&request.id)?;
            if container.init.state == State::Stopped || container.ended.is_some() {
                return Err(Failure::precondition(format!("container {} init process is not running", request.id)));
            }
            self.start_exec(call, &key)?;
        }
        Ok(None)
    }

    fn delete(&mut self, call: Call, request: &ProcessRequest) -> Answer {
        let process = self.process(request)?;
        if process.runs() {
            let state = process.state.word();
            return Err(Failure::precondition(format!("cannot delete a {state} process")));
        }
        if process.deleting.is_some() {
            return Err(Failure::precondition("the process is being deleted"));
        }
        let key = Key { container: request.id.clone(), exec: request.exec_id.clone() };
        self.begin_deletion(call, &key);
        Ok(None)
    }

    fn exec(&mut self, request: ExecProcessRequest) -> Answer {
        check_id(&request.exec_id)?;
        let container = self.container(&request.id)?;
        if container.execs.contains_key(&request.exec_id) {
            return Err(Failure::exists(format!("id {}", request.exec_id)));
        }
        match container.init.state {
            State::Paused | State::Pausing => return Err(Failure::unknown("cannot exec in a paused state")),
            State::Stopped => return Err(Failure::unknown("cannot exec in a stopped state")),
            _ if container.ended.is_some() => return Err(Failure::unknown("cannot exec in a stopped state")),
            _ if container.execs.len() >= MAX_EXECS => {
                return Err(Failure::exhausted("too many commands in the container"));
            }
            _ => {}
        }
        let ExecProcessRequest { id, exec_id, terminal, stdin, stdout, stderr, spec } = request;
        let mut process = Process::new(State::Created, Stdio { stdin, stdout, stderr, terminal });
        process.spec = Some(spec.ok_or_else(|| Failure::invalid("an exec without a process"))?);
        container.execs.insert(exec_id.clone(), process);
        self.publisher.publish("/tasks/exec-added", "TaskExecAdded", &TaskExecAdded { container_id: id, exec_id });
        empty()
    }

    fn pause(&mut self, call: Call, id: &str) -> Answer {
        let state = self.container(id)?.init.state;
        if state != State::Running {
            return Err(Failure::unknown(format!("cannot pause a {} container", state.word())));
        }
        self.change_container(call, id, "pause")?;
        Ok(None)
    }

    fn resume(&mut self, call: Call, id: &str) -> Answer {
        let state = self.container(id)?.init.state;
        if state != State::Paused {
            return Err(Failure::unknown(format!("cannot resume a {} container", state.word())));
        }
        self.change_container(call, id, "resume")?;
        Ok(None)
    }

    fn kill(&mut self, call: Call, request: &KillRequest) -> Answer {
        let named = ProcessRequest { id: request.id.clone(), exec_id: request.exec_id.clone() };
        let process = self.process(&named)?;
        let (pid, state) = (process.pid, process.state);
        if state == State::Stopped {
            return Err(Failure::not_found("process already finished"));
        }
        if pid == 0 {
            return Err(Failure::precondition("process not created"));
        }
        let container = self.container(&request.id)?;
        if container.ended.is_some() && request.exec_id.is_empty() {
            return Err(Failure::not_found("process already finished"));
        }
        // The end of the first process also ends the others, unless they are not in a PID namespace of its own.
        let reaches_all = !request.all || !container.shares_pids;
        let directly = container.runtime.runs_processes_of_the_host() && reaches_all && state != State::Paused;
        if request.exec_id.is_empty() && !directly {
            self.kill_container(Some(call), &request.id, request.signal, request.all)?;
            return Ok(None);
        }
        signal::send(pid, request.signal)?;
        empty()
    }

    fn resize(&mut self, request: &ResizePtyRequest) -> Answer {
        let named = ProcessRequest { id: request.id.clone(), exec_id: request.exec_id.clone() };
        let process = self.process(&named)?;
        let size = |number: u32| u16::try_from(number).unwrap_or(u16::MAX);
        let size = Winsize { ws_row: size(request.height), ws_col: size(request.width), ws_xpixel: 0, ws_ypixel: 0 };
        if let Some(console) = &process.streams.console {
            let resized = tcsetwinsize(console.as_fd(), size);
            resized.map_err(|error| Failure::unknown(format!("resize the terminal: {error}")))?;
        }
        empty()
    }

    fn close_input(&mut self, request: &ProcessRequest) -> Answer {
        self.process(request)?.streams.input_keeper = None;
        empty()
    }

    fn update(&mut self, call: Call, request: UpdateTaskRequest) -> Answer {
        if self.container(&request.id)?.init.state == State::Stopped {
            return Err(Failure::unknown("cannot update a stopped container"));
        }
        let resources = request.resources.ok_or_else(|| Failure::invalid("an update without resources"))?;
        self.update_container(call, &request.id, &resources.value)?;
        Ok(None)
    }

    fn wait(&mut self, call: Call, request: &ProcessRequest) -> Answer {
        let process = self.process(request)?;
        match process.exit {
            Some(exit) => message(&WaitResponse { exit_status: exit.code, exited_at: Some(exit.timestamp()) }),
            None => {
                process.waiters.push(call);
                Ok(None)
            }
        }
    }

    fn cgroup(&mut self, id: &str) -> Result<&Cgroup, Failure> {
        self.container(id)?.cgroup.as_ref().ok_or_else(|| Failure::not_found("cgroup does not exist"))
    }

    fn pids(&mut self, id: &str) -> Answer {
        let pids = self.cgroup(id)?.processes();
        let container = self.container(id)?;
        let info = |pid: u32| {
            let (exec_id, _) = container.execs.iter().find(|(_, process)| process.pid == pid)?;
            let details = ProcessDetails { exec_id: exec_id.clone() };
            Some(Any { type_url: "containerd.runc.v1.ProcessDetails".to_owned(), value: details.encode_to_vec() })
        };
        let processes = pids.into_iter().map(|pid| ProcessInfo { pid, info: info(pid) }).collect();
        message(&PidsResponse { processes })
    }

    fn stats(&mut self, id: &str) -> Answer {
        let stats = metrics::read(self.cgroup(id)?);
        message(&StatsResponse { stats: Some(stats) })
    }

    fn connect(&mut self, id: &str) -> Answer {
        let task_pid = self.containers.get(id).map_or(0, |container| container.init.pid);
        let version = env!("CARGO_PKG_VERSION").to_owned();
        message(&ConnectResponse { shim_pid: std::process::id(), task_pid, version })
    }

    /// Ends the shim once its last events are delivered, if it serves no container.
    fn shutdown(&mut self) -> Answer {
        if self.containers.is_empty() {
            self.begin_ending();
        }
        message(&Empty {})
    }
}

/// Checks an id, because it becomes part of file names.
fn check_id(id: &str) -> Result<(), Failure> {
    let valid = !id.is_empty()
        && id.len() <= MAX_ID
        && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && Path::new(id).components().all(|part| matches!(part, Component::Normal(_)));
    if valid { Ok(()) } else { Err(Failure::invalid(format!("identifier {id:?}"))) }
}

#[cfg(test)]
mod tests {
    use super::check_id;

    #[test]
    fn ids_are_names_of_files() {
        for id in ["c1", "exec-1_2.3", &"a".repeat(76)] {
            assert!(check_id(id).is_ok(), "{id}");
        }
        for id in ["", ".", "..", "a/b", "a b", &"a".repeat(77)] {
            assert!(check_id(id).is_err(), "{id}");
        }
    }
}
