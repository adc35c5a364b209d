//! Runs a command in a running container, for `limpet exec`, kubelet's `/exec`, exec probes and hooks.
//!
//! The process's streams go through FIFOs that containerd's shim opens. A session always cleans up: its task waits
//! for the process's exit, or kills it once the session is dropped, and then deletes the process in containerd and
//! the FIFOs. [`sweep`] removes the orphaned sessions of an agent that was killed.

pub(crate) mod fifo;
mod process;
mod run;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{
    CloseIoRequest, DeleteProcessRequest, ExecProcessRequest, GetContainerRequest, KillRequest, ResizePtyRequest,
    StartRequest, WaitRequest,
};
use futures_util::future::join_all;
use prost_types::Any;
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::oneshot;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use tonic::{Code, Status};

use self::fifo::{FifoEnds, Fifos};
pub use self::run::CappedOutput;
use super::client::Client;
use super::error::{RuntimeError, none_if_missing};

/// containerd's type for an OCI process.
const PROCESS_TYPE: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
/// How long a killed process may take to exit. After that it is left running until the container exits.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
const SIGKILL: u32 = 9;

/// The command and its container. User, environment and working directory are the container's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExecRequest {
    /// The container's id in containerd.
    pub container_id: String,
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Whether it gets a terminal: one output stream, and a size.
    pub tty: bool,
    /// Whether its input is connected; otherwise it reads from nothing.
    pub stdin: bool,
}

/// Why a command did not run, or its exit is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The container does not exist or is not running.
    #[error("container {container} is not running")]
    NotRunning { container: String },
    /// The command cannot be started in this container.
    #[error("{message}")]
    NotStarted {
        /// A shell's exit code: 127 for a command that was not found, 126 for one that cannot be executed.
        exit_code: i32,
        /// The OCI runtime's message.
        message: String,
    },
    /// No command was given.
    #[error("no command was given")]
    NoCommand,
    /// The FIFOs cannot be created.
    #[error("create the pipes of a command in {}: {source}", path.display())]
    Pipes {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// This agent cannot read the container's spec.
    #[error("read the spec of container {container}: {message}")]
    Spec { container: String, message: String },
    /// containerd failed.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// The agent's shutdown closed the session before the process exited.
    #[error("the command was killed with its session")]
    Ended,
}

/// A running command. Dropping it kills the process if it still runs, and cleans up.
///
/// The streams are public so that a separate future can serve each. The output is complete when both receivers have
/// ended; the session must live until then.
#[derive(Debug)]
pub struct ExecSession {
    /// The process's input, if requested. To close it, drop the sender, then call [`ExecControl::close_stdin`].
    pub stdin: Option<Sender>,
    /// Its output, or its terminal's.
    pub stdout: Receiver,
    /// Its stderr; `None` with a terminal.
    pub stderr: Option<Receiver>,
    pub control: ExecControl,
    pub exit: ExecExit,
}

/// Identifies one process in a container; without an id, the container's own.
#[derive(Debug, Clone)]
pub struct ExecControl {
    client: Client,
    container: String,
    id: String,
}

/// The exit of a process. Keeps the session alive.
#[derive(Debug)]
pub struct ExecExit {
    code: oneshot::Receiver<Result<i32, ExecError>>,
    _alive: DropGuard,
}

/// Runs a command in a container, with its FIFOs in a new directory below `fifo_dir`.
///
/// # Errors
///
/// See [`ExecError`]; everything has been cleaned up.
pub async fn start(client: &Client, fifo_dir: &Path, request: ExecRequest) -> Result<ExecSession, ExecError> {
    if request.command.is_empty() {
        return Err(ExecError::NoCommand);
    }
    let ExecRequest { container_id: container, command, tty, stdin } = request;
    let process = container_process(client, &container, &command, tty).await?;
    let control = ExecControl { client: client.clone(), container, id: new_id() };
    let (fifos, ends) = Fifos::make(fifo_dir, &control.id, &control.container, stdin, !tty)
        .map_err(|source| ExecError::Pipes { path: fifo_dir.to_owned(), source })?;
    // From here on the task cleans up, even if this future is dropped.
    let alive = CancellationToken::new();
    let guard = alive.clone().drop_guard();
    let (started, is_started) = oneshot::channel();
    let (ended, code) = oneshot::channel();
    let create = ExecProcessRequest {
        container_id: control.container.clone(),
        exec_id: control.id.clone(),
        stdin: fifos.path("stdin", stdin),
        stdout: fifos.path("stdout", true),
        stderr: fifos.path("stderr", !tty),
        terminal: tty,
        spec: Some(Any { type_url: PROCESS_TYPE.to_owned(), value: process }),
    };
    tokio::spawn(supervise(control.clone(), fifos, create, started, ended, alive));
    is_started.await.unwrap_or(Err(ExecError::Ended))?;
    let FifoEnds { stdin, stdout, stderr } = ends;
    Ok(ExecSession { stdin, stdout, stderr, control, exit: ExecExit { code, _alive: guard } })
}

