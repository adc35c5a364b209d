//! The start of a container: the calls in their order (`docs/containerd.md`, "Start of a container").

mod devices;
mod ephemeral;
mod failed;
mod image_volumes;
mod instance;
mod labels;
mod spec_parts;
mod streams;
mod users;

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use containerd_client::types::Mount as SnapshotMount;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Container;
use tokio::time::Instant;

pub(super) use self::failed::START_ERROR;
use self::failed::{START_ERROR_CODE, StartFailure, config_error, is_lost_mount, is_stale_bundle, refused, run_error};
pub(super) use self::users::map_layers;
use super::permit::with_permit;
use super::{ContainerdExecutor, ended_state, sandbox_of};
use limpet_containerd::container::{NewContainer, Rootfs, TaskStreams};
use limpet_containerd::error::RuntimeError;
use limpet_containerd::snapshot_mount;
use limpet_containerd::spec::{ContainerCpus, ProcessUser};
use limpet_containerd::user::{self, UserRequest, read_accounts};
use limpet_core::adopt::observed_exit;
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::state::{ContainerSlot, ImageState, Instance, Life, PodSandbox, PodState};
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::call_watch::calling;
use limpet_host::{clock, orphan_processes, process};
use limpet_model::container::{ContainerId, ContainerState, ContainerUser, Exit, Recorded, Task};
use limpet_model::device_allocation::DeviceAllocation;
use limpet_model::image::LocalImage;
use limpet_model::object::claim;
use limpet_model::selinux::ContainerLabels;
use limpet_model::stop_signal::StopSignal;
use limpet_telemetry::event::EventType;
use limpet_telemetry::metrics::ContainerType;

/// What one start is made from.
struct Start<'a> {
    pod: &'a PodState,
    slot: &'a ContainerSlot,
    container: &'a Container,
    image: &'a Arc<LocalImage>,
    sandbox: &'a Arc<PodSandbox>,
    id: ContainerId,
    attempt: u32,
    pause: Duration,
    stop_signal: StopSignal,
    /// What device plugins have given it.
    given: Vec<DeviceAllocation>,
    cpus: Option<ContainerCpus>,
    /// Who it runs as, once that is known.
    user: OnceLock<Arc<ContainerUser>>,
}

/// What runs after a start.
enum Ran {
    /// The process that was started.
    Now {
        /// In the host's pid namespace.
        pid: u32,
        /// How long its creation took.
        created: Duration,
    },
    /// A process that an earlier attempt had already started, perhaps of an earlier version.
    Before(Task, Option<Box<Recorded>>),
}

impl ContainerdExecutor {
    pub(super) async fn start(&self, pod: &PodState, index: usize) -> Outcome {
        let result = self.try_start(pod, index).await;
        match result {
            Err(failure) if is_stale_bundle(&failure, pod.containers[index].retry.as_ref()) => {
                let slot = &pod.containers[index];
                let id = pod.next_id(slot);
                if let Err(error) = self.containers.remove_never_ran(&id).await {
                    tracing::debug!(%error, container = %id, "leftovers of the failed start are removed with the pod");
                }
                tracing::warn!(pod = %pod.record.key, container = slot.name, "the container id is still in use in containerd; using another id");
                Outcome::IdTaken { index, failure }
            }
            result => Outcome::Started { index, result },
        }
    }

