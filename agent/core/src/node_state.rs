//! The state of the node that decisions depend on, as it is at one moment. One task publishes it; every worker watches it.
//!
//! A field is here only if something measures it. A further one (the pressure on a resource, say) needs no more than a
//! field and its writer: whoever watches is woken by any change.

use crate::probe::ProbeGrid;
use limpet_model::node::NodeAddresses;

/// What of the node may change at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeState {
    /// containerd responds.
    pub runtime_ready: bool,
    /// There is a CNI configuration.
    pub network_ready: bool,
    /// The node's network.
    pub network: NodeNetwork,
    /// The moments at which probes run; settled when the agent starts.
    pub probe_grid: ProbeGrid,
}

/// The node's network, apart from the pods'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeNetwork {
    /// The node's addresses: `status.hostIPs`, and `status.podIPs` of `hostNetwork` pods.
    pub addresses: NodeAddresses,
    /// Counts the changes of links, addresses and the CNI configuration: after each one, a pod that could not be attached
    /// to its network may be.
    pub changes: u64,
}
