//! The executor of the pod workers: performs each action of the plan with containerd, the kernel and the disk.
//!
//! It decides nothing: an action comes with the state from which it was planned, and is answered with an [`Outcome`].

mod actions;
mod admission;
pub mod compose;
mod cpus;
mod csi;
mod exits;
pub mod handler;
mod hooks;
mod image;
mod image_access;
mod image_volume;
mod permit;
mod probe;
mod pull;
mod removal;
mod resize;
mod sandbox;
mod start;
mod stop;
pub mod storage;
mod verbs;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use self::handler::HttpGetter;
use crate::executor::settings::ExecutorSettings;
use crate::pull_records::PullRecords;
use limpet_containerd::client::Client;
use limpet_containerd::container::Containers;
use limpet_containerd::error::RuntimeError;
use limpet_containerd::image::Images;
use limpet_containerd::log::LogPaths;
use limpet_containerd::snapshotter;
use limpet_containerd::user::AccountsCache;
use limpet_core::node_state::NodeNetwork;
use limpet_core::outcome::{Failure, Outcome};
use limpet_core::pull_rate::PullPace;
use limpet_core::state::{PodState, SandboxState};
use limpet_cpus::ExclusiveCpus;
use limpet_host::blocking;
use limpet_host::cgroup::Cgroups;
use limpet_host::network::Network;
use limpet_host::sandbox::Sandboxes;
use limpet_host::volume::Volumes;
use limpet_model::container::{ContainerId, ContainerState, Exit, FoundContainer};
use limpet_model::node::NodeFacts;
use limpet_model::pod::PodUid;
use limpet_model::selinux::ContainerContexts;
use limpet_model::service_account::ServiceAccounts;
use limpet_plugins::csi::CsiVolumes;
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_services::links::ServiceLinks;
use limpet_telemetry::event::EventType;
use limpet_telemetry::reporter::Reporter;
use limpet_updates::UpdateGate;

/// How long the removal of a pod's logs may take, because a busy SD card takes seconds for each file.
const LOGS_DEADLINE: Duration = Duration::from_secs(60);

/// Everything that actions need. There is one for the node, shared by all workers.
#[derive(Debug)]
pub struct ContainerdExecutor {
    pub settings: ExecutorSettings,
    /// The facts of the node.
    pub node: NodeFacts,
    /// The node's current addresses.
    pub node_network: watch::Receiver<NodeNetwork>,
    /// The path of limpet's own executable, which the shim runs as logger.
    pub executable: std::path::PathBuf,
    pub client: Client,
    /// containerd's containers and tasks.
    pub containers: Containers,
    pub images: Images,
    /// Namespaces.
    pub sandboxes: Sandboxes,
    /// CNI.
    pub network: Network,
    /// Volumes and provided files.
    pub volumes: Volumes,
    pub cgroups: Cgroups,
    /// `None` if every container may run on all processors.
    pub cpus: Option<Arc<ExclusiveCpus>>,
    /// Users of images, resolved once.
    pub accounts: AccountsCache,
    /// The SELinux labels that the host's policy has for containers; `None` if nothing is labelled.
    pub contexts: Option<ContainerContexts>,
    pub logs: LogPaths,
    /// Performs the GETs of probes and hooks.
    pub getter: HttpGetter,
    pub device_plugins: Arc<DevicePlugins>,
    /// The volumes of CSI drivers.
    pub csi: Arc<CsiVolumes>,
    /// Where what happens is reported.
    pub reporter: Arc<Reporter>,
    /// What images were pulled with.
    pub pull_records: PullRecords,
    /// Issues tokens of service accounts; `None` without an apiserver.
    pub service_accounts: Option<Arc<dyn ServiceAccounts>>,
    /// Bounds how many containers are started at the same time: as many as there are cores.
    pub starts: Semaphore,
    /// Bounds how many images are pulled at the same time.
    pub pulls: Semaphore,
    /// Bounds how often a pull begins; `None` if nothing does.
    pub pull_pace: Option<Mutex<PullPace>>,
    /// What holds updates.
    pub updates: UpdateGate,
    /// The variables of Services.
    pub service_links: ServiceLinks,
}

impl ContainerdExecutor {
    /// Removes the cgroup of a container that never ran, or lost its task, with its processes. That happens by itself
    /// unless the OCI runtime and the shim are killed.
    pub(super) async fn clear_cgroup(&self, pod: &PodState, id: &ContainerId) {
        if let Err(error) = self.cgroups.clear_container(&pod.record.uid, id.as_str()).await {
            tracing::debug!(container = %id, %error, "cannot remove the cgroup of a container without a task; it is removed with its pod");
        }
    }

    /// Removes the records and logs of instances that are no longer needed.
    async fn forget(&self, pod: &PodState, index: usize) -> Outcome {
        let mut ids = Vec::new();
        for instance in &pod.containers[index].stale {
            match self.containers.remove(&instance.id).await {
                Ok(()) => {
                    let (uid, name) = (&pod.record.uid, pod.containers[index].name.clone());
                    let removed = self.volumes.remove_container_files(uid, &name, instance.id.as_str());
                    if let Err(error) = removed.await {
                        tracing::warn!(pod = %pod.record.key, %error, "removing the files of an old container failed");
                    }
                    let (record, attempt, id) = (Arc::clone(&pod.record), instance.attempt, instance.id.clone());
                    self.on_logs(uid, move |logs| logs.remove_attempt(&record, &name, attempt, id.as_str())).await;
                    ids.push(instance.id.clone());
                }
                Err(error) => {
                    tracing::warn!(pod = %pod.record.key, %error, "removing an old container record failed; retried later");
                    break;
                }
            }
        }
        Outcome::Forgotten { index, ids }
    }

