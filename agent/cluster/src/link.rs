//! The connection to the apiserver as the agent sees it: requests go through it, and their results say how it is.
//!
//! [`connection`] holds the client, below everything else. Beside it, [`view`] is what others are shown, and the outbox
//! counts what is unsent.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use jiff::Timestamp;
use tokio::sync::watch;

use super::event_schedule::due;
use super::outbox::{Outbox, Unsent};
use connection::Connection;
use limpet_apiserver_client::{CertificateFault, Client, RequestError};
use limpet_core::certificate::Validity;
use limpet_core::connectivity::Cause;
use limpet_core::node_state::NodeNetwork;
use limpet_telemetry::event::Events;
use limpet_telemetry::metrics::{ApiserverMetrics, Metrics};
use request_scheduler::RequestScheduler;
use view::SharedView;

pub use connection::ClientSource;
pub(super) use opened::open;
pub(super) use requests::BUSY;
pub use view::ClusterView;

mod connection;
mod opened;
mod pauses;
mod request_scheduler;
mod requests;
mod view;

/// The connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Link(Arc<LinkState>);

/// What of the agent a connection uses.
#[derive(Debug, Clone)]
pub struct LinkParts {
    pub node_network: watch::Receiver<NodeNetwork>,
    pub metrics: Metrics,
    pub events: Events,
}

#[derive(Debug)]
struct LinkState {
    connection: Connection,
    scheduler: RequestScheduler,
    view: SharedView,
    outbox: Outbox,
    listed: ListedState,
    node_network: watch::Receiver<NodeNetwork>,
}

/// How far the lists of the cluster have come.
#[derive(Debug)]
struct ListedState {
    /// Counts how often the cluster has gone back to an older state.
    beginnings: watch::Sender<u64>,
    /// The version that the list of Pods and what followed it have come to; 0: none.
    pods_version: AtomicU64,
}

impl Link {
    /// A connection to that server, which is not made yet.
    pub fn new(source: ClientSource, server: &str, parts: LinkParts) -> Self {
        let LinkParts { node_network, metrics, events } = parts;
        Self(Arc::new(LinkState {
            connection: Connection::new(source),
            scheduler: RequestScheduler::default(),
            view: SharedView::new(server, metrics, events),
            outbox: Outbox::default(),
            listed: ListedState { beginnings: watch::channel(0).0, pods_version: AtomicU64::new(0) },
            node_network,
        }))
    }

    /// How it is now.
    pub fn view(&self) -> ClusterView {
        self.0.view.load()
    }

    /// When the certificate is valid by which the node names itself; `None`: it has another way, or was not read yet.
    pub fn identity(&self) -> Option<Validity> {
        self.0.connection.identity()
    }

    /// Digests of the certificates of the authorities that the kubeconfig in use names.
    pub(super) fn authorities(&self) -> BTreeSet<String> {
        self.0.connection.authorities()
    }

    /// When the apiserver answered a request last; `None`: not since the agent started.
    pub fn last_answer(&self) -> Option<Timestamp> {
        self.0.view.last_answer()
    }

    /// What the node of that name has not sent to the apiserver yet.
    pub fn unsent(&self, node: &str) -> Unsent {
        let all = self.0.view.events().snapshot();
        let events = due(&all, &self.0.outbox.posted(), node, Timestamp::now()).len();
        self.0.outbox.unsent(events)
    }

    /// The metrics of a node in a cluster.
    pub(super) fn metrics(&self) -> &ApiserverMetrics {
        self.0.view.metrics()
    }

    /// Where the tasks say what is unsent.
    pub(super) fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// Changes what others are shown of the pods.
    pub(super) fn show(&self, change: impl FnOnce(&mut ClusterView)) {
        self.0.view.change_pods(change);
    }

    /// Resolves while the server answers.
    pub(super) async fn online(&self) {
        self.0.view.wait_for(true).await;
    }

    /// Resolves once the server does not answer any more.
    pub(super) async fn lost(&self) {
        self.0.view.wait_for(false).await;
    }

