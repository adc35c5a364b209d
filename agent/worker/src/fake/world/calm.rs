//! A node without faults in real time, for hollow nodes; and the addresses of pods.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use jiff::Timestamp;
use limpet_model::pod::PodRecord;

use super::{Behaviour, World};

/// The number of addresses for pods, which are used in turn.
pub const POD_ADDRESSES: u32 = 1_024;

impl World {
    /// A node without containers whose calls all succeed. Init containers succeed; the others run until they are told
    /// to end, and then end immediately. The addresses of its pods begin at `network`.
    pub fn calm(seed: u64, network: Ipv4Addr) -> Self {
        let mut world = Self::new(seed, false);
        world.calm_down();
        world.behaviour = Some(Behaviour { exits: None, obeys: Some(Duration::ZERO) });
        (world.wall_begun, world.network, world.judged) = (Timestamp::now(), Some(network), false);
        world
    }

    /// Gives pods addresses, which begin at `network`.
    pub fn give_addresses(&mut self, network: Ipv4Addr) {
        self.network = Some(network);
    }

    /// The addresses of a pod with that sandbox.
    pub(in crate::fake) fn addresses(&self, record: &PodRecord, sandbox: &str) -> Vec<IpAddr> {
        let Some(network) = self.network.filter(|_| !record.spec().host_network.unwrap_or(false)) else {
            return Vec::new();
        };
        // Excludes the network's own address and the last one.
        let number = sandbox.parse::<u32>().unwrap_or_default() % (POD_ADDRESSES - 2) + 1;
        vec![Ipv4Addr::from_bits(network.to_bits().saturating_add(number)).into()]
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use limpet_model::fixtures::record_of_spec;

    #[test]
    fn pods_have_addresses_of_their_nodes_network_in_turns() {
        let world = World::calm(0, Ipv4Addr::new(10, 0, 4, 0));
        let pod = record_of_spec(serde_json::json!({}));
        let address = |sandbox: &str| world.addresses(&pod, sandbox)[0].to_string();
        assert_eq!([address("1"), address("1021"), address("1022")], ["10.0.4.2", "10.0.7.254", "10.0.4.1"]);
        assert!(world.now().wall.duration_since(Timestamp::now()).abs() < jiff::SignedDuration::from_mins(1));
    }
}
