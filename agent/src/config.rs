//! The configuration: kubelet's flags and configuration file, plus limpet's own document, merged into one [`Config`].
//!
//! `Config` is validated in full before the first side effect; later code uses it without further checks.

mod cipher_suites;
pub mod configz;
mod curves;
mod flags;
mod keys;
mod kubelet_flags;
mod misfit;
mod quantity;
mod read;
pub mod schema;
mod strconv;
mod tree;
mod url;

use std::fs;
use std::path::PathBuf;

pub use flags::{RunFlags, ServerFlags, path};
#[cfg(test)]
pub(crate) use keys::kubelet_names;
pub use kubelet_flags::KubeletFlags;
pub use read::load;

use crate::executor::settings::{ExecutorSettings, PullSettings, RestartSettings};
use crate::generations::GenerationSettings;
use limpet_bpf::GuardSettings;
use limpet_bundle::settings::BundleSettings;
use limpet_cluster::settings::ClusterSettings;
use limpet_containerd::settings::{ContainerSettings, ImageSettings, LogSettings, RuntimeSettings};
use limpet_core::cpu_allocation::ReservedCpus;
use limpet_core::eviction::EvictionPolicy;
use limpet_core::image_gc::ImageGcPolicy;
use limpet_core::node_shutdown::ShutdownPolicy;
use limpet_cpus::{CpuPolicySettings, CpuSettings};
use limpet_host::cgroup::{CgroupDriver, CgroupSettings};
use limpet_host::network::CniSettings;
use limpet_host::volume::VolumeSettings;
use limpet_model::node::NodeFacts;
use limpet_model::pod::Fault;
use limpet_model::pod::requests::Resource;
use limpet_node::MachineFacts;
use limpet_node::agent_lock::AgentPlaces;
use limpet_node::capabilities::AgentUses;
use limpet_node::capacity::{Capacity, CapacitySettings};
use limpet_node::settings::{NodeSettings, Reserved};
use limpet_plugins::settings::PluginSettings;
use limpet_server::settings::{LocalSettings, ServedNode, ServerSettings};
use limpet_services::settings::ServiceSettings;
use limpet_sources::http::HttpSettings;
use limpet_sources::settings::SourceSettings;
use limpet_store::KeyLocation;
use limpet_updates::UpdateSettings;
use limpet_worker::settings::WorkerSettings;

/// A setting without effect, and why.
pub type ConfigWarning = Fault;

/// Why there is no configuration. Nothing has been changed yet; retrying does not help.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    /// All errors of the file and the flags, at least one.
    #[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\nerror: "))]
    Faults(Vec<Fault>),
}

/// The files from which the configuration was read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigFiles {
    /// `--config`, absolute.
    pub main: Option<PathBuf>,
    /// `--config-dir`, absolute.
    pub drop_in_dir: Option<PathBuf>,
    /// Entries of the KubeletConfiguration and kubelet's flags that have no effect, but for zeros that stand for kubelet's
    /// default; `/configz` shows them.
    pub without_effect: serde_json::Map<String, serde_json::Value>,
}