    async fn try_start(&self, pod: &PodState, index: usize) -> Result<Box<Instance>, Failure> {
        let slot = &pod.containers[index];
        let attempt = slot.next_attempt();
        let (Some(container), ImageState::Ready { image, .. }, Some(sandbox)) =
            (pod.container_spec(&slot.name), &slot.image, sandbox_of(pod))
        else {
            let message = format!("container {} was planned before its image and sandbox were ready", slot.name);
            return Err(Failure { reason: "CreateContainerError", message, transient: true });
        };
        let given = self.devices(pod, slot).await?;
        let start = Start {
            pod,
            slot,
            container,
            image,
            sandbox: &sandbox,
            id: pod.next_id(slot),
            attempt,
            pause: slot.next_pause().min(self.settings.restarts.max_pause),
            stop_signal: self.stop_signal(pod, slot, image),
            given,
            cpus: self.cpus_of(&pod.record.uid, &slot.name),
            user: OnceLock::new(),
        };
        let objects = Arc::clone(&pod.objects);
        let container_type = ContainerType::role(slot.role);
        let run = async {
            self.reporter.metrics.container_start_begun(container_type);
            let began = Instant::now();
            (began, self.timed("start_container", self.run(&start)).await)
        };
        let (began, ran) = with_permit(&self.starts, run).await;
        match ran {
            Ok(Ran::Now { pid, created }) => {
                self.started_on_cpus(&start.id, pod, slot, start.cpus.as_ref());
                Ok(Box::new(self.started(&start, pid, began, created).await))
            }
            Ok(Ran::Before(task, recorded)) => {
                self.started_on_cpus(&start.id, pod, slot, None);
                Ok(Box::new(self.started_before(&start, task, recorded, began).await))
            }
            Err(StartFailure::Before(mut failure)) => {
                failure.message = objects.redact(failure.message);
                self.reporter.metrics.container_start_failed(container_type, failure.reason);
                self.reporter.report_start_failure(pod, slot, failure.reason, &failure.message);
                Err(failure)
            }
            Err(StartFailure::Ended(message)) => {
                let message = objects.redact(message);
                self.reporter.metrics.container_start_failed(container_type, START_ERROR);
                self.reporter.report_start_failure(pod, slot, START_ERROR, &message);
                Ok(Box::new(self.start_error(&start, message).await))
            }
        }
    }

    /// The stop signal of its spec, or else the image's; SIGTERM if they specify none, or one that does not exist.
    fn stop_signal(&self, pod: &PodState, slot: &ContainerSlot, image: &LocalImage) -> StopSignal {
        let asked = pod.container_spec(&slot.name).and_then(|spec| spec.lifecycle.as_ref()?.stop_signal.as_deref());
        if let Some(signal) = asked.and_then(StopSignal::parse) {
            return signal;
        }
        let Some(text) = image.config.config().as_ref().and_then(|config| config.stop_signal().as_deref()) else {
            return StopSignal::default();
        };
        StopSignal::parse(text).unwrap_or_else(|| {
            let message = format!("the stop signal of image {} is none: {text:?}; SIGTERM is sent instead", image.name);
            tracing::warn!(pod = %pod.record.key, container = slot.name, message, "stop signal");
            self.reporter.event(pod, Some(&slot.name), EventType::Warning, "InvalidStopSignal", message);
            StopSignal::default()
        })
    }

    /// Makes snapshot, container, task and process, under a lease that is released whatever the result.
    async fn run(&self, start: &Start<'_>) -> Result<Ran, StartFailure> {
        let lease = self.containers.lease(&start.id).await.map_err(refused)?;
        let ran = self.run_leased(start, &lease).await;
        users::remove_copies(start).await;
        if !matches!(ran, Ok(Ran::Now { .. })) {
            self.release_lease(&lease).await;
        }
        ran
    }

