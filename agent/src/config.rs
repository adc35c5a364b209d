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
mod shim;
mod strconv;
mod tree;
mod url;

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use crate::store::KeyLocation;
use limpet_bpf::GuardMode;

pub use flags::{RunFlags, ServerFlags, path};
#[cfg(test)]
pub(crate) use keys::kubelet_names;
pub use kubelet_flags::KubeletFlags;
pub use limpet_cluster::settings::ClusterSettings;
pub use limpet_server::settings::{AuthorizationMode, DebugHandlers, NodeSettings, ServerSettings};
pub use read::load;
pub use shim::Shim;

use crate::source::http::HttpSettings;
use limpet_containerd::container::runtime::RuntimeClass;
use limpet_containerd::image::CredentialProvider;
use limpet_containerd::spec::ShimGroup;
use limpet_core::backoff;
use limpet_core::cpu_allocation::{CpuPolicyOptions, ReservedCpus};
use limpet_core::eviction::EvictionPolicy;
use limpet_core::image_access::VerificationPolicy;
use limpet_core::image_gc::ImageGcPolicy;
use limpet_core::node_shutdown::ShutdownPolicy;
use limpet_core::pull_rate::PullRate;
use limpet_cpus::CpuSettings;
use limpet_host::cgroup::{CgroupDriver, CgroupSettings};
use limpet_image_policy::policy::ImagePolicy;
use limpet_log::LogRotation;
use limpet_model::attribution::ManifestWatch;
use limpet_model::cpu_set::CpuSet;
use limpet_model::node::{Device, NodeAddresses};
use limpet_model::pod::compute_resources::CpuQuotas;
use limpet_model::pod::field_validation::FieldValidations;
use limpet_model::pod::memory_qos::MemoryQos;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::security::SecurityLevels;
use limpet_model::pod::swap::SwapBehavior;
use limpet_model::pod::{Fault, PodKey};

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

/// The settings of the manifest guard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuardSettings {
    /// `manifestGuard`; `None`: off.
    pub mode: Option<GuardMode>,
    /// `manifestGuardRequired`: the agent does not start without it.
    pub required: bool,
    /// `manifestGuardExecutables`: the executables that may write in strict mode.
    pub executables: Vec<PathBuf>,
    /// `manifestGuardCgroups`: from the root of the v2 hierarchy.
    pub cgroups: Vec<PathBuf>,
}

impl Default for GuardSettings {
    fn default() -> Self {
        Self { mode: None, required: true, executables: Vec::new(), cgroups: Vec::new() }
    }
}

/// What of the node is not for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// `kubeReserved`: for containerd and this agent.
    pub kube: Reservation,
    /// `systemReserved`: for everything else.
    pub system: Reservation,
    /// `kubeReservedCgroup`, where it is to be limited.
    pub kube_cgroup: Option<ReservedCgroup>,
    /// `systemReservedCgroup`, where it is to be limited.
    pub system_cgroup: Option<ReservedCgroup>,
}

/// A cgroup of the node's own processes, which others make, and which is limited to what is reserved for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// Its path from the root of the hierarchy, or a slice.
    pub group: PathBuf,
    /// Only its share of the processors is set.
    pub compressible_only: bool,
}

/// What is kept for some of the node's own processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Processors, memory, disk.
    pub resources: Requests,
    /// Process ids.
    pub pids: u64,
}

/// `criSocket`: where CRI is served.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum CriSocket {
    /// `cri.sock` in the run directory.
    #[default]
    InRunDirectory,
    At(PathBuf),
    Off,
}