/// The settings of all parts of the agent; each type belongs to its part.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `--root-dir`: state that survives a reboot.
    pub root_dir: PathBuf,
    /// `runDirectory`: sockets, namespace pins, FIFOs.
    pub run_dir: PathBuf,
    /// `--v`: kubelet's verbosity; 0 to 10.
    pub verbosity: u8,
    /// `secretEncryptionKey`; `None` if Secrets are not encrypted.
    pub secret_key: Option<KeyLocation>,
    pub files: ConfigFiles,
    pub node: NodeSettings,
    pub sources: SourceSettings,
    /// `bundle`; `None` if this node accepts no bundles.
    pub bundle: Option<BundleSettings>,
    pub workers: WorkerSettings,
    pub containers: ContainerSettings,
    pub restarts: RestartSettings,
    pub runtime: RuntimeSettings,
    pub images: ImageSettings,
    pub pulls: PullSettings,
    pub logs: LogSettings,
    pub cgroups: CgroupSettings,
    pub cpus: CpuPolicySettings,
    pub network: CniSettings,
    pub volumes: VolumeSettings,
    pub plugins: PluginSettings,
    /// `generations`.
    pub generations: GenerationSettings,
    /// `updates`.
    pub updates: UpdateSettings,
    /// `updates.report`; `None`: the node sends no reports.
    pub report: Option<HttpSettings>,
    /// `services`.
    pub services: ServiceSettings,
    pub image_gc: ImageGcPolicy,
    pub eviction: EvictionPolicy,
    /// `shutdownGracePeriod`, `shutdownGracePeriodCriticalPods`, `shutdownGracePeriodByPodPriority`; `None` if the
    /// shutdown of the machine is not delayed.
    pub shutdown: Option<ShutdownPolicy>,
    pub server: ServerSettings,
    pub local: LocalSettings,
    pub guard: GuardSettings,
    /// `--kubeconfig` and the related settings.
    pub cluster: ClusterSettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            root_dir: "/var/lib/limpet".into(),
            run_dir: "/run/limpet".into(),
            verbosity: 2,
            secret_key: None,
            files: ConfigFiles::default(),
            node: NodeSettings::default(),
            sources: SourceSettings::default(),
            bundle: None,
            workers: WorkerSettings::default(),
            containers: ContainerSettings::default(),
            restarts: RestartSettings::default(),
            runtime: RuntimeSettings::default(),
            images: ImageSettings::default(),
            pulls: PullSettings::default(),
            logs: LogSettings::default(),
            cgroups: CgroupSettings::default(),
            cpus: CpuPolicySettings::default(),
            network: CniSettings::default(),
            volumes: VolumeSettings::default(),
            plugins: PluginSettings::default(),
            generations: GenerationSettings::default(),
            updates: UpdateSettings::default(),
            report: None,
            services: ServiceSettings::default(),
            image_gc: ImageGcPolicy::default(),
            eviction: EvictionPolicy::default(),
            shutdown: None,
            server: ServerSettings::default(),
            local: LocalSettings::default(),
            guard: GuardSettings::default(),
            cluster: ClusterSettings::default(),
        }
    }
}

impl Config {
    /// The path of the local socket.
    pub fn socket(&self) -> PathBuf {
        self.local.socket(&self.run_dir)
    }

    /// The path of CRI's socket, if it is served.
    pub fn cri_socket(&self) -> Option<PathBuf> {
        self.local.cri_socket(&self.run_dir)
    }

    /// The directory of `device-plugins` and `plugins_registry`, if plugins are served.
    pub fn plugin_dir(&self) -> Option<PathBuf> {
        self.plugins.directory(self.node.ignore_other_agents)
    }