    async fn run_leased(&self, start: &Start<'_>, lease: &str) -> Result<Ran, StartFailure> {
        let began = Instant::now();
        let prepared = self.containers.prepare_rootfs(&start.id, &start.image.chain_id, lease).await;
        let rootfs = match prepared.map_err(refused)? {
            Rootfs::Fresh(mounts) => {
                self.fill_image_volumes(start, &mounts).await?;
                users::rootfs(start, mounts).await?
            }
            Rootfs::InUse(task) => {
                let recorded = self.containers.recorded(&start.id).await.map_err(refused)?;
                return Ok(Ran::Before(task, recorded.map(Box::new)));
            }
        };
        self.mount_image_volumes(start.pod, start.container).await.map_err(StartFailure::Before)?;
        let user = self.user(start, &rootfs).await?;
        let recorded = ContainerUser { uid: user.uid, gid: user.gid, groups: user.additional_gids.clone() };
        start.user.get_or_init(|| Arc::new(recorded));
        let labels = self.labels(start).await?;
        let rootfs = match &labels {
            Some(labels) => snapshot_mount::labelled(rootfs, &labels.file),
            None => rootfs,
        };
        let spec = self.spec(start, user, labels).await?;
        let identity = self.identity(start);
        let new = NewContainer {
            id: &start.id,
            identity: &identity,
            manifest: &start.pod.record.manifest,
            image: &start.image.name,
            class: self.runtime_class(start.pod).map_err(config_error)?,
            input: streams::has_input(start),
            spec,
        };
        self.containers.create(&new).await.map_err(refused)?;
        let streams = self.streams(start, new.class)?;
        // Held until the process has been started, because by then the shim holds it open, too.
        let _input = streams.hold_input().map_err(|error| config_error(format!("open its input: {error}")))?;
        // The container holds its snapshot now, so the lease is released while the shim works.
        let ((), (), created) =
            tokio::join!(self.release_lease(lease), self.create_link(start), self.create_task(start, rootfs, &streams));
        let pid = created?;
        let created = began.elapsed();
        self.containers.start_task(&start.id).await.map_err(run_error)?;
        Ok(Ran::Now { pid, created })
    }

    /// Releases a start's lease. If that fails, it is tried once more, and then after containerd's next reconnection.
    async fn release_lease(&self, lease: &str) {
        let mut released = self.containers.release(lease).await;
        if released.is_err() {
            released = self.containers.release(lease).await;
        }
        if let Err(error) = released {
            tracing::debug!(%error, "cannot delete the lease of a start; it is deleted after the next reconnection");
        }
    }

    /// Builds its OCI spec in JSON. This accesses the files that it mounts, and those of the host on which the spec
    /// depends.
    async fn spec(
        &self,
        start: &Start<'_>,
        user: ProcessUser,
        labels: Option<Arc<ContainerLabels>>,
    ) -> Result<Vec<u8>, StartFailure> {
        let parts = self.gather_spec(start, user, labels).await?;
        calling("setting up the mounts");
        let built = blocking::run(parts.pod_dir.clone(), DEADLINE, move |progress| parts.build(progress));
        built.await.unwrap_or_else(|error| Err(error.to_string())).map_err(config_error)
    }

    /// The user of its first process, by the Pod's security context, the image's own `USER`, and the image's account
    /// files.
    async fn user(&self, start: &Start<'_>, rootfs: &[SnapshotMount]) -> Result<ProcessUser, StartFailure> {
        let image_user = start.image.config.config().as_ref().and_then(|config| config.user().clone());
        let mut request = UserRequest::new(start.pod.record.spec(), start.container, image_user.as_deref());
        request.groups.extend(claim::group::of_pod(&start.pod.record, &start.pod.objects));
        let accounts = match self.accounts.get(&start.image.chain_id) {
            Some(accounts) => accounts,
            None => {
                let mounts = rootfs.iter().map(snapshot_mount::SnapshotMount::from).collect::<Vec<_>>();
                let subject = PathBuf::from(format!("the image's layers {}", start.image.chain_id));
                let read = blocking::run(subject, DEADLINE, move |_| read_accounts(&mounts)).await;
                let read = read.map_err(|error| config_error(error.to_string()))?;
                let accounts = Arc::new(read.map_err(|error| config_error(error.to_string()))?);
                self.accounts.put(Arc::clone(&start.image.chain_id), Arc::clone(&accounts));
                accounts
            }
        };
        user::resolve(&request, accounts.passwd.as_deref(), accounts.group.as_deref())
            .map_err(|error| config_error(error.to_string()))
    }