/// `pluginDirectory`: where plugins find their sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum PluginDirectory {
    /// Where they look for kubelet's.
    #[default]
    OfKubelet,
    At(PathBuf),
    Off,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// `--hostname-override`; otherwise the host's name at the first start.
    pub hostname_override: Option<String>,
    /// `--root-dir`: state that survives a reboot. Default `/var/lib/limpet`.
    pub root_dir: PathBuf,
    /// `runDirectory`: sockets, namespace pins, FIFOs. Default `/run/limpet`.
    pub run_dir: PathBuf,
    /// `podLogsDir`. Default `/var/log/pods`.
    pub pod_logs_dir: PathBuf,
    /// `volumePluginDir`: the drivers of flexVolumes. Default
    /// `/usr/libexec/kubernetes/kubelet-plugins/volume/exec`.
    pub volume_plugin_dir: PathBuf,
    /// `containerLogsDirectory`: kubelet's symlinks. Default `/var/log/containers`.
    pub container_logs_dir: PathBuf,
    /// containerd's socket, without `unix://`.
    pub runtime_endpoint: PathBuf,
    /// `staticPodPath` / `--pod-manifest-path`: a directory or one file; `None`: no file source.
    pub manifest_path: Option<PathBuf>,
    /// `staticPodURL` / `--manifest-url` and the related settings; `None`: no URL source.
    pub manifest_url: Option<HttpSettings>,
    pub manifest_watch: ManifestWatch,
    pub cgroup_driver: CgroupDriver,
    /// `cgroupRoot`: the parent of `kubepods`, absolute, `/` by default.
    pub cgroup_root: PathBuf,
    /// `podPidsLimit`; `None`: no limit.
    pub pod_pids_limit: Option<i64>,
    pub max_pods: u32,
    /// `podsPerCore`; `None`: `maxPods` alone counts.
    pub pods_per_core: Option<u32>,
    /// `kubeReserved` and `systemReserved`: what of the node is not for pods.
    pub reserved: Reserved,
    /// `enforceNodeAllocatable` has `pods`: all pods together are limited to what is not reserved.
    pub limit_all_pods: bool,
    /// `crashLoopBackOff.maxContainerRestartPeriod`: the longest pause before a container restarts.
    pub max_restart_pause: Duration,
    /// `volumeStatsAggPeriod`: how often a pod with a limit on its use of the disk is measured.
    pub volume_stats_period: Duration,
    /// `runtimeRequestTimeout`: the timeout of calls to containerd.
    pub runtime_request_timeout: Duration,
    /// `shutdownGracePeriod`, `shutdownGracePeriodCriticalPods`, `shutdownGracePeriodByPodPriority`; `None`: the shutdown of
    /// the machine is not delayed.
    pub shutdown: Option<ShutdownPolicy>,
    /// `cpuCFSQuota`, `cpuCFSQuotaPeriod`.
    pub cpu_quotas: CpuQuotas,
    /// `cpuManagerPolicy: static` and its options; `None`: containers share all processors.
    pub cpu_policy: Option<CpuPolicyOptions>,
    /// `cpuManagerReconcilePeriod`.
    pub cpu_reconcile_period: Duration,
    /// `reservedSystemCPUs`.
    pub reserved_cpus: Option<CpuSet>,
    /// `failSwapOn`: limpet does not start while swap is in use. Unlike kubelet's, false by default.
    pub fail_swap_on: bool,
    /// `protectKernelDefaults`; `None`: the kernel's settings are neither checked nor changed.
    pub protect_kernel_defaults: Option<bool>,
    pub seccomp_default: bool,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// `memoryReservationPolicy`, `memoryThrottlingFactor`.
    pub memory_qos: MemoryQos,
    /// `singleProcessOOMKill`.
    pub single_process_oom_kill: bool,
    /// `containerLogMaxSize`, `containerLogMaxFiles`.
    pub log_rotation: LogRotation,
    /// `resolvConf`; `None`: pods get an empty one.
    pub resolv_conf: Option<PathBuf>,
    pub cluster_dns: Vec<IpAddr>,
    pub cluster_domain: String,
    /// `allowedUnsafeSysctls`: names, or prefixes ending in `*`.
    pub allowed_unsafe_sysctls: Vec<String>,
    /// `registryPullQPS`, `registryBurst`; `None`: pulls begin at any rate.
    pub pull_rate: Option<PullRate>,
    /// The limit of parallel image pulls (`serializeImagePulls`, `maxParallelImagePulls`).
    pub max_parallel_pulls: usize,
    /// `imagePolicy`; `None`: every image may be used.
    pub image_policy: Option<ImagePolicy>,
    /// `imageGCHighThresholdPercent`, `imageGCLowThresholdPercent`, `imageMinimumGCAge`, `imageMaximumGCAge`.
    pub image_gc: ImageGcPolicy,
    /// `imagePullCredentialsVerificationPolicy`, `preloadedImagesVerificationAllowlist`.
    pub image_verification: VerificationPolicy,
    /// `evictionHard`, `evictionSoft` and the related settings.
    pub eviction: EvictionPolicy,
    /// `localImageWhenUnreachable`: with `imagePullPolicy: Always`, start from the local image while its registry is
    /// unreachable.
    pub local_image_when_unreachable: bool,
    /// `probeTimerSlackPercent`: how much later than its period a probe may run, in percent of the period, so that the
    /// probes of many containers run together.
    pub probe_timer_slack: u32,
    /// `podSecurity`: the Pod Security Standard of each source.
    pub pod_security: SecurityLevels,
    /// `fieldValidation` of each source.
    pub field_validation: FieldValidations,
    /// `nodeIP`; empty: the addresses of the default routes, if any.
    pub node_ip: NodeAddresses,
    /// `snapshotter`. Default `overlayfs`.
    pub snapshotter: String,
    /// `runtimeBinary`: the OCI runtime for containerd's shim; `None`: the shim's own default, runc.
    pub runtime_binary: Option<PathBuf>,
    pub shim: Shim,
    pub shim_group: ShimGroup,
    /// `devices`, by the resource's name.
    pub devices: BTreeMap<String, Device>,
    /// `cdiSpecDirectories`. Default `/etc/cdi` and `/var/run/cdi`; a later one precedes.
    pub cdi_dirs: Vec<PathBuf>,
    pub plugin_dir: PluginDirectory,
    /// `runtimeClasses`, by name.
    pub runtime_classes: BTreeMap<String, RuntimeClass>,
    /// `registryConfigDirectory`: containerd's `certs.d`. Default `/etc/containerd/certs.d`.
    pub registry_config_dir: PathBuf,
    /// `containerdConfigFile`: where containerd's image verifiers are configured. Default `/etc/containerd/config.toml`.
    pub containerd_config: PathBuf,
    /// `--image-credential-provider-config`: the programs that give credentials for images.
    pub credential_providers: Vec<CredentialProvider>,
    /// `cniConfigDirectory`. Default `/etc/cni/net.d`.
    pub cni_conf_dir: PathBuf,
    /// `cniBinaryDirectories`. Default `/opt/cni/bin` and `/usr/lib/cni`.
    pub cni_bin_dirs: Vec<PathBuf>,
    /// `metricsAddress`: the additional listener for `/metrics` and `/healthz`; loopback only.
    pub metrics_address: Option<SocketAddr>,
    /// The listeners on the network: `port`, `readOnlyPort`, `healthzPort` and who may use them.
    pub server: ServerSettings,
    /// `--v`: kubelet's verbosity; 0 to 10.
    pub verbosity: u8,
    /// Entries of the KubeletConfiguration and kubelet's flags that have no effect, but for zeros that stand for kubelet's
    /// default; `/configz` shows them.
    pub without_effect: serde_json::Map<String, serde_json::Value>,
    /// `ignoreOtherAgents`: start although a kubelet runs on this node, for a trial next to it with another containerd.
    pub ignore_other_agents: bool,
    /// `socketAllowedPods`: the pods whose processes may use the local socket.
    pub socket_allowed_pods: Vec<PodKey>,
    /// `secretEncryptionKey`; `None`: Secrets are kept as they are.
    pub secret_key: Option<KeyLocation>,
    pub cri_socket: CriSocket,
    /// `manifestGuard` and the related settings.
    pub guard: GuardSettings,
    /// `--kubeconfig` and the related settings.
    pub cluster: ClusterSettings,
    /// `--socket` or `LIMPET_SOCKET`, absolute; `None`: `limpet.sock` in the run directory.
    pub socket: Option<PathBuf>,
    /// `--config`, absolute.
    pub file: Option<PathBuf>,
    /// `--config-dir`, absolute.
    pub drop_in_dir: Option<PathBuf>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            hostname_override: None,
            root_dir: "/var/lib/limpet".into(),
            run_dir: "/run/limpet".into(),
            pod_logs_dir: "/var/log/pods".into(),
            volume_plugin_dir: "/usr/libexec/kubernetes/kubelet-plugins/volume/exec".into(),
            container_logs_dir: "/var/log/containers".into(),
            runtime_endpoint: "/run/containerd/containerd.sock".into(),
            manifest_path: None,
            manifest_url: None,
            manifest_watch: ManifestWatch::default(),
            cgroup_driver: CgroupDriver::default(),
            cgroup_root: "/".into(),
            pod_pids_limit: None,
            max_pods: 110,
            pods_per_core: None,
            reserved: Reserved::default(),
            limit_all_pods: true,
            max_restart_pause: backoff::MAX_BACKOFF,
            volume_stats_period: Duration::from_secs(60),
            runtime_request_timeout: Duration::from_secs(120),
            shutdown: None,
            cpu_quotas: CpuQuotas::default(),
            cpu_policy: None,
            cpu_reconcile_period: read::processors::RECONCILE_PERIOD,
            reserved_cpus: None,
            fail_swap_on: false,
            protect_kernel_defaults: None,
            seccomp_default: false,
            swap_behavior: SwapBehavior::default(),
            memory_qos: MemoryQos::default(),
            single_process_oom_kill: false,
            log_rotation: LogRotation { max_size: 10 << 20, max_files: 5 },
            resolv_conf: Some("/etc/resolv.conf".into()),
            cluster_dns: Vec::new(),
            cluster_domain: String::new(),
            allowed_unsafe_sysctls: Vec::new(),
            pull_rate: Some(PullRate::DEFAULT),
            max_parallel_pulls: 1,
            image_policy: None,
            image_gc: ImageGcPolicy::default(),
            image_verification: VerificationPolicy::default(),
            eviction: EvictionPolicy::default(),
            local_image_when_unreachable: false,
            probe_timer_slack: 10,
            pod_security: SecurityLevels::PRIVILEGED,
            field_validation: FieldValidations::STRICT,
            node_ip: NodeAddresses::NONE,
            snapshotter: "overlayfs".to_owned(),
            runtime_binary: None,
            shim: Shim::default(),
            shim_group: ShimGroup::default(),
            devices: BTreeMap::new(),
            cdi_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
            plugin_dir: PluginDirectory::default(),
            runtime_classes: BTreeMap::new(),
            registry_config_dir: "/etc/containerd/certs.d".into(),
            containerd_config: "/etc/containerd/config.toml".into(),
            credential_providers: Vec::new(),
            cni_conf_dir: "/etc/cni/net.d".into(),
            cni_bin_dirs: vec!["/opt/cni/bin".into(), "/usr/lib/cni".into()],
            metrics_address: None,
            server: ServerSettings::default(),
            verbosity: 2,
            without_effect: serde_json::Map::new(),
            ignore_other_agents: false,
            socket_allowed_pods: Vec::new(),
            secret_key: None,
            cri_socket: CriSocket::default(),
            guard: GuardSettings::default(),
            cluster: ClusterSettings::default(),
            socket: None,
            file: None,
            drop_in_dir: None,
        }
    }
}

