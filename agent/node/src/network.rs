//! Keeps the node's network up to date for the rest of the agent: its addresses, and a count of changes.
//!
//! The task sleeps until the kernel reports a change of links, addresses or routes, waits for the burst to end, and
//! reads the state. If the kernel refuses to report, it reads once a minute and tries again. The addresses of the
//! node's name are read from the hosts file, and looked up at name servers separately; no start waits for them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use limpet_core::node_state::NodeNetwork;
use limpet_host::node_network::{Links, NetworkChanges, addresses, links, named_in_hosts};
use limpet_host::watch_again::{Attempts, WATCH_AGAIN};
use limpet_model::node::NodeAddresses;

/// Reports of the kernel within this time count as one change.
const BURST_DURATION: Duration = Duration::from_millis(100);
/// The deadline of name servers.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);

const HOSTS: &str = "/etc/hosts";

#[derive(Debug)]
pub struct NetworkFollower {
    configured: NodeAddresses,
    /// The node's name, if its addresses are looked up.
    name: Option<String>,
    /// The known addresses of the name.
    named: Vec<IpAddr>,
    /// The running lookup of the name.
    lookup: JoinSet<Option<Vec<IpAddr>>>,
    links: Links,
    published: watch::Sender<NodeNetwork>,
}

impl NetworkFollower {
    /// Reads the current network. `configured` are the node's only addresses, if there are any; a `name` that is an
    /// address is the next choice.
    pub fn new(configured: NodeAddresses, name: &str) -> Self {
        let (configured, name) = match (configured.specified().is_empty(), name.parse()) {
            (true, Ok(address)) => (NodeAddresses::single(address), None),
            (true, Err(_)) => (configured, Some(name.to_owned())),
            (false, _) => (configured, None),
        };
        let named = name.as_deref().map(|name| named_in_hosts(Path::new(HOSTS), name)).unwrap_or_default();
        let (published, _) = watch::channel(NodeNetwork { addresses: addresses(configured, &named), changes: 0 });
        Self { configured, name, named, lookup: JoinSet::new(), links: links(), published }
    }

    /// The network now and every change of it.
    pub fn subscribe(&self) -> watch::Receiver<NodeNetwork> {
        self.published.subscribe()
    }

    /// Counts a change that others notice: of the CNI configuration.
    pub fn counter(&self) -> impl Fn() + Send + use<> {
        let published = self.published.clone();
        move || published.send_modify(|network| network.changes += 1)
    }

    /// Follows the network until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow(NetworkChanges::listen) => {}
        }
    }

    /// Follows what `listen` reports.
    async fn follow(&mut self, listen: impl Fn() -> std::io::Result<NetworkChanges>) {
        self.begin_lookup();
        let mut attempts = Attempts::new(WATCH_AGAIN);
        loop {
            let error = self.follow_reports(listen()).await;
            let report = |error: &std::io::Error| {
                tracing::warn!(
                    %error,
                    "the kernel does not report changes of addresses and links (rtnetlink): they are read once a minute"
                );
            };
            attempts.failed(&error, report).await;
        }
    }

    async fn follow_reports(&mut self, changes: std::io::Result<NetworkChanges>) -> std::io::Error {
        let mut changes = match changes {
            Ok(changes) => changes,
            Err(error) => {
                self.refresh();
                return error;
            }
        };
        loop {
            if self.refresh() {
                self.begin_lookup();
            }
            tokio::select! {
                reported = changes.changed() => {
                    if let Err(error) = reported {
                        return error;
                    }
                    // Later changes are reported again.
                    tokio::time::sleep(BURST_DURATION).await;
                }
                Some(looked_up) = self.lookup.join_next() => {
                    // Without an answer the last addresses stay. Sorted, because name servers vary their order.
                    let named = looked_up.ok().flatten().unwrap_or_default();
                    if !named.is_empty() && !is_same_set(&named, &self.named) {
                        self.named = named;
                    }
                }
            }
        }
    }

    /// Begins to look up the addresses of the node's name, in place of an earlier lookup.
    fn begin_lookup(&mut self) {
        let Some(name) = self.name.clone() else { return };
        self.lookup.abort_all();
        self.lookup.spawn(async move {
            let asked = tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host((name, 0))).await;
            Some(asked.ok()?.ok()?.map(|address| address.ip()).collect())
        });
    }

    /// Publishes what has changed since the last call. Returns whether anything has.
    fn refresh(&mut self) -> bool {
        let (now, links) = (addresses(self.configured, &self.named), links());
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
        })
    }
}

fn is_same_set(some: &[IpAddr], others: &[IpAddr]) -> bool {
    some.iter().collect::<BTreeSet<_>>() == others.iter().collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_name_that_is_an_address_is_the_nodes() {
        let addresses_of = |configured, name| NetworkFollower::new(configured, name).subscribe().borrow().addresses;
        assert_eq!(addresses_of(NodeAddresses::NONE, "203.0.113.9").to_string(), "203.0.113.9");
        let configured = NodeAddresses::single("203.0.113.1".parse().unwrap());
        assert_eq!(addresses_of(configured, "203.0.113.9"), configured);
    }

    #[tokio::test(start_paused = true)]
    async fn reports_that_fail_are_asked_for_again() {
        let mut follower = NetworkFollower::new(NodeAddresses::NONE, "203.0.113.9");
        let asked = AtomicUsize::new(0);
        let listen = || {
            asked.fetch_add(1, Ordering::Relaxed);
            Err(std::io::ErrorKind::OutOfMemory.into())
        };
        let ended = tokio::time::timeout(Duration::from_secs(150), follower.follow(listen)).await;
        assert!(ended.is_err());
        assert_eq!(asked.load(Ordering::Relaxed), 3);
    }
}
