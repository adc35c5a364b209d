//! The place of a node among all nodes of a fleet, which depends on its name alone: it decides which nodes get a staged update
//! first, and when a node asks for one. Pure.

use std::fmt;

use sha2::{Digest, Sha256};

/// A place from 0 up to 10,000, spread evenly over names. It never changes: stages of a roll-out depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodePlace(u16);

impl NodePlace {
    /// How many places there are.
    const PLACES: u64 = 10_000;

    /// The place of the node of that name.
    pub fn new(node_name: &str) -> Self {
        let digest = Sha256::digest(node_name.as_bytes());
        let number = digest.first_chunk::<8>().copied().map_or(0, u64::from_be_bytes);
        Self(u16::try_from(number % Self::PLACES).unwrap_or(0))
    }

    /// It in hundredths of a percent.
    pub fn permyriad(self) -> u16 {
        self.0
    }

    /// Whether the node is among the first `percent` of all.
    pub fn is_within(self, percent: u8) -> bool {
        u64::from(self.0) * 100 < u64::from(percent) * Self::PLACES
    }
}

impl fmt::Display for NodePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02} %", self.0 / 100, self.0 % 100)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stage_has_its_share_of_the_nodes_and_all_of_the_stage_before() {
        let nodes: Vec<NodePlace> = (0..10_000).map(|number| NodePlace::new(&format!("edge-{number}"))).collect();
        let mut before = 0;
        for percent in [0, 1, 10, 50, 99, 100] {
            let within = nodes.iter().filter(|node| node.is_within(percent)).count();
            let wanted = usize::from(percent) * 100;
            assert!(within.abs_diff(wanted) <= 150, "{percent} %: {within}");
            assert!(within >= before);
            before = within;
        }
        assert_eq!(nodes.iter().filter(|node| node.is_within(0)).count(), 0);
        assert!(nodes.iter().all(|node| node.is_within(100)));
    }

    #[test]
    fn the_place_of_a_name_never_changes() {
        assert_eq!(NodePlace::new("edge1").to_string(), "72.16 %");
    }
}