    /// Resolves once the server answers, or does not any more, other than `online`.
    pub(super) async fn switched(&self, online: bool) {
        self.0.view.wait_for(!online).await;
    }

    /// The cluster has gone back to an older state: everything has to be listed again.
    pub(super) fn list_again(&self) {
        self.pods_reached(0);
        self.0.listed.beginnings.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes when everything has to be listed again.
    pub(super) fn beginnings(&self) -> watch::Receiver<u64> {
        self.0.listed.beginnings.subscribe()
    }

    /// The list of Pods, or what followed it, has come to that version.
    pub(super) fn pods_reached(&self, version: u64) {
        self.0.listed.pods_version.store(version, Ordering::Relaxed);
    }

    /// The version that the Pods have come to; 0: none.
    pub(super) fn pods_version(&self) -> u64 {
        self.0.listed.pods_version.load(Ordering::Relaxed)
    }

    /// Counts what has come from the server, whatever it answers: changes as long as something comes.
    pub(super) fn received_count(&self) -> Option<u64> {
        self.0.connection.received_count()
    }

    /// Whether the server answers.
    pub(super) fn is_online(&self) -> bool {
        self.0.view.is_online()
    }

    /// The server answers.
    pub(super) fn succeeded(&self) {
        self.0.view.change_state(|state| state.succeeded(Timestamp::now()));
    }

    /// What leads has failed, whatever by: there is no connection to work with.
    pub(super) fn leader_failed(&self, error: &RequestError) {
        let known = cause(error);
        let cause = known.unwrap_or(match error.code() {
            Some(403) => Cause::Forbidden,
            Some(_) => Cause::ServerError,
            None => Cause::Unreachable,
        });
        // The failure of a request has ended the connection already; that of a watch, which had begun, has not.
        if cause != Cause::ServerError && (known.is_none() || self.is_online()) {
            self.0.scheduler.lost(self.0.scheduler.connection());
        }
        self.failed(cause, error);
    }

    fn failed(&self, cause: Cause, error: &RequestError) {
        // A server that answers so has nothing against the connection, and one that is busy is spared new ones.
        if cause != Cause::ServerError {
            self.0.connection.close();
        }
        let now = Timestamp::now();
        let cause = cause.explained(self.identity(), now);
        self.0.view.change_state(|state| state.failed(cause, error.to_string(), now));
    }

    /// There are new credentials: the next request uses them, and pausing requests are tried again.
    pub(super) fn renew_client(&self) {
        self.0.connection.renew();
    }

    /// The node's addresses, and their changes.
    pub(super) fn node_network(&self) -> watch::Receiver<NodeNetwork> {
        self.0.node_network.clone()
    }

    /// The client, which is made if none is open.
    async fn client(&self) -> Result<Client, RequestError> {
        if let Some(client) = self.0.connection.client() {
            return Ok(client);
        }
        let client = self.0.connection.open().await?;
        if let Some(server) = client.server() {
            self.0.view.set_server(server);
        }
        Ok(client)
    }
}

/// Whether the failure of any request says that there is no connection, and why.
fn cause(error: &RequestError) -> Option<Cause> {
    match error {
        RequestError::Credentials(_) => Some(Cause::Credentials),
        RequestError::Unreachable(_) => Some(Cause::Unreachable),
        RequestError::Certificate { fault: CertificateFault::Expired, .. } => Some(Cause::CertificateExpired),
        RequestError::Certificate { fault: CertificateFault::NotYetValid, .. } => Some(Cause::ClockSkew),
        RequestError::Certificate { fault: CertificateFault::Untrusted, .. } => Some(Cause::Certificate),
        RequestError::Refused { code: 401, .. } => Some(Cause::Unauthorized),
        // One request may be slow, a webhook's for example. The lease and what leads say whether all are.
        RequestError::Deadline(_) | RequestError::Refused { .. } | RequestError::Unreadable(_) => None,
    }
}

#[cfg(test)]
mod tests;
