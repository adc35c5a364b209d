//! The settings of the executor and of the backends that it calls.

use std::path::PathBuf;
use std::time::Duration;

use limpet_containerd::settings::{ImageSettings, LogSettings, RuntimeSettings};
use limpet_core::backoff;
use limpet_core::image_access::VerificationPolicy;
use limpet_core::pull_rate::PullRate;
use limpet_cpus::CpuSettings;
use limpet_host::cgroup::CgroupSettings;
use limpet_host::network::CniSettings;
use limpet_host::volume::VolumeSettings;

/// When images are pulled, and for whom those on the node are.
#[derive(Debug, Clone, PartialEq)]
pub struct PullSettings {
    /// `registryPullQPS`, `registryBurst`; `None` if pulls begin at any rate.
    pub rate: Option<PullRate>,
    /// `serializeImagePulls`, `maxParallelImagePulls`.
    pub max_parallel: usize,
    /// `imagePullCredentialsVerificationPolicy`, `preloadedImagesVerificationAllowlist`.
    pub verification: VerificationPolicy,
    /// `localImageWhenUnreachable`: with `imagePullPolicy: Always`, start from the local image while its registry is
    /// unreachable.
    pub local_when_unreachable: bool,
}

impl Default for PullSettings {
    fn default() -> Self {
        Self {
            rate: Some(PullRate::DEFAULT),
            max_parallel: 1,
            verification: VerificationPolicy::default(),
            local_when_unreachable: false,
        }
    }
}

/// When containers restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestartSettings {
    /// `crashLoopBackOff.maxContainerRestartPeriod`: the longest pause before a container restarts.
    pub max_pause: Duration,
}

impl Default for RestartSettings {
    fn default() -> Self {
        Self { max_pause: backoff::MAX_BACKOFF }
    }
}

/// Everything that the executor is configured with.
#[derive(Debug, Clone)]
pub struct ExecutorSettings {
    /// Directory for state that survives a reboot.
    pub root_dir: PathBuf,
    /// Directory for sockets, namespace pins and FIFOs.
    pub run_dir: PathBuf,
    pub runtime: RuntimeSettings,
    pub images: ImageSettings,
    pub pulls: PullSettings,
    pub restarts: RestartSettings,
    pub logs: LogSettings,
    pub cgroups: CgroupSettings,
    pub cpus: CpuSettings,
    pub network: CniSettings,
    pub volumes: VolumeSettings,
}

impl ExecutorSettings {
    /// The directory of the FIFOs of `exec` commands.
    pub fn exec_dir(&self) -> PathBuf {
        self.run_dir.join("exec")
    }

    /// The directory of the terminals to which clients attach.
    pub fn attach_dir(&self) -> PathBuf {
        self.run_dir.join("attach")
    }
}
