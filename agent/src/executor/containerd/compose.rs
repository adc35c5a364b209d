//! Builds the executor from its settings. Each backend gets its own settings, and nothing of the agent's other parts.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use limpet_containerd::client::Client;
use limpet_containerd::container::{Containers, ContainersConfig};
use limpet_containerd::image::{Images, ImagesConfig};
use limpet_containerd::image_verifier::{self, VerifierSettings};
use limpet_containerd::log::LogPaths;
use limpet_containerd::user::AccountsCache;
use limpet_core::node_state::NodeNetwork;
use limpet_core::pull_rate::PullPace;
use limpet_cpus::{CpuError, ExclusiveCpus};
use limpet_host::blocking;
use limpet_host::cgroup::{CgroupDriver, CgroupError, Cgroups};
use limpet_host::network::Network;
use limpet_host::sandbox::{SandboxError, Sandboxes};
use limpet_host::selinux;
use limpet_host::throttle::Throttle;
use limpet_host::volume::{self, LocalDns, Volumes, VolumesInUse};
use limpet_model::node::NodeFacts;
use limpet_model::selinux::ContainerContexts;
use limpet_model::service_account::ServiceAccounts;
use tokio::sync::{Semaphore, watch};

use super::ContainerdExecutor;
use super::handler::HttpGetter;
use crate::executor::settings::ExecutorSettings;
use crate::pull_records::PullRecords;
use limpet_plugins::csi::CsiVolumes;
use limpet_plugins::device_plugins::DevicePlugins;
use limpet_services::links::ServiceLinks;
use limpet_telemetry::reporter::Reporter;
use limpet_updates::UpdateGate;

