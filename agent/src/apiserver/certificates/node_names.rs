//! The names that the node's serving certificate is for.

use std::collections::BTreeSet;

use tokio::sync::watch;

use crate::apiserver::node::NodeFromApiserver;
use limpet_core::node_state::NodeNetwork;

/// The node's own name and its addresses. With `--cloud-provider=external` the addresses are those that the cloud's
/// controller has written into the Node, as for kubelet: an apiserver connects by them.
pub(super) struct NodeNames {
    pub(super) node: String,
    pub(super) network: watch::Receiver<NodeNetwork>,
    /// The Node, with an external cloud provider.
    pub(super) cloud: Option<watch::Receiver<NodeFromApiserver>>,
}

impl NodeNames {
    /// The names of now; none before the cloud's controller has named any.
    pub(super) fn current(&mut self) -> BTreeSet<String> {
        let addresses: Vec<String> = match &mut self.cloud {
            None => {
                let network = self.network.borrow_and_update();
                network.addresses.iter().map(|address| address.to_string()).collect()
            }
            Some(node) => {
                let seen = node.borrow_and_update();
                seen.node().into_iter().flat_map(|node| node.addresses().map(str::to_owned)).collect()
            }
        };
        match self.cloud.is_some() && addresses.is_empty() {
            true => BTreeSet::new(),
            false => addresses.into_iter().chain([self.node.clone()]).collect(),
        }
    }

    /// Returns once the names are other than `known`.
    pub(super) async fn changed_from(&mut self, known: &BTreeSet<String>) {
        while self.current() == *known {
            let changed = match &mut self.cloud {
                None => self.network.changed().await,
                Some(node) => node.changed().await,
            };
            if changed.is_err() {
                // They do not change any more.
                return std::future::pending().await;
            }
        }
    }
}
