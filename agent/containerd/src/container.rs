//! Calls to containerd about containers and their tasks; the worker decides which calls to make.
//!
//! For sequence and pitfalls see `docs/containerd.md`, "Start of a container". Every call that stops or deletes
//! something treats `NotFound` as success.

mod layers;
mod recorded_exit;
pub mod runtime;
mod update;
mod view;

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use containerd_client::services::v1::containers_client::ContainersClient;
use containerd_client::services::v1::snapshots::snapshots_client::SnapshotsClient;
use containerd_client::services::v1::snapshots::{PrepareSnapshotRequest, RemoveSnapshotRequest};
use containerd_client::services::v1::tasks_client::TasksClient;
use containerd_client::services::v1::{
    Container, CreateContainerRequest, CreateTaskRequest, DeleteContainerRequest, DeleteTaskRequest,
    GetContainerRequest, GetRequest, KillRequest, ListContainersRequest, ListTasksRequest, StartRequest, WaitRequest,
};
use containerd_client::types::Mount as SnapshotMount;
use containerd_client::types::v1::{Process, Status as TaskStatus};
use jiff::Timestamp;
use prost_types::Any;
use tonic::Code;

use self::runtime::RuntimeClass;
use super::attach::AttachPoint;
use super::client::Client;
use super::error::{RuntimeError, none_if_missing};
use super::logger_scan::LoggerScan;
use super::record;
use super::start_leases::StartLeases;
use limpet_host::call_watch::calling;
use limpet_host::orphan_processes;
use limpet_model::container::{ContainerId, ContainerIdentity, FoundContainer, Recorded, Task};

const SPEC_TYPE_URL: &str = "types.containerd.io/opencontainers/runtime-spec/1/Spec";

#[derive(Debug, Clone)]
pub struct ContainersConfig {
    pub snapshotter: String,
    /// The OCI runtime's binary; `None`: the shim's default.
    pub runtime_binary: Option<PathBuf>,
    /// Whether the systemd cgroup driver is used.
    pub systemd_cgroup: bool,
    /// The directory of containers' terminals.
    pub attach_dir: PathBuf,
    /// limpet's shim, absolute; `None`: containerd's for runc.
    pub shim: Option<PathBuf>,
    /// The directory in which limpet's shim records containers' exits.
    pub exit_dir: PathBuf,
}

/// The streams of a container's process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TaskStreams {
    /// Its logger: [`limpet_log::config::uri`].
    pub log_uri: String,
    /// Whether it has a terminal.
    pub tty: bool,
    /// The FIFO of its input; `None` if it has none.
    pub input: Option<AttachPoint>,
}

impl TaskStreams {
    /// Holds the input open while the task is created and started; with a terminal only the shim holds it.
    ///
    /// # Errors
    ///
    /// The FIFO cannot be opened.
    pub fn hold_input(&self) -> std::io::Result<Option<OwnedFd>> {
        self.input.as_ref().filter(|_| !self.tty).map(AttachPoint::hold).transpose()
    }
}

/// The root file system for a new container.
#[derive(Debug)]
pub enum Rootfs {
    /// The mounts of a fresh snapshot.
    Fresh(Vec<SnapshotMount>),
    /// The container was already created and started; this is its task.
    InUse(Task),
}

#[derive(Debug)]
pub struct NewContainer<'a> {
    pub id: &'a ContainerId,
    /// The pod and container it belongs to.
    pub identity: &'a ContainerIdentity,
    /// The pod's manifest.
    pub manifest: &'a [u8],
    pub image: &'a str,
    /// The pod's runtime class, if it has one.
    pub class: Option<&'a RuntimeClass>,
    /// Whether it has an input and no terminal, see [`crate::stdin`]. Its runtime is then
    /// [`RUNC_SHIM`](runtime::RUNC_SHIM).
    pub input: bool,
    /// Its OCI spec, as JSON.
    pub spec: Vec<u8>,
}

/// Container, task, snapshot and lease calls. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Containers {
    pub(super) client: Client,
    config: ContainersConfig,
    pub(super) leases: StartLeases,
    pub(crate) loggers: Arc<LoggerScan>,
}

impl Containers {
    /// Calls over `client`.
    pub fn new(client: Client, config: ContainersConfig) -> Self {
        Self { client, config, leases: StartLeases::default(), loggers: Arc::default() }
    }

    fn containers(&self) -> ContainersClient<tonic::transport::Channel> {
        ContainersClient::new(self.client.channel()).max_decoding_message_size(64 << 20)
    }