/// Why there is no executor: the environment in which pods run is not available.
#[derive(Debug, thiserror::Error)]
pub enum ComposeError {
    /// The directory of the namespaces cannot be created.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// The cgroups cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// The stored processors of containers do not fit this machine or policy.
    #[error(transparent)]
    Cpus(#[from] CpuError),
    /// containerd's configuration is on a file system that does not answer.
    #[error("containerd's configuration: {0}")]
    Configuration(std::io::Error),
}

/// containerd, CNI and volumes as the executor and other parts of the agent use them. A clone is another handle.
#[derive(Debug, Clone)]
pub struct Backends {
    pub client: Client,
    /// CNI.
    pub network: Network,
    /// Volumes and provided files.
    pub volumes: Volumes,
}

impl Backends {
    /// The backends that the settings select. Nothing is connected or created yet. Attached disks are recorded in
    /// `in_use`.
    pub async fn open(settings: &ExecutorSettings, node: &NodeFacts, in_use: VolumesInUse) -> Self {
        let (runtime, root_dir) = (&settings.runtime, &settings.root_dir);
        let volumes = volume::Settings {
            configured: settings.volumes.clone(),
            root_dir: root_dir.clone(),
            hosts_file: "/etc/hosts".into(),
            limits: node.limits,
            local_dns: LocalDns::default(),
        };
        let volumes = Volumes::new(volumes, in_use);
        volumes.find_disks_in_use().await;
        // Plugins run while a sandbox is made, and a DHCP lease on a slow network takes tens of seconds.
        let plugin_deadline = runtime.request_timeout / 2;
        Self {
            client: Client::with_deadline(&runtime.endpoint, runtime.request_timeout),
            network: Network::open(settings.network.clone(), root_dir.join("network"), plugin_deadline).await,
            volumes,
        }
    }
}

/// The parts of an executor.
#[derive(Debug)]
pub struct ExecutorParts {
    pub settings: ExecutorSettings,
    /// The facts of the node.
    pub node: NodeFacts,
    /// The node's current addresses.
    pub node_network: watch::Receiver<NodeNetwork>,
    /// The path of limpet's own executable, which the shim runs as logger.
    pub executable: PathBuf,
    /// containerd, CNI and volumes.
    pub backends: Backends,
    pub device_plugins: Arc<DevicePlugins>,
    /// The volumes of CSI drivers.
    pub csi: Arc<CsiVolumes>,
    /// Where what happens is reported.
    pub reporter: Arc<Reporter>,
    /// Issues tokens of service accounts; `None` without an apiserver.
    pub service_accounts: Option<Arc<dyn ServiceAccounts>>,
    /// What holds updates.
    pub updates: UpdateGate,
    /// The rate at which registries are read.
    pub throttle: Throttle,
    /// The variables of Services.
    pub service_links: ServiceLinks,
}

impl ContainerdExecutor {
    /// Makes the executor of `parts`.
    ///
    /// # Errors
    ///
    /// The directory of the sandboxes or the cgroups of the pods are not available.
    pub async fn open(parts: ExecutorParts) -> Result<Self, ComposeError> {
        let ExecutorParts {
            settings,
            node,
            node_network,
            executable,
            backends,
            device_plugins,
            csi,
            reporter,
            service_accounts,
            updates,
            throttle,
            service_links,
        } = parts;
        let Backends { client, network, volumes } = backends;
        let runtime = &settings.runtime;
        let images = ImagesConfig {
            snapshotter: runtime.snapshotter.clone(),
            settings: settings.images.clone(),
            auth_files: auth_files(&settings.root_dir),
            archives_dir: settings.root_dir.join("images"),
            verifiers: image_verifiers(&runtime.containerd_config).await.map_err(ComposeError::Configuration)?,
            throttle,
        };
        let containers = ContainersConfig {
            snapshotter: runtime.snapshotter.clone(),
            runtime_binary: runtime.binary.clone(),
            systemd_cgroup: settings.cgroups.driver == CgroupDriver::Systemd,
            attach_dir: settings.attach_dir(),
            shim: runtime.shim.program(&executable),
            exit_dir: settings.run_dir.join("exits"),
        };
        Ok(Self {
            containers: Containers::new(client.clone(), containers),
            images: Images::new(client.clone(), images),
            sandboxes: Sandboxes::open(&settings.run_dir).await?,
            cgroups: Cgroups::open(&settings.cgroups).await?,
            accounts: AccountsCache::default(),
            cpus: ExclusiveCpus::open(settings.cpus.clone()).await?.map(Arc::new),
            contexts: container_contexts(),
            logs: LogPaths::new(&settings.logs),
            getter: HttpGetter::default(),
            starts: Semaphore::new(std::thread::available_parallelism().map_or(1, usize::from)),
            pulls: Semaphore::new(settings.pulls.max_parallel),
            pull_pace: settings.pulls.rate.map(|rate| Mutex::new(PullPace::new(rate))),
            pull_records: PullRecords::default(),
            settings,
            node,
            node_network,
            executable,
            client,
            network,
            volumes,
            device_plugins,
            csi,
            reporter,
            service_accounts,
            updates,
            service_links,
        })
    }
}

/// containerd's image verifiers, if it has a directory of them.
async fn image_verifiers(configuration: &Path) -> std::io::Result<Option<VerifierSettings>> {
    let path = configuration.to_owned();
    blocking::run(path.clone(), blocking::DEADLINE, move |_| image_verifier::settings(&path)).await
}

/// The labels of containers, if SELinux is on. Reads two small files.
fn container_contexts() -> Option<ContainerContexts> {
    if !selinux::is_enabled() {
        return None;
    }
    match selinux::contexts() {
        Ok((_, contexts)) => Some(contexts),
        Err(error) => {
            if selinux::is_enforcing() {
                let effect = selinux::UNLABELLED;
                tracing::warn!(%error, "SELinux enforces a policy without labels for containers: {effect}");
            }
            None
        }
    }
}

/// The files with registry credentials: limpet's own, then docker's.
fn auth_files(root_dir: &Path) -> Vec<PathBuf> {
    let docker = std::env::var_os("DOCKER_CONFIG").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".docker"));
    let directories = [Some(root_dir.to_owned()), docker, home, Some(PathBuf::from("/root/.docker"))];
    let mut files: Vec<PathBuf> = directories.into_iter().flatten().map(|dir| dir.join("config.json")).collect();
    files.dedup();
    files
}
