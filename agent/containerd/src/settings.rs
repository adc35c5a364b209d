//! The settings of containerd, its images, its containers and their logs.

mod shim;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use limpet_log::LogRotation;
use limpet_model::pod::swap::SwapBehavior;

use crate::container::runtime::RuntimeClass;
pub use crate::image::ImageSettings;
use crate::spec::ShimGroup;
pub use shim::Shim;

/// How to reach containerd, and which of its parts run pods.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeSettings {
    /// `containerRuntimeEndpoint`: containerd's socket, without `unix://`.
    pub endpoint: PathBuf,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
    /// `containerdConfigFile`, in which containerd's image verifiers are configured.
    pub containerd_config: PathBuf,
    pub snapshotter: String,
    /// `runtimeBinary`: the OCI runtime for containerd's shim; `None`: the shim's own default, runc.
    pub binary: Option<PathBuf>,
    pub shim: Shim,
    /// `shimGroup`.
    pub shim_group: ShimGroup,
    /// `runtimeClasses`, by name.
    pub classes: BTreeMap<String, RuntimeClass>,
}

impl Default for RuntimeSettings {
    fn default() -> Self {
        Self {
            endpoint: "/run/containerd/containerd.sock".into(),
            request_timeout: Duration::from_secs(120),
            containerd_config: "/etc/containerd/config.toml".into(),
            snapshotter: "overlayfs".to_owned(),
            binary: None,
            shim: Shim::default(),
            shim_group: ShimGroup::default(),
            classes: BTreeMap::new(),
        }
    }
}

/// Settings of every container that its Pod does not have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ContainerSettings {
    pub seccomp_default: bool,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// `singleProcessOOMKill`.
    pub single_process_oom_kill: bool,
}

/// Where containers' logs are, and when they are rotated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// `podLogsDir`.
    pub pods_dir: PathBuf,
    /// `containerLogsDirectory`: kubelet's symlinks.
    pub containers_dir: PathBuf,
    /// `containerLogMaxSize`, `containerLogMaxFiles`.
    pub rotation: LogRotation,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            pods_dir: "/var/log/pods".into(),
            containers_dir: "/var/log/containers".into(),
            rotation: LogRotation { max_size: 10 << 20, max_files: 5 },
        }
    }
}