    /// Runs `work` on the logs of a pod, on a blocking thread. Old logs only take up space: a failure is logged.
    async fn on_logs(&self, uid: &PodUid, work: impl FnOnce(&LogPaths) + Send + 'static) {
        if let Err(error) = self.try_on_logs(uid, work).await {
            tracing::warn!(%uid, %error, "updating the pod's logs failed; retried later");
        }
    }

    /// The same, for callers that need to know whether the file system of the logs has answered.
    async fn try_on_logs<T: Send + 'static>(
        &self,
        uid: &PodUid,
        work: impl FnOnce(&LogPaths) -> T + Send + 'static,
    ) -> io::Result<T> {
        let logs = self.logs.clone();
        blocking::run(logs.pods.join(uid.as_str()), LOGS_DEADLINE, move |_| work(&logs)).await
    }

    /// Removes a container that was made and never started.
    async fn remove_never_ran(&self, index: usize, id: ContainerId) -> Outcome {
        let removed = self.containers.remove_never_ran(&id).await;
        if let Err(error) = &removed {
            tracing::warn!(container = %id, %error, "removing a container that never ran failed; retried later");
        }
        Outcome::Discarded { index, id, gone: removed.is_ok() }
    }

    /// containerd's whole state. Before reading it, the first call releases the leases that an earlier agent left, and later calls
    /// those whose deletion failed.
    async fn list_containers(&self, first: bool) -> Result<Vec<FoundContainer>, RuntimeError> {
        if first {
            self.containers.sweep_leases().await?;
            limpet_containerd::exec::sweep(&self.client, &self.settings.exec_dir()).await;
        } else {
            self.containers.release_orphaned_leases().await;
        }
        let listed = self.timed("list_containers", self.containers.list()).await;
        if listed.is_err() {
            self.judge_snapshotter().await;
        }
        let (containers, unreadable) = listed?;
        if first {
            self.find_devices(&containers);
        }
        for (id, reason) in unreadable {
            tracing::error!(container = %id, reason, "a container of limpet cannot be read and is left alone");
        }
        Ok(containers)
    }

    /// Passes on what device plugins gave containers before the agent started. The newest attempt of a container
    /// counts.
    fn find_devices(&self, containers: &[FoundContainer]) {
        let recorded = containers.iter().map(|container| &container.recorded.identity);
        let mut recorded: Vec<_> = recorded.filter(|identity| !identity.devices.is_empty()).collect();
        recorded.sort_by_key(|identity| std::cmp::Reverse(identity.attempt));
        for identity in recorded {
            let Ok(uid) = PodUid::parse(identity.uid.as_str()) else { continue };
            self.device_plugins.record_found(&uid, &identity.container, &identity.devices);
        }
    }

    /// Reports a missing snapshotter: without it nothing can be read and no container starts, and containerd does not
    /// say which other ones there are.
    async fn judge_snapshotter(&self) {
        let judged = match snapshotter::plugins(&self.client).await {
            Ok(plugins) => snapshotter::judge(&plugins, &self.settings.runtime.snapshotter),
            Err(error) => return tracing::debug!(%error, "containerd's plugins cannot be listed"),
        };
        if let Err(fault) = judged {
            let message = format!("no container can start with containerd's snapshotter {fault}. {}", fault.remedy());
            let count =
                self.reporter.events.emit(None, None, EventType::Warning, "SnapshotterUnavailable", message.clone());
            if count.is_power_of_two() {
                tracing::error!(count, "{message}");
            }
        }
    }

    /// Changes cgroups and measures the time, as kubelet does.
    async fn on_cgroup<T>(&self, operation: &'static str, change: impl Future<Output = T>) -> T {
        let began = Instant::now();
        let result = change.await;
        self.reporter.metrics.cgroup_operation(operation, began.elapsed());
        result
    }

    /// Runs a call and counts it, as kubelet counts its runtime's operations.
    async fn timed<T, E>(&self, operation: &'static str, call: impl Future<Output = Result<T, E>>) -> Result<T, E> {
        let began = Instant::now();
        let result = call.await;
        self.reporter.metrics.runtime_operation(operation, began.elapsed(), result.is_ok());
        result
    }
}

/// What is recorded of a container that has exited; the pod's verdict with it, if it was final by then.
fn ended_state(pod: &PodState, started_at: Option<Timestamp>, exit: &Exit) -> ContainerState {
    ContainerState { started_at, exit: Some(exit.clone()), verdict: pod.lasting_verdict() }
}

/// The failure that a worker is told for an error of containerd.
fn failure(reason: &'static str, error: &RuntimeError) -> Failure {
    let transient = matches!(error, RuntimeError::Unavailable { .. } | RuntimeError::Deadline { .. });
    Failure { reason, message: error.to_string(), transient }
}

/// The sandbox of a pod that has one.
fn sandbox_of(pod: &PodState) -> Option<Arc<limpet_core::state::PodSandbox>> {
    match &pod.sandbox {
        SandboxState::Ready(sandbox) => Some(Arc::clone(sandbox)),
        _ => None,
    }
}
