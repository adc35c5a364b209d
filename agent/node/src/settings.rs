//! The settings of the node itself.

use std::path::PathBuf;

use limpet_model::node::NodeAddresses;
use limpet_model::pod::requests::Requests;

#[derive(Debug, Clone, PartialEq)]
pub struct NodeSettings {
    /// `--hostname-override`; otherwise the host's name at the first start.
    pub hostname_override: Option<String>,
    /// `nodeIP`; empty: the addresses of the default routes, if any.
    pub ip: NodeAddresses,
    pub max_pods: u32,
    /// `podsPerCore`; `None`: only `maxPods` counts.
    pub pods_per_core: Option<u32>,
    /// `kubeReserved` and `systemReserved`: the node's resources that are not for pods.
    pub reserved: Reserved,
    /// `enforceNodeAllocatable` has `pods`: all pods together are limited to what is not reserved.
    pub limit_all_pods: bool,
    pub kernel: KernelSettings,
    /// `ignoreOtherAgents`: start although a kubelet runs on this node, for a trial next to it with another containerd.
    pub ignore_other_agents: bool,
}

impl Default for NodeSettings {
    fn default() -> Self {
        Self {
            hostname_override: None,
            ip: NodeAddresses::NONE,
            max_pods: 110,
            pods_per_core: None,
            reserved: Reserved::default(),
            limit_all_pods: true,
            kernel: KernelSettings::default(),
            ignore_other_agents: false,
        }
    }
}

impl NodeSettings {
    /// The most pods of the node, on a machine with this many processors.
    pub fn most_pods(&self, processors: usize) -> u32 {
        let by_cores = self.pods_per_core.map(|each| u64::from(each).saturating_mul(processors as u64));
        let most = by_cores.map(|most| u32::try_from(most).unwrap_or(u32::MAX));
        most.map_or(self.max_pods, |most| most.min(self.max_pods))
    }
}

/// What the kernel has to be like for the agent to start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KernelSettings {
    /// `failSwapOn`: limpet does not start while swap is in use. Unlike kubelet's, false by default.
    pub fail_swap_on: bool,
    /// `protectKernelDefaults`; `None`: the kernel's settings are neither checked nor changed.
    pub protect_defaults: Option<bool>,
}

/// The node's resources that are not for pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reserved {
    /// `kubeReserved`: for containerd and this agent.
    pub kube: Reservation,
    /// `systemReserved`: for everything else.
    pub system: Reservation,
    /// `kubeReservedCgroup`, if it is to be limited.
    pub kube_cgroup: Option<ReservedCgroup>,
    /// `systemReservedCgroup`, if it is to be limited.
    pub system_cgroup: Option<ReservedCgroup>,
}

/// A cgroup of the node's own processes that others create, and that is limited to what is reserved for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedCgroup {
    /// Its path from the root of the hierarchy, or a slice.
    pub group: PathBuf,
    /// Whether only its share of the processors is set.
    pub compressible_only: bool,
}

/// What is reserved for some of the node's own processes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Processors, memory, disk.
    pub resources: Requests,
    /// Process ids.
    pub pids: u64,
}