    fn tasks(&self) -> TasksClient<tonic::transport::Channel> {
        TasksClient::new(self.client.channel()).max_decoding_message_size(64 << 20)
    }

    fn snapshots(&self) -> SnapshotsClient<tonic::transport::Channel> {
        SnapshotsClient::new(self.client.channel())
    }

    /// Lists every container of limpet's with its task. Containers whose record cannot be read are returned
    /// separately.
    pub async fn list(&self) -> Result<(Vec<FoundContainer>, Vec<(ContainerId, String)>), RuntimeError> {
        let containers = self.records().await?;
        let tasks = self
            .tasks()
            .list(self.client.call("Tasks.List", ListTasksRequest { filter: String::new() }))
            .await
            .map_err(|status| RuntimeError::from_status("Tasks.List", "the node", status))?
            .into_inner()
            .tasks;
        let snapshots = self.active_snapshots().await?;
        let mut tasks: HashMap<String, Task> = tasks.iter().map(|process| (task_id(process), task(process))).collect();
        let lost = containers.iter().map(|(id, _)| id).filter(|id| is_lost(tasks.get(id.as_str())));
        for (id, ended) in self.recorded_exits(lost.cloned().collect()).await {
            tasks.insert(id.as_str().to_owned(), ended);
        }
        let (mut readable, mut unreadable) = (Vec::new(), Vec::new());
        for (id, recorded) in containers {
            match recorded {
                Ok(recorded) => {
                    let (task, has_snapshot) = (tasks.remove(id.as_str()), snapshots.contains(id.as_str()));
                    readable.push(FoundContainer { id, recorded, task, has_snapshot });
                }
                Err(reason) => unreadable.push((id, reason)),
            }
        }
        Ok((readable, unreadable))
    }

    /// The records of limpet's containers, or why one cannot be read. They are streamed one by one: each has its
    /// pod's manifest, so a single answer may exceed containerd's limit for messages.
    async fn records(&self) -> Result<Vec<(ContainerId, Result<Recorded, String>)>, RuntimeError> {
        let failed = |status| RuntimeError::from_status("Containers.ListStream", "the node", status);
        let filters = vec![format!("labels.\"{}\"==container", record::LABEL_MANAGED)];
        let request = self.client.call("Containers.ListStream", ListContainersRequest { filters });
        let mut stream = self.containers().list_stream(request).await.map_err(failed)?.into_inner();
        let mut records = Vec::new();
        while let Some(message) = stream.message().await.map_err(failed)? {
            let Some(container) = message.container else { continue };
            records.push((ContainerId::new(container.id.as_str()), record::recorded(&container.extensions)));
        }
        Ok(records)
    }

    pub async fn task(&self, id: &ContainerId) -> Result<Option<Task>, RuntimeError> {
        let task = self.task_process(id).await?.map(|process| task(&process));
        if !is_lost(task.as_ref()) {
            return Ok(task);
        }
        Ok(self.recorded_exits(vec![id.clone()]).await.pop().map(|(_, ended)| ended).or(task))
    }

    /// The task's stdout; `None` if there is no task.
    pub(crate) async fn stdout_uri(&self, id: &ContainerId) -> Result<Option<String>, RuntimeError> {
        Ok(self.task_process(id).await?.map(|process| process.stdout))
    }

    async fn task_process(&self, id: &ContainerId) -> Result<Option<Process>, RuntimeError> {
        let request =
            self.client.call("Tasks.Get", GetRequest { container_id: id.to_string(), exec_id: String::new() });
        let response = none_if_missing(self.tasks().get(request).await)
            .map_err(|status| RuntimeError::from_status("Tasks.Get", id.as_str(), status))?;
        Ok(response.and_then(|response| response.process))
    }

    /// The record of a container; `None` if it does not exist, or its record cannot be read.
    pub async fn recorded(&self, id: &ContainerId) -> Result<Option<Recorded>, RuntimeError> {
        let request = self.client.call("Containers.Get", GetContainerRequest { id: id.to_string() });
        let response = none_if_missing(self.containers().get(request).await)
            .map_err(|status| RuntimeError::from_status("Containers.Get", id.as_str(), status))?;
        let container = response.and_then(|response| response.container);
        Ok(container.and_then(|container| record::recorded(&container.extensions).ok()))
    }

