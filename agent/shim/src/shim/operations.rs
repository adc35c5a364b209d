//! Prepares and starts calls of the OCI runtime. `completion` handles their ends.

use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::Shim;
use super::streams::Opened;
use crate::bundle::Spec;
use crate::console::ConsoleSocket;
use crate::failure::Failure;
use crate::logger_program::StartingLogger;
use crate::messages::{CreateTaskRequest, DeleteResponse, Mount, Options};
use crate::process::{Call, Container, Key, Process, State};
use crate::rootfs;
use crate::runtime::{self, Runtime};
use crate::stdio::Stdio;

/// The file with the id of a container's first process.
pub(super) const PID_FILE: &str = "init.pid";
/// How long a deletion waits for output that its client has not read.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// A running call of the runtime.
pub(super) struct Operation {
    pub(super) key: Key,
    pub(super) kind: Kind,
    pub(super) call: Option<Call>,
    pub(super) log: PathBuf,
    pub(super) console: Option<ConsoleSocket>,
    /// Where the output of its terminal goes, if that is a logger.
    pub(super) terminal_output: Option<OwnedFd>,
    /// The logger that the call waits for.
    logger: Option<StartingLogger>,
    /// An input file, which is removed afterwards.
    pub(super) input: Option<PathBuf>,
}

/// The purpose of a call.
pub(super) enum Kind {
    Create(Vec<Mount>),
    Start,
    Exec,
    Delete,
    Kill,
    Pause,
    Resume,
    Update,
    /// Nobody waits for its result.
    Quiet,
}

impl Operation {
    pub(super) fn new(key: &Key, kind: Kind, call: Option<Call>) -> Self {
        Self {
            key: key.clone(),
            kind,
            call,
            log: PathBuf::new(),
            console: None,
            terminal_output: None,
            logger: None,
            input: None,
        }
    }
}

