//! The state of the node that decisions depend on, as it is at one moment. One task publishes it; every worker watches it.
//!
//! A field is here only if something measures it. A new one needs only a field and its writer: the component that watches
//! is woken by any change.

use crate::probe::ProbeGrid;
use limpet_model::node::{NodeAddresses, Pressure};

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
    /// What the node is short of.
    pub pressure: NodePressure,
    /// It is shutting down: no pod starts.
    pub shutting_down: bool,
}

/// The conditions of the node that show which resources are low. Not known before the first measurement.
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
        self.iter().any(|one| one == pressure)
    }

    /// The conditions that hold.
    pub fn iter(self) -> impl Iterator<Item = Pressure> {
        Pressure::ALL.into_iter().zip(self.under).filter_map(|(pressure, under)| under.then_some(pressure))
    }
}

impl FromIterator<Pressure> for NodePressure {
    /// A measurement after which these hold, and no others.
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
    /// Counts the changes of links, addresses and the CNI configuration: after each one, a pod that could not be attached
    /// to its network may be.
    pub changes: u64,
}
