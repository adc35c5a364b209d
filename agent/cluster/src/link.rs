//! The connection to the apiserver: every request goes through it, and its results determine the connection's state.
//!
//! [`connection`] holds the client, below everything else. [`view`] is what the rest of the agent is shown, and the
//! outbox counts what is unsent.

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

/// The parts of the agent that a connection uses.
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

/// The progress of the cluster's lists.
#[derive(Debug)]
struct ListedState {
    /// Counts how often the cluster was restored to an older state.
    beginnings: watch::Sender<u64>,
    /// The version that the list of Pods and its watch have reached; 0 if none.
    pods_version: AtomicU64,
}

impl Link {
    /// A connection to this server, which is opened at the first request.
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

    pub fn view(&self) -> ClusterView {
        self.0.view.load()
    }

    /// The validity of the node's client certificate; `None` if it authenticates in another way, or the certificate
    /// was not read yet.
    pub fn identity(&self) -> Option<Validity> {
        self.0.connection.identity()
    }

    /// Digests of the certificate authorities in the current kubeconfig.
    pub(super) fn authorities(&self) -> BTreeSet<String> {
        self.0.connection.authorities()
    }

    /// When the apiserver last answered a request; `None` if it has not since the agent started.
    pub fn last_answer(&self) -> Option<Timestamp> {
        self.0.view.last_answer()
    }

    /// What the node with this name has not sent to the apiserver yet.
    pub fn unsent(&self, node: &str) -> Unsent {
        let all = self.0.view.events().snapshot();
        let events = due(&all, &self.0.outbox.posted(), node, Timestamp::now()).len();
        self.0.outbox.unsent(events)
    }

    pub(super) fn metrics(&self) -> &ApiserverMetrics {
        self.0.view.metrics()
    }

    /// Where tasks record what is unsent.
    pub(super) fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// Changes the pods' part of the view.
    pub(super) fn show(&self, change: impl FnOnce(&mut ClusterView)) {
        self.0.view.change_pods(change);
    }

    /// Resolves while the server answers.
    pub(super) async fn online(&self) {
        self.0.view.wait_for(true).await;
    }

    /// Resolves once the server no longer answers.
    pub(super) async fn lost(&self) {
        self.0.view.wait_for(false).await;
    }

    /// Resolves once the state is `!online`.
    pub(super) async fn switched(&self, online: bool) {
        self.0.view.wait_for(!online).await;
    }

    /// Records that the cluster was restored to an older state, so everything has to be listed again.
    pub(super) fn list_again(&self) {
        self.pods_reached(0);
        self.0.listed.beginnings.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes when everything has to be listed again.
    pub(super) fn beginnings(&self) -> watch::Receiver<u64> {
        self.0.listed.beginnings.subscribe()
    }

    /// Records the version that the list of Pods or its watch has reached.
    pub(super) fn pods_reached(&self, version: u64) {
        self.0.listed.pods_version.store(version, Ordering::Relaxed);
    }

    /// The version that the Pods have reached; 0 if none.
    pub(super) fn pods_version(&self) -> u64 {
        self.0.listed.pods_version.load(Ordering::Relaxed)
    }

    /// Counts received data of any kind: the value changes as long as anything arrives.
    pub(super) fn received_count(&self) -> Option<u64> {
        self.0.connection.received_count()
    }

    /// Whether the server answers.
    pub(super) fn is_online(&self) -> bool {
        self.0.view.is_online()
    }

    /// Records that the server answers.
    pub(super) fn succeeded(&self) {
        self.0.view.change_state(|state| state.succeeded(Timestamp::now()));
    }

    /// Records that the leading watch has failed, for any reason: there is no usable connection.
    pub(super) fn leader_failed(&self, error: &RequestError) {
        let known = cause(error);
        let cause = known.unwrap_or(match error.code() {
            Some(403) => Cause::Forbidden,
            Some(_) => Cause::ServerError,
            None => Cause::Unreachable,
        });
        // A failed request has already ended the connection; a failed watch that had begun has not.
        if cause != Cause::ServerError && (known.is_none() || self.is_online()) {
            self.0.scheduler.lost(self.0.scheduler.connection());
        }
        self.failed(cause, error);
    }

    fn failed(&self, cause: Cause, error: &RequestError) {
        // A server that answers with an error keeps the connection, and a busy server is spared new ones.
        if cause != Cause::ServerError {
            self.0.connection.close();
        }
        let now = Timestamp::now();
        let cause = cause.explained(self.identity(), now);
        self.0.view.change_state(|state| state.failed(cause, error.to_string(), now));
    }

    /// Records new credentials: the next request uses them, and pausing requests are retried.
    pub(super) fn renew_client(&self) {
        self.0.connection.renew();
    }

    pub(super) fn node_network(&self) -> watch::Receiver<NodeNetwork> {
        self.0.node_network.clone()
    }

    /// The open client, or a new one.
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

/// Whether the failure of any request means that there is no connection, and why.
fn cause(error: &RequestError) -> Option<Cause> {
    match error {
        RequestError::Credentials(_) => Some(Cause::Credentials),
        RequestError::Unreachable(_) => Some(Cause::Unreachable),
        RequestError::Certificate { fault: CertificateFault::Expired, .. } => Some(Cause::CertificateExpired),
        RequestError::Certificate { fault: CertificateFault::NotYetValid, .. } => Some(Cause::ClockSkew),
        RequestError::Certificate { fault: CertificateFault::Untrusted, .. } => Some(Cause::Certificate),
        RequestError::Refused { code: 401, .. } => Some(Cause::Unauthorized),
        // One slow request, for example because of a webhook, says little. The lease and the leading watch detect
        // whether all are slow.
        RequestError::Deadline(_) | RequestError::Refused { .. } | RequestError::Unreadable(_) => None,
    }
}

#[cfg(test)]
mod tests;
