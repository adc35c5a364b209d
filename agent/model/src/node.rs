//! The node that containers run on: what is fixed while the agent runs, and its addresses.

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::pod::compute_resources::CpuQuotas;
use crate::pod::downward::NodeLimits;
use crate::pod::memory_qos::MemoryQos;
use crate::pod::swap::SwapBehavior;

/// The machine's architecture as Kubernetes names it.
pub fn architecture() -> &'static str {
    go_architecture(std::env::consts::ARCH)
}

fn go_architecture(name: &'static str) -> &'static str {
    match name {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        "x86" => "386",
        other => other,
    }
}

/// Facts of the node that do not change while the agent runs.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// The settled node name.
    pub name: String,
    /// Bytes of memory, for kubelet's OOM score formula.
    pub memory_capacity: u64,
    /// What of it is available to pods.
    pub limits: NodeLimits,
    /// Bytes of swap, at the agent's start.
    pub swap_capacity: u64,
    /// `memorySwap.swapBehavior`.
    pub swap_behavior: SwapBehavior,
    /// `singleProcessOOMKill`: the kernel's OOM killer ends one process of a container and not all. Only with cgroup
    /// v2.
    pub single_process_oom_kill: bool,
    /// How limits of cpu are enforced.
    pub cpu_quotas: CpuQuotas,
    /// `memoryReservationPolicy`, `memoryThrottlingFactor`. With cgroup v2.
    pub memory_qos: MemoryQos,
    /// The lowest `oom_score_adj` the agent may set, which is its own if it lacks `CAP_SYS_RESOURCE`.
    pub oom_score_floor: i32,
    /// Whether only the unified (v2) cgroup hierarchy is mounted.
    pub cgroup_v2: bool,
    /// Whether the cgroup driver is systemd, where each container is a scope.
    pub systemd_cgroup: bool,
    /// The agent's own systemd service, when it runs as one.
    pub service: Option<String>,
    /// The agent's configuration.
    pub seccomp_default: bool,
    /// Directory of `Localhost` seccomp profiles: `<root-dir>/seccomp`.
    pub seccomp_dir: PathBuf,
    pub runtime_endpoint: PathBuf,
    /// The devices that pods may request, by resource name.
    pub devices: BTreeMap<String, Device>,
    /// The directories of the files of CDI devices; a later one takes precedence.
    pub cdi_dirs: Vec<PathBuf>,
    /// The number of huge pages that the kernel has reserved, by their size in bytes; it has an entry for each
    /// supported size.
    pub huge_pages: BTreeMap<u64, u64>,
    /// Whether cgroups can limit huge pages, by the controller `hugetlb`.
    pub limits_huge_pages: bool,
}

/// What the node is short of: a condition of the node, by Kubernetes' names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Pressure {
    #[serde(rename = "MemoryPressure")]
    Memory,
    /// Space or inodes of a disk.
    #[serde(rename = "DiskPressure")]
    Disk,
    /// Process ids.
    #[serde(rename = "PIDPressure")]
    Pid,
}

impl Pressure {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Disk, Self::Pid];

    /// The condition's type.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "MemoryPressure",
            Self::Disk => "DiskPressure",
            Self::Pid => "PIDPressure",
        }
    }
}

impl fmt::Display for Pressure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Devices of the host that a container gets together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Their paths, below `/dev` of the host and of the container. Links are followed.
    pub paths: Vec<PathBuf>,
    /// CDI devices, as `vendor.com/class=name`: their files are applied in addition.
    pub cdi: Vec<String>,
    /// Whether only one pod at a time may have them.
    pub exclusive: bool,
    /// What the device cgroup allows: of `r`, `w` and `m`.
    pub permissions: String,
}

/// The node's addresses, the primary one first. At most one of each family, as in `status.hostIPs`. Empty on a
/// machine without a network.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeAddresses([Option<IpAddr>; 2]);

impl NodeAddresses {
    /// No address.
    pub const NONE: Self = Self([None, None]);

    /// Only this address.
    pub const fn single(address: IpAddr) -> Self {
        Self([Some(address), None])
    }

    /// Whether it is empty.
    pub fn is_empty(self) -> bool {
        self.0[0].is_none()
    }

    /// The addresses without `::` and `0.0.0.0`, which mean any address of a family.
    pub fn specified(self) -> Self {
        self.iter().filter(|address| !address.is_unspecified()).collect()
    }

    /// The addresses, the primary one first.
    pub fn iter(self) -> impl Iterator<Item = IpAddr> {
        self.0.into_iter().flatten()
    }
}

impl fmt::Display for NodeAddresses {
    /// Writes them as in `--node-ip`, with a comma between two.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts: Vec<String> = self.iter().map(|address| address.to_string()).collect();
        f.write_str(&texts.join(","))
    }
}

impl FromIterator<IpAddr> for NodeAddresses {
    /// Takes the first address, and the first one after it of the other family.
    fn from_iter<I: IntoIterator<Item = IpAddr>>(addresses: I) -> Self {
        let mut addresses = addresses.into_iter();
        let primary = addresses.next();
        Self([primary, primary.and_then(|primary| addresses.find(|other| other.is_ipv4() != primary.is_ipv4()))])
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn one_address_of_each_family_the_first_is_the_primary_one() {
        let cases: [(&[&str], &[&str]); 5] = [
            (&[], &[]),
            (&["10.0.0.1"], &["10.0.0.1"]),
            (&["10.0.0.1", "fd00::1"], &["10.0.0.1", "fd00::1"]),
            (&["fd00::1", "10.0.0.1"], &["fd00::1", "10.0.0.1"]),
            (&["10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"], &["10.0.0.1", "fd00::1"]),
        ];
        for (given, wanted) in cases {
            let addresses: NodeAddresses = given.iter().map(|ip| ip.parse::<IpAddr>().unwrap()).collect();
            assert_eq!(addresses.iter().map(|ip| ip.to_string()).collect::<Vec<_>>(), wanted);
            assert_eq!(addresses.is_empty(), given.is_empty());
        }
        assert_eq!(NodeAddresses::NONE, NodeAddresses::default());
    }
}