/// Creates, awaits and deletes a process in containerd. Returns soon after the session has cancelled `alive`.
async fn supervise(
    control: ExecControl,
    fifos: Fifos,
    create: ExecProcessRequest,
    started: oneshot::Sender<Result<(), ExecError>>,
    ended: oneshot::Sender<Result<i32, ExecError>>,
    alive: CancellationToken,
) {
    match control.start(create).await {
        Err(error) => {
            // The receiver may be gone.
            let _ = started.send(Err(error));
        }
        Ok(()) => {
            // If the session was dropped meanwhile, `alive` is cancelled.
            let _ = started.send(Ok(()));
            tokio::select! {
                code = control.wait() => {
                    let _ = ended.send(code);
                    // containerd discards unread output when the process is deleted.
                    alive.cancelled().await;
                }
                () = alive.cancelled() => control.end().await,
            }
        }
    }
    control.delete().await;
    fifos.remove();
}

impl ExecExit {
    /// Waits for the process's exit and returns its exit code, or 128 plus the signal's number. May be dropped and
    /// called again until it has returned.
    ///
    /// # Errors
    ///
    /// containerd does not report the exit.
    pub async fn wait(&mut self) -> Result<i32, ExecError> {
        (&mut self.code).await.unwrap_or(Err(ExecError::Ended))
    }
}

impl ExecControl {
    /// Controls the container's own process.
    pub fn of_container(client: &Client, container: &str) -> Self {
        Self { client: client.clone(), container: container.to_owned(), id: String::new() }
    }

    /// Closes the process's input, after the sender was dropped.
    ///
    /// # Errors
    ///
    /// containerd refuses; a process that has exited is not an error.
    pub async fn close_stdin(&self) -> Result<(), ExecError> {
        let message = CloseIoRequest { container_id: self.container.clone(), exec_id: self.id.clone(), stdin: true };
        let closed = self.tasks().close_io(self.client.request(message)).await;
        self.ignore_exited("Tasks.CloseIO", closed)
    }

    /// Sets the terminal's size in characters.
    ///
    /// # Errors
    ///
    /// containerd refuses; a process that has exited is not an error.
    pub async fn resize(&self, width: u16, height: u16) -> Result<(), ExecError> {
        let message = ResizePtyRequest {
            container_id: self.container.clone(),
            exec_id: self.id.clone(),
            width: width.into(),
            height: height.into(),
        };
        let resized = self.tasks().resize_pty(self.client.request(message)).await;
        self.ignore_exited("Tasks.ResizePty", resized)
    }

    /// Sends a signal, by number.
    ///
    /// # Errors
    ///
    /// containerd refuses; a process that has exited is not an error.
    pub async fn signal(&self, signal: u32) -> Result<(), ExecError> {
        let message =
            KillRequest { container_id: self.container.clone(), exec_id: self.id.clone(), signal, all: false };
        let sent = self.tasks().kill(self.client.request(message)).await;
        self.ignore_exited("Tasks.Kill", sent)
    }

    fn tasks(&self) -> TasksClient<tonic::transport::Channel> {
        TasksClient::new(self.client.channel())
    }

    async fn start(&self, create: ExecProcessRequest) -> Result<(), ExecError> {
        let mut tasks = self.tasks();
        let created = tasks.exec(self.client.request(create)).await;
        created.map_err(|status| self.judge("Tasks.Exec", status))?;
        let message = StartRequest { container_id: self.container.clone(), exec_id: self.id.clone() };
        tasks.start(self.client.request(message)).await.map_err(|status| self.judge("Tasks.Start", status))?;
        Ok(())
    }

