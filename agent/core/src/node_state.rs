//! The state of the node on which decisions depend, at one moment. One task publishes it, and every worker watches
//! it.
//!
//! A field is here only if something measures it. A new field needs nothing else but its writer, because the
//! components that watch are woken by any change.

use crate::probe::ProbeGrid;
use limpet_model::node::{NodeAddresses, Pressure};

/// The state of the node that may change at any time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Whether containerd responds.
    pub runtime_ready: bool,
    /// Whether there is a CNI configuration.
    pub network_ready: bool,
    /// The node's network.
    pub network: NodeNetwork,
    /// The moments at which probes run, determined when the agent starts.
    pub probe_grid: ProbeGrid,
    /// What the node is short of.
    pub pressure: NodePressure,
    /// Whether it is shutting down, so that no pod starts.
    pub shutting_down: bool,
}

/// The conditions of the node that show which resources are low. They are unknown before the first measurement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodePressure {
    known: bool,
    under: [bool; 3],
}

impl NodePressure {
    /// Nothing was measured yet.
    pub const UNKNOWN: Self = Self { known: false, under: [false; 3] };

    /// Whether it was measured.
    pub fn is_known(self) -> bool {
        self.known
    }

    /// Whether the condition holds.
    pub fn is_under(self, pressure: Pressure) -> bool {
        self.iter().any(|known| known == pressure)
    }

    /// The conditions that hold.
    pub fn iter(self) -> impl Iterator<Item = Pressure> {
        Pressure::ALL.into_iter().zip(self.under).filter_map(|(pressure, under)| under.then_some(pressure))
    }
}

impl FromIterator<Pressure> for NodePressure {
    /// A measurement after which only these conditions hold.
    fn from_iter<I: IntoIterator<Item = Pressure>>(conditions: I) -> Self {
        let conditions: Vec<Pressure> = conditions.into_iter().collect();
        Self { known: true, under: Pressure::ALL.map(|pressure| conditions.contains(&pressure)) }
    }
}

/// The node's network, apart from the pods'.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeNetwork {
    /// The node's addresses: `status.hostIPs`, and `status.podIPs` of `hostNetwork` pods.
    pub addresses: NodeAddresses,
    /// Counts the changes of links, addresses and the CNI configuration. After each, a pod that could not be attached
    /// to its network may be attachable.
    pub changes: u64,
}