    /// Creates a writable snapshot on top of the image. The snapshot of an earlier start that was interrupted or
    /// whose answer was lost is removed with everything that start has created, unless its process has run.
    pub async fn prepare_rootfs(&self, id: &ContainerId, chain_id: &str, lease: &str) -> Result<Rootfs, RuntimeError> {
        let request = || {
            let message = PrepareSnapshotRequest {
                snapshotter: self.config.snapshotter.clone(),
                key: id.to_string(),
                parent: chain_id.to_owned(),
                labels: HashMap::new(),
            };
            calling("Snapshots.Prepare");
            self.client.leased_request(message, lease)
        };
        let mut prepared = self.snapshots().prepare(request()).await;
        if matches!(&prepared, Err(status) if status.code() == Code::AlreadyExists) {
            match self.task(id).await? {
                None | Some(Task::Created) => {}
                Some(Task::Unknown { .. }) => {
                    let message = "the shim of an earlier start does not answer: its state is unknown".to_owned();
                    return Err(RuntimeError::Unavailable { call: "Tasks.Get", message });
                }
                Some(task) => return Ok(Rootfs::InUse(task)),
            }
            self.remove_never_ran(id).await?;
            prepared = self.snapshots().prepare(request()).await;
        }
        prepared
            .map(|response| Rootfs::Fresh(response.into_inner().mounts))
            .map_err(|status| RuntimeError::from_status("Snapshots.Prepare", id.as_str(), status))
    }

    /// Creates the container. An existing container with its id has never run, and is removed first.
    pub async fn create(&self, new: &NewContainer<'_>) -> Result<(), RuntimeError> {
        let input = new.input.then(|| self.attach_point(new.id).runtime_with_stdin());
        let input = input.filter(|_| !self.has_shim(new.class));
        let request = || CreateContainerRequest {
            container: Some(Container {
                id: new.id.to_string(),
                labels: record::labels(new.identity),
                image: new.image.to_owned(),
                runtime: Some(runtime::runtime(new.id, new.class, input.as_deref(), &self.config)),
                spec: Some(Any { type_url: SPEC_TYPE_URL.to_owned(), value: new.spec.clone() }),
                snapshotter: self.config.snapshotter.clone(),
                snapshot_key: new.id.to_string(),
                extensions: record::extensions(new.identity, new.manifest),
                ..Container::default()
            }),
        };
        let mut created = self.containers().create(self.client.call("Containers.Create", request())).await;
        if matches!(&created, Err(status) if status.code() == Code::AlreadyExists) {
            self.delete_task(new.id).await?;
            self.delete_container(new.id).await?;
            created = self.containers().create(self.client.call("Containers.Create", request())).await;
        }
        created.map(|_| ()).map_err(|status| RuntimeError::from_status("Containers.Create", new.id.as_str(), status))
    }

    /// The OCI runtime's binary for containers with this class: a path, or a program in the shim's `PATH`.
    pub fn runtime_binary(&self, class: Option<&RuntimeClass>) -> PathBuf {
        let binary = runtime::binary(class, &self.config);
        binary.map_or_else(|| PathBuf::from("runc"), Path::to_owned)
    }

    /// Whether containers with this class use limpet's shim.
    pub fn has_shim(&self, class: Option<&RuntimeClass>) -> bool {
        runtime::shim(class, &self.config).is_some()
    }

    pub fn attach_point(&self, id: &ContainerId) -> AttachPoint {
        AttachPoint::new(&self.config.attach_dir, id.as_str())
    }

    /// Creates the task: the shim mounts the root file system, starts the logger and calls `runc create`. Returns the
    /// first process's PID.
    pub async fn create_task(
        &self,
        id: &ContainerId,
        rootfs: Vec<SnapshotMount>,
        streams: &TaskStreams,
    ) -> Result<u32, RuntimeError> {
        let message = CreateTaskRequest {
            container_id: id.to_string(),
            rootfs,
            stdin: streams.input.as_ref().map(|at| at.stdin().to_string_lossy().into_owned()).unwrap_or_default(),
            stdout: streams.log_uri.clone(),
            // A terminal has only one output stream.
            stderr: if streams.tty { String::new() } else { streams.log_uri.clone() },
            terminal: streams.tty,
            ..CreateTaskRequest::default()
        };
        self.tasks()
            .create(self.client.call("Tasks.Create", message))
            .await
            .map(|response| response.into_inner().pid)
            .map_err(|status| RuntimeError::from_status("Tasks.Create", id.as_str(), status))
    }

    pub async fn start_task(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request =
            self.client.call("Tasks.Start", StartRequest { container_id: id.to_string(), exec_id: String::new() });
        self.tasks()
            .start(request)
            .await
            .map(|_| ())
            .map_err(|status| RuntimeError::from_status("Tasks.Start", id.as_str(), status))
    }

