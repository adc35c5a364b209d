//! The names in the node's serving certificate.

use std::collections::BTreeSet;
use std::net::IpAddr;

use tokio::sync::watch;

use crate::seen_node::NodeFromApiserver;
use limpet_core::node_state::NodeNetwork;

/// The node's own name and addresses or, with `--cloud-provider=external`, those of the Node, which the cloud's
/// controller writes and an apiserver connects to.
pub(super) struct NodeNames {
    pub(super) node: String,
    pub(super) network: watch::Receiver<NodeNetwork>,
    /// The Node at the apiserver, with an external cloud provider.
    pub(super) cloud: Option<watch::Receiver<NodeFromApiserver>>,
}

impl NodeNames {
    /// The current names; none before the cloud's controller has written an address.
    pub(super) fn current(&mut self) -> BTreeSet<String> {
        if let Some(node) = &mut self.cloud {
            let seen = node.borrow_and_update();
            return seen.node().map(|node| of_cloud(node.addresses())).unwrap_or_default();
        }
        let network = self.network.borrow_and_update();
        network.addresses.iter().map(|address| address.to_string()).chain([self.node.clone()]).collect()
    }

    /// Returns once the names differ from `known`.
    pub(super) async fn changed_from(&mut self, known: &BTreeSet<String>) {
        while self.current() == *known {
            let changed = match &mut self.cloud {
                None => self.network.changed().await,
                Some(node) => node.changed().await,
            };
            if changed.is_err() {
                // The names no longer change.
                return std::future::pending().await;
            }
        }
    }
}

/// The names in a Node's addresses; none without an IP address, as in kubelet.
fn of_cloud<'a>(addresses: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeSet<String> {
    let (mut names, mut has_ip) = (BTreeSet::new(), false);
    for (kind, address) in addresses.filter(|(_, address)| !address.is_empty()) {
        match address.parse::<IpAddr>() {
            Ok(ip) => {
                has_ip = true;
                names.insert(ip.to_string());
            }
            // An invalid IP address adds no name.
            Err(_) if kind.ends_with("IP") => {}
            Err(_) => _ = names.insert(address.to_owned()),
        }
    }
    if has_ip { names } else { BTreeSet::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_cloud_are_those_of_the_node_once_it_has_an_address() {
        let names = |addresses: &[(&str, &str)]| Vec::from_iter(of_cloud(addresses.iter().copied())).join(" ");
        assert_eq!(names(&[("Hostname", "edge1")]), "");
        let all = [
            ("Hostname", "edge1"),
            ("InternalIP", "2001:DB8::1"),
            ("ExternalIP", "unknown"),
            ("ExternalDNS", "edge1.example.com"),
            ("InternalDNS", ""),
        ];
        assert_eq!(names(&all), "2001:db8::1 edge1 edge1.example.com");
    }
}