    /// The path of the socket of PodResources: kubelet's, below the root directory.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root_dir.join("pod-resources/kubelet.sock")
    }

    /// The path of the socket of the Pods API: kubelet's, below the root directory.
    pub fn pods_api_socket(&self) -> PathBuf {
        self.root_dir.join("pods-api/pods-api.sock")
    }

    /// The directory to which bundles are copied before they are verified.
    pub fn bundle_dir(&self) -> PathBuf {
        self.root_dir.join("bundle")
    }

    /// The node's key, to which Secrets of bundles are sealed.
    pub fn node_key(&self) -> PathBuf {
        self.root_dir.join("node.key")
    }

    /// The key with which the node's reports are signed.
    pub fn report_key(&self) -> PathBuf {
        self.root_dir.join("report.key")
    }

    /// The database, see [`limpet_store`].
    pub fn database(&self) -> PathBuf {
        self.root_dir.join("limpet.db")
    }

    /// The directory of the self-signed certificate of kubelet's API.
    pub fn pki_dir(&self) -> PathBuf {
        self.server.certificate_dir.clone().unwrap_or_else(|| self.root_dir.join("pki"))
    }

    /// The agent's directories and socket, and the root of its cgroups.
    pub fn places(&self) -> AgentPlaces {
        AgentPlaces {
            root_dir: self.root_dir.clone(),
            run_dir: self.run_dir.clone(),
            socket: self.socket(),
            cgroup_root: self.cgroups.root.clone(),
        }
    }

    /// What decides which capabilities the agent needs.
    pub fn uses(&self) -> AgentUses {
        AgentUses {
            programs: cfg!(feature = "attribution"),
            guard: self.guard.mode.is_some(),
            flex_drivers: fs::read_dir(&self.volumes.plugin_dir).is_ok_and(|mut drivers| drivers.next().is_some()),
        }
    }

    /// What divides the node's resources between pods and its own processes.
    pub fn capacity(&self) -> CapacitySettings<'_> {
        CapacitySettings { node: &self.node, eviction: &self.eviction }
    }

    /// The facts of a node of that name on this machine.
    pub fn node_facts(&self, name: String) -> NodeFacts {
        let machine = MachineFacts::read();
        NodeFacts {
            name,
            memory_capacity: machine.memory,
            limits: Capacity::divide(self.capacity(), machine.memory, 0, &machine.huge_pages).limits(),
            swap_capacity: machine.swap,
            swap_behavior: self.containers.swap_behavior,
            single_process_oom_kill: self.containers.single_process_oom_kill,
            cpu_quotas: self.cgroups.cpu_quotas,
            memory_qos: self.cgroups.memory_qos,
            oom_score_floor: machine.oom_score_floor,
            cgroup_v2: machine.cgroup_v2,
            systemd_cgroup: self.cgroups.driver == CgroupDriver::Systemd,
            service: machine.service,
            seccomp_default: self.containers.seccomp_default,
            seccomp_dir: self.root_dir.join("seccomp"),
            runtime_endpoint: self.runtime.endpoint.clone(),
            devices: self.plugins.devices.clone(),
            cdi_dirs: self.plugins.cdi_dirs.clone(),
            huge_pages: machine.huge_pages,
            limits_huge_pages: machine.limits_huge_pages,
        }
    }

    /// The settings for the processors of containers.
    pub fn cpu_settings(&self) -> CpuSettings {
        let Reserved { kube, system, .. } = &self.node.reserved;
        let amount = kube.resources[Resource::Cpu] + system.resources[Resource::Cpu];
        CpuSettings {
            policy: self.cpus.policy,
            retry_period: self.cpus.reconcile_period,
            reserved: self.cpus.reserved.clone().map_or(ReservedCpus::Amount(amount), ReservedCpus::These),
            root_dir: self.root_dir.clone(),
        }
    }

    /// The settings of the executor.
    pub fn executor(&self) -> ExecutorSettings {
        ExecutorSettings {
            root_dir: self.root_dir.clone(),
            run_dir: self.run_dir.clone(),
            runtime: self.runtime.clone(),
            images: self.images.clone(),
            pulls: self.pulls.clone(),
            restarts: self.restarts.clone(),
            logs: self.logs.clone(),
            cgroups: self.cgroups.clone(),
            cpus: self.cpu_settings(),
            network: self.network.clone(),
            volumes: self.volumes.clone(),
        }
    }

    /// What the server uses and shows of the configuration.
    pub fn served_node(&self) -> ServedNode {
        ServedNode {
            server: self.server.clone(),
            pki_dir: self.pki_dir(),
            socket_allowed_pods: self.local.allowed_pods.clone(),
            devices: self.plugins.devices.clone(),
            cgroup_driver: self.cgroups.driver,
            runtime_endpoint: self.runtime.endpoint.clone(),
            root_dir: self.root_dir.clone(),
            snapshotter: self.runtime.snapshotter.clone(),
            cni_conf_dir: self.network.config_dir.clone(),
            runtime_classes: self.runtime.classes.keys().cloned().collect(),
        }
    }
}
