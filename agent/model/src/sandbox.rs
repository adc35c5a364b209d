//! A pod's sandbox as its containers see it: the namespaces they join, shared memory, hostname, addresses.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use crate::node::NodeAddresses;
use crate::user_namespace::IdRange;

/// The namespaces a pod's containers join. `None` means the host's.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Pin of the network namespace; `None` for `hostNetwork`.
    pub network: Option<PathBuf>,
    /// Pin of the IPC namespace; `None` for `hostIPC`.
    pub ipc: Option<PathBuf>,
    /// Pin of the UTS namespace; `None` for `hostNetwork`.
    pub uts: Option<PathBuf>,
    /// Pin of the PID namespace of a pod with `shareProcessNamespace`; `None` if each container has its own, or uses
    /// the host's.
    pub pid: Option<PathBuf>,
    /// Pin of the user namespace, which owns the others, of a pod with `hostUsers: false`.
    pub user: Option<PathBuf>,
}

impl Namespaces {
    /// The required pins, in the order in which they are bound.
    pub fn pins(&self) -> impl Iterator<Item = &Path> {
        [&self.user, &self.pid, &self.ipc, &self.uts, &self.network].into_iter().filter_map(|pin| pin.as_deref())
    }
}

/// A prepared sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sandbox {
    /// Differs from that of every other sandbox; `None` if an earlier version made it.
    pub id: Option<String>,
    /// The namespaces to join.
    pub namespaces: Namespaces,
    /// The pod's `/dev/shm`, a separate tmpfs; with `hostIPC` the host's.
    pub shm: PathBuf,
    /// The pod's hostname: its own, or the host's with `hostNetwork`.
    pub hostname: String,
    /// The ids of a pod with its own user namespace.
    pub ids: Option<IdRange>,
    /// The SELinux level of the pod's containers that specify none; `None` if nothing is labelled.
    pub level: Option<String>,
}

/// A pod's addresses, the primary one first. With `hostNetwork` there are none, because the node's current ones
/// apply.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodAddresses {
    /// The primary address first.
    pub ips: Vec<IpAddr>,
}

/// A pod's addresses, with those first that are of the family of the node's primary address (kubelet's `sortPodIPs`).
pub fn in_order_of_node(addresses: &[IpAddr], node: NodeAddresses) -> Vec<IpAddr> {
    let primary_is_v6 = node.iter().next().is_some_and(|primary| primary.is_ipv6());
    let mut ordered = addresses.to_vec();
    ordered.sort_by_key(|address| address.is_ipv6() != primary_is_v6);
    ordered
}