    /// Calls `Tasks.Create`. A mount that vanished between two quick starts is worth another attempt.
    async fn create_task(
        &self,
        start: &Start<'_>,
        rootfs: Vec<SnapshotMount>,
        streams: &TaskStreams,
    ) -> Result<u32, StartFailure> {
        let first = self.containers.create_task(&start.id, rootfs.clone(), streams).await;
        match first {
            Err(RuntimeError::Refused { message, .. }) if is_lost_mount(&message) => {
                tracing::debug!(container = %start.id, message, "the task is created again");
                self.containers.delete_task(&start.id).await.map_err(run_error)?;
                self.containers.create_task(&start.id, rootfs, streams).await.map_err(run_error)
            }
            // A shim that was interrupted during a start may never answer again. If nothing else of the pod is below
            // it (its containers start at the same time), it is killed, so that the next start gets another one.
            Err(error @ RuntimeError::Deadline { .. }) => {
                tracing::warn!(pod = %start.pod.record.key, container = start.slot.name, %error, "the container did not start; ending its shim, which serves no other container");
                let digits = ContainerId::pod_digits(&start.pod.record.uid);
                orphan_processes::end_idle_shims(digits, start.id.as_str().to_owned(), self.client.socket()).await;
                Err(run_error(error))
            }
            other => other.map_err(run_error),
        }
    }

    /// Records on the container, in the log and as events that it runs.
    async fn started(&self, start: &Start<'_>, pid: u32, began: Instant, created: Duration) -> Instance {
        let now = Timestamp::now();
        let took = began.elapsed();
        let process = process::open(pid);
        let state = ContainerState { started_at: Some(now), ..ContainerState::default() };
        if let Err(error) = self.containers.write_state(&start.id, &state).await {
            tracing::warn!(pod = %start.pod.record.key, container = start.slot.name, %error, "recording the container's start failed");
        }
        let name = start.slot.name.as_str();
        tracing::info!(
            pod = %start.pod.record.key, uid = %start.pod.record.uid, container = name, attempt = start.attempt, pid,
            "container started took={}ms (create {}, start {})",
            took.as_millis(), created.as_millis(), took.saturating_sub(created).as_millis()
        );
        self.reporter.report_start(start.pod, start.slot);
        self.instance(start, Some(now), Life::Running { pid, process, stopping: None })
    }

    /// Handles a container that an earlier attempt, whose answer was lost, has started. It is not started again,
    /// whatever it has done. An edit since then is detected by the version with which it was started.
    async fn started_before(
        &self,
        start: &Start<'_>,
        task: Task,
        recorded: Option<Box<Recorded>>,
        began: Instant,
    ) -> Instance {
        let (pid, end) = match task {
            Task::Created => (0, None),
            Task::Running { pid } | Task::Unknown { pid } => (pid, None),
            Task::Stopped { code, at } => (0, Some(observed_exit(code, at))),
        };
        let mut instance = self.started(start, pid, began, Duration::ZERO).await;
        if let Some(identity) = recorded.map(|recorded| recorded.identity) {
            (instance.fingerprint, instance.pod_restarts) = (identity.fingerprint, identity.pod_restarts);
            instance.image = identity.image;
            instance.image_digest = identity.image_digest;
            instance.user = identity.user.map(Arc::new);
            instance.start_values = identity.start_values;
        }
        if let Some(exit) = end {
            let exit = self.write_exit(start.pod, start.slot, &instance, exit).await;
            instance.end(exit, clock::now());
        }
        instance
    }

    /// Records an attempt that ended before it began, because runc could not run it, like any other exit.
    async fn start_error(&self, start: &Start<'_>, message: String) -> Instance {
        let now = clock::now();
        let exit = Exit { code: START_ERROR_CODE, reason: START_ERROR.to_owned(), message, finished_at: now.wall };
        let state = ended_state(start.pod, Some(now.wall), &exit);
        if let Err(error) = self.containers.write_state(&start.id, &state).await {
            tracing::warn!(pod = %start.pod.record.key, container = start.slot.name, %error, "recording the container's exit failed");
        }
        let mut instance =
            self.instance(start, Some(now.wall), Life::Running { pid: 0, process: None, stopping: None });
        instance.end(exit, now);
        instance
    }
}
