//! Keeps the node's network as others see it up to date: its addresses, and a count of what changed.
//!
//! The task sleeps until the kernel reports a change of links, addresses or routes, waits for the burst to end, and
//! looks. Where the kernel refuses to report, the addresses stay those at the agent's start.

use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use limpet_core::node_state::NodeNetwork;
use limpet_host::node_network::{Links, NetworkChanges, addresses, links};
use limpet_model::node::NodeAddresses;

/// One event of the network is a burst of the kernel's reports.
const BURST_DURATION: Duration = Duration::from_millis(100);

/// The node's network and the way to publish its changes.
#[derive(Debug)]
pub struct NetworkFollower {
    configured: NodeAddresses,
    links: Links,
    published: watch::Sender<NodeNetwork>,
}

impl NetworkFollower {
    /// Reads the network as it is now. `configured`: the node's only addresses, if there are any.
    pub fn new(configured: NodeAddresses) -> Self {
        let (published, _) = watch::channel(NodeNetwork { addresses: addresses(configured), changes: 0 });
        Self { configured, links: links(), published }
    }

    /// The network now and every change of it.
    pub fn subscribe(&self) -> watch::Receiver<NodeNetwork> {
        self.published.subscribe()
    }

    /// Counts a change that others notice: one of the CNI configuration.
    pub fn counter(&self) -> impl Fn() + Send + use<> {
        let published = self.published.clone();
        move || published.send_modify(|network| network.changes += 1)
    }

    /// Follows the network until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            error = self.follow() => {
                tracing::warn!(
                    %error,
                    "the kernel does not report changes of addresses and links (rtnetlink): the node's addresses stay as \
                     they are until the agent is started again"
                );
            }
        }
    }

    async fn follow(mut self) -> std::io::Error {
        let mut changes = match NetworkChanges::listen() {
            Ok(changes) => changes,
            Err(error) => return error,
        };
        loop {
            self.refresh();
            if let Err(error) = changes.changed().await {
                return error;
            }
            // What comes from here on is reported once more.
            tokio::time::sleep(BURST_DURATION).await;
        }
    }

    /// Publishes what differs from the last look.
    fn refresh(&mut self) {
        let (now, links) = (addresses(self.configured), links());
        let links_changed = std::mem::replace(&mut self.links, links) != self.links;
        self.published.send_if_modified(|network| {
            let addresses_changed = network.addresses != now;
            if addresses_changed {
                let list: Vec<String> = now.iter().map(|address| address.to_string()).collect();
                tracing::info!(addresses = ?list, "the node's addresses changed");
            }
            network.addresses = now;
            network.changes += u64::from(links_changed || addresses_changed);
            links_changed || addresses_changed
        });
    }
}