impl Shim {
    /// Starts a call with the command that `command` builds, once the operation's logger is ready.
    pub(super) fn call_runtime(
        &mut self,
        mut operation: Operation,
        command: impl FnOnce(&Runtime, &runtime::Call<'_>) -> Command,
    ) -> Result<(), Failure> {
        self.last_operation += 1;
        let id = &operation.key.container;
        let container = self.containers.get(id).ok_or_else(|| Failure::not_found("container not created"))?;
        operation.log = container.bundle.join(format!("log-{}.json", self.last_operation));
        let about = runtime::Call { id, bundle: &container.bundle, log: &operation.log };
        let mut command = command(&container.runtime, &about);
        if let Some(logger) = operation.logger.take() {
            return self.call_after_logger(logger, operation, command);
        }
        self.spawn(operation, &mut command).map_err(|(_, failure)| failure)
    }

    /// Runs a call's command. Returns the operation if that fails.
    pub(super) fn spawn(
        &mut self,
        operation: Operation,
        command: &mut Command,
    ) -> Result<(), (Box<Operation>, Failure)> {
        match command.spawn() {
            // It is reaped with the shim's other children.
            Ok(child) => {
                self.operations.insert(child.id(), operation);
                Ok(())
            }
            Err(error) => {
                remove(operation.input.as_deref());
                let program = command.get_program().display().to_string();
                let failure = Failure::unknown(format!("cannot run the OCI runtime {program}: {error}"));
                Err((Box::new(operation), failure))
            }
        }
    }

    fn console_socket(&mut self) -> io::Result<ConsoleSocket> {
        self.last_operation += 1;
        // Beside the shim's own socket, whose path is short enough.
        let name = format!("{}-{}.pty", std::process::id(), self.last_operation);
        ConsoleSocket::listen(self.socket.with_file_name(name))
    }

    pub(super) fn create_container(
        &mut self,
        call: Call,
        request: CreateTaskRequest,
        bundle: &Path,
    ) -> Result<(), Failure> {
        let failed = |what: &str, error: &dyn std::fmt::Display| Failure::unknown(format!("{what}: {error}"));
        let options = match &request.options {
            Some(any) if !any.value.is_empty() => Options::decode(&*any.value)?,
            _ => Options::default(),
        };
        let runtime = Runtime::new(options, &self.namespace);
        runtime.record(bundle).map_err(|error| failed("record the runtime's options", &error))?;
        let spec = Spec::read(bundle).map_err(|error| failed("read the bundle's config.json", &error))?;
        let key = Key::init(&request.id);
        let CreateTaskRequest { rootfs, terminal, stdin, stdout, stderr, .. } = request;
        let stdio = Stdio { stdin, stdout, stderr, terminal };
        let root = bundle.join("rootfs");
        if !rootfs.is_empty() {
            make_directory(&root).map_err(|error| failed("make the root's mount point", &error))?;
            rootfs::mount_all(&rootfs, &root).map_err(|error| failed("failed to mount rootfs component", &error))?;
        }
        let container = Container {
            bundle: bundle.to_owned(),
            init: Process::new(State::Creating, stdio.clone()),
            execs: std::collections::BTreeMap::new(),
            has_rootfs: !rootfs.is_empty(),
            shares_pids: spec.shares_pids(),
            exit_file: runtime.exit_file(bundle),
            start_fifo: if spec.has_poststart_hooks() { None } else { runtime.start_fifo(&request.id) },
            runtime,
            cgroup: None,
            oom: None,
            oom_kills: 0,
            busy: true,
            deferred: Vec::new(),
            ended: None,
        };
        // Left by a container with the same id whose bundle was not removed.
        remove(Some(&container.exit_file));
        self.containers.insert(key.container.clone(), container);
        let started = self.run_create(call, &key, &stdio, rootfs);
        if started.is_err() {
            self.forget_container(&key.container);
        }
        started
    }

    fn run_create(&mut self, call: Call, key: &Key, stdio: &Stdio, rootfs: Vec<Mount>) -> Result<(), Failure> {
        let mut operation = Operation::new(key, Kind::Create(rootfs), Some(call));
        let process = self.prepare_streams(key, stdio, &mut operation)?;
        let pid_file = self.bundle(key).join(PID_FILE);
        let console = operation.console.as_ref().map(|console| console.path().to_owned());
        self.call_runtime(operation, |runtime, about| {
            let mut command = runtime.create(about, &pid_file, console.as_deref());
            if let Some(process) = process {
                command.stdin(process.stdin).stdout(process.stdout).stderr(process.stderr);
            }
            command
        })
    }

    /// Opens a process's streams, or the socket for its terminal.
    fn prepare_streams(
        &mut self,
        key: &Key,
        stdio: &Stdio,
        operation: &mut Operation,
    ) -> Result<Option<super::streams::ProcessStdio>, Failure> {
        let id = if key.is_init() { &key.container } else { &key.exec };
        let failed = |error: &io::Error| Failure::unknown(format!("failed to create init process I/O: {error}"));
        if stdio.terminal {
            if let Some((logger, output)) =
                self.start_terminal_logger(id, &stdio.stdout).map_err(|error| failed(&error))?
            {
                operation.logger = Some(logger);
                operation.terminal_output = Some(output);
            }
            let console = self.console_socket();
            let console = console
                .map_err(|error| Failure::unknown(format!("failed to create OCI runtime console socket: {error}")))?;
            operation.console = Some(console);
            return Ok(None);
        }
        let owner = self.containers.get(&key.container).map_or((0, 0), |container| container.runtime.pipe_owner());
        let Opened { streams, process, logger } =
            self.open_streams(id, stdio, owner).map_err(|error| failed(&error))?;
        operation.logger = logger;
        if let Some(process) = self.process_mut(key) {
            process.streams = streams;
        }
        self.watch_streams(key);
        Ok(Some(process))
    }

    pub(super) fn start_container(&mut self, call: Call, key: &Key) -> Result<(), Failure> {
        let fifo = self.containers.get(&key.container).and_then(|container| container.start_fifo.clone());
        if !fifo.is_some_and(|path| self.start_by_fifo(call, key, &path)) {
            let operation = Operation::new(key, Kind::Start, Some(call));
            self.call_runtime(operation, |runtime, about| runtime.plain(about, "start"))?;
        }
        if let Some(container) = self.containers.get_mut(&key.container) {
            container.busy = true;
        }
        Ok(())
    }

    pub(super) fn start_exec(&mut self, call: Call, key: &Key) -> Result<(), Failure> {
        let bundle = self.bundle(key);
        let process = self.process_mut(key).ok_or_else(|| Failure::not_found("process does not exist"))?;
        let stdio = process.stdio.clone();
        let spec = process.spec.as_ref().map(|spec| spec.value.clone()).unwrap_or_default();
        let spec =
            with_terminal(&spec, stdio.terminal).map_err(|error| Failure::invalid(format!("the process: {error}")))?;
        let mut operation = Operation::new(key, Kind::Exec, Some(call));
        let input = bundle.join(format!("{}.process.json", key.exec));
        fs::write(&input, spec).map_err(|error| Failure::unknown(format!("write {}: {error}", input.display())))?;
        operation.input = Some(input.clone());
        let process = match self.prepare_streams(key, &stdio, &mut operation) {
            Ok(process) => process,
            Err(failure) => {
                remove(Some(&input));
                return Err(failure);
            }
        };
        let pid_file = bundle.join(format!("{}.pid", key.exec));
        let console = operation.console.as_ref().map(|console| console.path().to_owned());
        let called = self.call_runtime(operation, |runtime, about| {
            let mut command = runtime.exec(about, &input, &pid_file, console.as_deref());
            if let Some(process) = process {
                command.stdin(process.stdin).stdout(process.stdout).stderr(process.stderr);
            }
            command
        });
        match (called, self.process_mut(key)) {
            (Ok(()), Some(process)) => process.state = State::Starting,
            (Err(failure), _) => {
                self.close_streams(key);
                return Err(failure);
            }
            (Ok(()), None) => {}
        }
        Ok(())
    }

    /// `pause` or `resume`.
    pub(super) fn change_container(&mut self, call: Call, id: &str, verb: &'static str) -> Result<(), Failure> {
        let (kind, state) = match verb {
            "pause" => (Kind::Pause, State::Pausing),
            _ => (Kind::Resume, State::Paused),
        };
        let operation = Operation::new(&Key::init(id), kind, Some(call));
        self.call_runtime(operation, |runtime, about| runtime.plain(about, verb))?;
        if let Some(container) = self.containers.get_mut(id) {
            container.busy = true;
            container.init.state = state;
        }
        Ok(())
    }

    pub(super) fn kill_container(
        &mut self,
        call: Option<Call>,
        id: &str,
        signal: u32,
        all: bool,
    ) -> Result<(), Failure> {
        let kind = if call.is_some() { Kind::Kill } else { Kind::Quiet };
        self.call_runtime(Operation::new(&Key::init(id), kind, call), |runtime, about| runtime.kill(about, signal, all))
    }

    pub(super) fn update_container(&mut self, call: Call, id: &str, resources: &[u8]) -> Result<(), Failure> {
        let key = Key::init(id);
        self.last_operation += 1;
        let input = self.bundle(&key).join(format!("resources-{}.json", self.last_operation));
        fs::write(&input, resources)
            .map_err(|error| Failure::unknown(format!("write {}: {error}", input.display())))?;
        let mut operation = Operation::new(&key, Kind::Update, Some(call));
        operation.input = Some(input.clone());
        self.call_runtime(operation, |runtime, about| runtime.update(about, &input))?;
        if let Some(container) = self.containers.get_mut(id) {
            container.busy = true;
        }
        Ok(())
    }

    /// Calls the runtime again for a container, whatever the result.
    pub(super) fn call_quietly(&mut self, id: &str, verb: &'static str) {
        let operation = Operation::new(&Key::init(id), Kind::Quiet, None);
        if let Err(failure) = self.call_runtime(operation, |runtime, about| runtime.plain(about, verb)) {
            self.warn(&format!("container {id}: {verb}: {failure}"));
        }
    }

    /// Deletes a process that has ended, once its output was passed on.
    pub(super) fn begin_deletion(&mut self, call: Call, key: &Key) {
        if let Some(process) = self.process_mut(key) {
            process.deleting = Some((call, Instant::now() + LAST_OUTPUT));
        }
        for index in 1..3 {
            self.advance_transfer(key, index);
        }
        let waits = |process: &mut Process| process.deleting.is_some() && process.streams.awaits_reader();
        if !self.process_mut(key).is_some_and(waits) {
            self.finish_deletion(key);
        }
    }

    pub(super) fn finish_deletion(&mut self, key: &Key) {
        let Some((call, _)) = self.process_mut(key).and_then(|process| process.deleting.take()) else { return };
        if key.is_init() {
            let operation = Operation::new(key, Kind::Delete, Some(call));
            match self.call_runtime(operation, |runtime, about| runtime.plain(about, "delete")) {
                Ok(()) => {
                    if let Some(container) = self.containers.get_mut(&key.container) {
                        container.busy = true;
                    }
                }
                Err(failure) => self.reply(call, Err(failure)),
            }
            return;
        }
        self.close_streams(key);
        let Some(container) = self.containers.get_mut(&key.container) else { return };
        remove(Some(&container.bundle.join(format!("{}.pid", key.exec))));
        let Some(process) = container.execs.remove(&key.exec) else { return };
        self.reply_with(call, &deletion_of(&process));
    }

    pub(super) fn bundle(&self, key: &Key) -> PathBuf {
        self.containers.get(&key.container).map(|container| container.bundle.clone()).unwrap_or_default()
    }
}

pub(super) fn deletion_of(process: &Process) -> DeleteResponse {
    DeleteResponse {
        pid: process.pid,
        exit_status: process.exit.map_or(0, |exit| exit.code),
        exited_at: process.exit.map(|exit| exit.timestamp()),
    }
}

fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    match fs::DirBuilder::new().mode(0o711).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// Removes a file that may not exist.
pub(super) fn remove(path: Option<&Path>) {
    // A file that stays is removed with the bundle.
    let _ = path.map(fs::remove_file);
}

/// The OCI process `spec` with or without a terminal, as requested; other fields are unchanged.
fn with_terminal(spec: &[u8], terminal: bool) -> serde_json::Result<Vec<u8>> {
    let mut process: std::collections::BTreeMap<&str, &serde_json::value::RawValue> = serde_json::from_slice(spec)?;
    let value: &serde_json::value::RawValue = serde_json::from_str(if terminal { "true" } else { "false" })?;
    process.insert("terminal", value);
    serde_json::to_vec(&process)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_request_decides_whether_there_is_a_terminal() {
        let made = |spec: &[u8], terminal| String::from_utf8(with_terminal(spec, terminal).unwrap()).unwrap();
        assert_eq!(made(br#"{"terminal":true,"args":["a", 1.0]}"#, false), r#"{"args":["a", 1.0],"terminal":false}"#);
        assert_eq!(made(br#"{}"#, true), r#"{"terminal":true}"#);
        assert!(with_terminal(b"[]", true).is_err());
    }
}