impl Config {
    /// What of it concerns pods' cgroups.
    pub fn cgroup_settings(&self) -> CgroupSettings {
        let Self { pod_pids_limit, cpu_quotas, memory_qos, .. } = *self;
        CgroupSettings { pod_pids_limit, cpu_quotas, memory_qos }
    }

    /// How many pods the node may have, on a machine of so many processors.
    pub fn most_pods(&self, processors: usize) -> u32 {
        let of_cores = self.pods_per_core.map(|each| u64::from(each).saturating_mul(processors as u64));
        let most = of_cores.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        most.map_or(self.max_pods, |most| most.min(self.max_pods))
    }

    /// How containers have processors.
    pub fn cpu_settings(&self) -> CpuSettings {
        let Reserved { kube, system, .. } = &self.reserved;
        let amount = kube.resources[Resource::Cpu] + system.resources[Resource::Cpu];
        CpuSettings {
            policy: self.cpu_policy,
            retry_period: self.cpu_reconcile_period,
            reserved: self.reserved_cpus.clone().map_or(ReservedCpus::Amount(amount), ReservedCpus::These),
            root_dir: self.root_dir.clone(),
        }
    }

    /// The path of the local socket.
    pub fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| self.run_dir.join("limpet.sock"))
    }

    /// The path of the socket of CRI, if it is served.
    pub fn cri_socket(&self) -> Option<PathBuf> {
        match &self.cri_socket {
            CriSocket::InRunDirectory => Some(self.run_dir.join("cri.sock")),
            CriSocket::At(path) => Some(path.clone()),
            CriSocket::Off => None,
        }
    }

    /// The directory of `device-plugins` and `plugins_registry`, if plugins are served. Beside a kubelet they are its own.
    pub fn plugin_dir(&self) -> Option<PathBuf> {
        match &self.plugin_dir {
            PluginDirectory::OfKubelet if self.ignore_other_agents => None,
            PluginDirectory::OfKubelet => Some("/var/lib/kubelet".into()),
            PluginDirectory::At(path) => Some(path.clone()),
            PluginDirectory::Off => None,
        }
    }

    /// The path of the socket of PodResources: kubelet's, below the root directory.
    pub fn pod_resources_socket(&self) -> PathBuf {
        self.root_dir.join("pod-resources/kubelet.sock")
    }

    /// The path of the socket of the Pods API: kubelet's, below the root directory.
    pub fn pods_api_socket(&self) -> PathBuf {
        self.root_dir.join("pods-api/pods-api.sock")
    }

    /// The database, see [`crate::store`].
    pub fn database(&self) -> PathBuf {
        self.root_dir.join("limpet.db")
    }

    /// The directory of the self-signed certificate of kubelet's API.
    pub fn pki_dir(&self) -> PathBuf {
        self.server.certificate_dir.clone().unwrap_or_else(|| self.root_dir.join("pki"))
    }

    /// The directory of the FIFOs of `exec` commands.
    pub fn exec_dir(&self) -> PathBuf {
        self.run_dir.join("exec")
    }

    /// The directory of the terminals that clients attach to.
    pub fn attach_dir(&self) -> PathBuf {
        self.run_dir.join("attach")
    }

    /// What the server uses and shows of it.
    pub fn node_settings(&self) -> NodeSettings {
        NodeSettings {
            server: self.server.clone(),
            pki_dir: self.pki_dir(),
            socket_allowed_pods: self.socket_allowed_pods.clone(),
            devices: self.devices.clone(),
            cgroup_driver: self.cgroup_driver,
            runtime_endpoint: self.runtime_endpoint.clone(),
            root_dir: self.root_dir.clone(),
            snapshotter: self.snapshotter.clone(),
            cni_conf_dir: self.cni_conf_dir.clone(),
            runtime_classes: self.runtime_classes.keys().cloned().collect(),
        }
    }

    /// A pod's own directory below the root: volumes, network result, termination messages.
    pub fn pod_dir(&self, uid: &limpet_model::pod::PodUid) -> PathBuf {
        self.root_dir.join("pods").join(uid.as_str())
    }
}