    /// For an exited process that is not deleted yet containerd answers immediately, so no exit is missed.
    async fn wait(&self) -> Result<i32, ExecError> {
        let message = WaitRequest { container_id: self.container.clone(), exec_id: self.id.clone() };
        let mut request = self.client.request(message);
        // The call lasts as long as the process.
        request.metadata_mut().remove("grpc-timeout");
        let ended = self.tasks().wait(request).await.map_err(|status| self.judge("Tasks.Wait", status))?;
        Ok(i32::try_from(ended.into_inner().exit_status).unwrap_or(-1))
    }

    /// Kills the process and waits until it has exited.
    async fn end(&self) {
        if let Err(error) = self.signal(SIGKILL).await {
            tracing::debug!(container = self.container, %error, "killing a command without a client failed");
        }
        // If it does not exit, deleting it fails, and it ends with its container.
        let _ = timeout(KILL_TIMEOUT, self.wait()).await;
    }

    async fn delete(&self) {
        let message = DeleteProcessRequest { container_id: self.container.clone(), exec_id: self.id.clone() };
        if let Err(status) = none_if_missing(self.tasks().delete_process(self.client.request(message)).await) {
            tracing::debug!(container = self.container, error = %status, "deleting a command's record in containerd failed");
        }
    }

    fn ignore_exited<T>(
        &self,
        call: &'static str,
        result: Result<tonic::Response<T>, Status>,
    ) -> Result<(), ExecError> {
        match result {
            Err(status) if matches!(status.code(), Code::NotFound | Code::FailedPrecondition) => Ok(()),
            // The shim's message when the process exited before the call.
            Err(status) if status.message().contains("process already finished") => Ok(()),
            Err(status) => Err(self.judge(call, status)),
            Ok(_) => Ok(()),
        }
    }

    fn judge(&self, call: &'static str, status: Status) -> ExecError {
        if let Some((exit_code, message)) = process::not_started(status.message()) {
            return ExecError::NotStarted { exit_code, message: message.to_owned() };
        }
        match status.code() {
            Code::NotFound | Code::FailedPrecondition => ExecError::NotRunning { container: self.container.clone() },
            // The shim's and runc's messages for a container that has exited: `in a stopped state`, `container`.
            _ if status.message().contains("cannot exec in a stopped") => {
                ExecError::NotRunning { container: self.container.clone() }
            }
            _ => RuntimeError::from_status(call, &self.container, status).into(),
        }
    }
}

/// Builds the command's process from the container's spec.
async fn container_process(
    client: &Client,
    container: &str,
    command: &[String],
    tty: bool,
) -> Result<Vec<u8>, ExecError> {
    let request = client.request(GetContainerRequest { id: container.to_owned() });
    let answer = ContainersClient::new(client.channel()).get(request).await;
    let answer =
        none_if_missing(answer).map_err(|status| RuntimeError::from_status("Containers.Get", container, status))?;
    let not_running = || ExecError::NotRunning { container: container.to_owned() };
    let spec = answer.and_then(|answer| answer.container).ok_or_else(not_running)?.spec.unwrap_or_default();
    process::process(&spec.value, command, tty)
        .map_err(|message| ExecError::Spec { container: container.to_owned(), message })
}

/// An exec id that is unique in the container, even across restarts of the agent.
pub(crate) fn new_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("exec-{:x}-{:x}", now.as_nanos(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// Kills the orphaned commands of an agent that was killed, concurrently, and removes their FIFOs. Call it once,
/// before the first [`start`].
pub async fn sweep(client: &Client, fifo_dir: &Path) {
    let ends = fifo::orphans(fifo_dir).into_iter().map(|(id, container, fifos)| async move {
        let _readers = fifos.reopen();
        if !container.is_empty() {
            let control = ExecControl { client: client.clone(), container, id };
            let ended = async {
                control.end().await;
                control.delete().await;
            };
            if timeout(KILL_TIMEOUT, ended).await.is_err() {
                tracing::warn!(
                    container = control.container,
                    "ending a command of the previous agent timed out; it runs until its container ends"
                );
            }
        }
        fifos.remove();
    });
    join_all(ends).await;
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
