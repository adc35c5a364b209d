//! Facts of the node that containers run on.

use std::net::IpAddr;
use std::path::PathBuf;

/// Facts of the node that do not change while the agent runs.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeFacts {
    /// The settled node name.
    pub name: String,
    /// The node's addresses, for `status.hostIP` and host-network pods; may be empty on a box without network.
    pub addresses: Vec<IpAddr>,
    /// Bytes of memory, for kubelet's OOM score formula.
    pub memory_capacity: u64,
    /// The lowest `oom_score_adj` the agent may set: its own when it lacks `CAP_SYS_RESOURCE`.
    pub oom_score_floor: i32,
    /// Only the unified (v2) cgroup hierarchy is mounted.
    pub cgroup_v2: bool,
    /// The cgroup driver is systemd: each container is a scope.
    pub systemd_cgroup: bool,
    /// The agent's own systemd service, when it runs as one.
    pub service: Option<String>,
    /// The agent's configuration.
    pub seccomp_default: bool,
    /// Directory of `Localhost` seccomp profiles: `<root-dir>/seccomp`.
    pub seccomp_dir: PathBuf,
    /// containerd's socket.
    pub runtime_endpoint: PathBuf,
}