    /// Sends a signal to the init process, or to all processes of the container. Returns false if the process or the
    /// task does not exist.
    pub async fn kill(&self, id: &ContainerId, signal: u32, all: bool) -> Result<bool, RuntimeError> {
        let message = KillRequest { container_id: id.to_string(), exec_id: String::new(), signal, all };
        none_if_missing(self.tasks().kill(self.client.call("Tasks.Kill", message)).await)
            .map(|response| response.is_some())
            .map_err(|status| RuntimeError::from_status("Tasks.Kill", id.as_str(), status))
    }

    /// Deletes the task of a process that has exited. The exit must be in the container's record before.
    pub async fn delete_task(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = || self.client.call("Tasks.Delete", DeleteTaskRequest { container_id: id.to_string() });
        match none_if_missing(self.tasks().delete(request()).await) {
            Ok(_) => Ok(()),
            // A task that was created and never started must be killed before it can be deleted.
            Err(status) if status.code() == Code::FailedPrecondition => {
                self.kill(id, rustix::process::Signal::KILL.as_raw() as u32, true).await?;
                self.wait(id).await?;
                none_if_missing(self.tasks().delete(request()).await)
                    .map(|_| ())
                    .map_err(|status| RuntimeError::from_status("Tasks.Delete", id.as_str(), status))
            }
            Err(status) => Err(RuntimeError::from_status("Tasks.Delete", id.as_str(), status)),
        }
    }

    /// Waits until the init process has exited.
    pub(super) async fn wait(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request =
            self.client.call("Tasks.Wait", WaitRequest { container_id: id.to_string(), exec_id: String::new() });
        none_if_missing(self.tasks().wait(request).await)
            .map(|_| ())
            .map_err(|status| RuntimeError::from_status("Tasks.Wait", id.as_str(), status))
    }

    /// Removes the writable snapshot, which the record and the log of an exited container do not need.
    pub async fn remove_snapshot(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let message = RemoveSnapshotRequest { snapshotter: self.config.snapshotter.clone(), key: id.to_string() };
        none_if_missing(self.snapshots().remove(self.client.call("Snapshots.Remove", message)).await)
            .map(|_| ())
            .map_err(|status| RuntimeError::from_status("Snapshots.Remove", id.as_str(), status))
    }

    async fn delete_container(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        let request = self.client.call("Containers.Delete", DeleteContainerRequest { id: id.to_string() });
        none_if_missing(self.containers().delete(request).await)
            .map(|_| ())
            .map_err(|status| RuntimeError::from_status("Containers.Delete", id.as_str(), status))
    }

    /// Removes everything that an interrupted start has created, including the orphaned logger of a shim whose
    /// `Tasks.Create` was interrupted.
    pub async fn remove_never_ran(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.remove(id).await?;
        orphan_processes::end("CONTAINER_ID", id.as_str()).await;
        Ok(())
    }

    /// Removes a container whose process has exited: task, terminal, record, snapshot.
    pub async fn remove(&self, id: &ContainerId) -> Result<(), RuntimeError> {
        self.delete_task(id).await?;
        self.attach_point(id).remove();
        self.remove_recorded_exit(id);
        self.delete_container(id).await?;
        self.remove_snapshot(id).await
    }
}

/// Whether only a record of the shim can tell how the container ended.
fn is_lost(task: Option<&Task>) -> bool {
    matches!(task, None | Some(Task::Unknown { .. }))
}

fn task_id(process: &Process) -> String {
    // `List` fills `id`, `Get` fills `container_id` as well.
    if process.container_id.is_empty() { process.id.clone() } else { process.container_id.clone() }
}

fn task(process: &Process) -> Task {
    match TaskStatus::try_from(process.status).unwrap_or(TaskStatus::Unknown) {
        TaskStatus::Created => Task::Created,
        TaskStatus::Running | TaskStatus::Paused | TaskStatus::Pausing => Task::Running { pid: process.pid },
        TaskStatus::Stopped => {
            Task::Stopped { code: exit_code(process.exit_status), at: timestamp(process.exited_at.as_ref()) }
        }
        TaskStatus::Unknown => Task::Unknown { pid: process.pid },
    }
}

/// containerd's exit status as a Kubernetes exit code.
pub fn exit_code(status: u32) -> i32 {
    i32::try_from(status).unwrap_or(255)
}

/// Converts containerd's time; a missing one is the epoch.
pub fn timestamp(time: Option<&prost_types::Timestamp>) -> Timestamp {
    time.and_then(|time| Timestamp::new(time.seconds, time.nanos).ok()).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests;
