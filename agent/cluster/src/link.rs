//! The connection to the apiserver as the agent sees it: requests go through it, and their results say how it is.
//!
//! The client is made at the first request, and again after each loss, but where the server answers that it cannot
//! work: so credentials that were rotated, and a kubeconfig that was edited, are read by themselves, and no earlier
//! connection is used again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::certificate_files::client_certificate;
use super::event_schedule::due;
use super::outbox::{Outbox, Unsent};
use crate::settings::ClusterSettings;
use limpet_apiserver_client::{CertificateFault, Client, Credentials, RequestError};
use limpet_core::certificate::Validity;
use limpet_core::connectivity::{Cause, Connectivity};
use limpet_core::node_state::NodeNetwork;
use limpet_model::pod::PodKey;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::{ApiserverMetrics, Metrics};
use opened::Opened;
pub(super) use opened::open;
use request_scheduler::RequestScheduler;
pub(super) use requests::BUSY;

mod opened;
mod pauses;
mod request_scheduler;
mod requests;

/// What others are shown of the cluster.
#[derive(Debug, Clone, PartialEq)]
pub struct ClusterView {
    /// The server's URL.
    pub server: String,
    /// Whether it answers.
    pub state: Connectivity,
    /// When it answered last, while it does not.
    pub last_online: Option<Timestamp>,
    /// How many mirror pods it has of this node.
    pub mirrors: usize,
    /// Why the apiserver does not show these pods. They run nevertheless.
    pub refused: BTreeMap<PodKey, String>,
}

/// Where the credentials come from.
#[derive(Debug)]
enum Origin {
    /// Files, read again after each loss of the connection.
    Files {
        kubeconfig: PathBuf,
        /// Certificate and key, which count instead of the kubeconfig's user once they are there; `None`: they never are.
        certificate: Option<PathBuf>,
    },
    /// They were read before, for several nodes.
    Read(Box<Credentials>),
    /// Nowhere: this client is used, of a simulated cluster.
    Fixed(Client),
}

/// The connection. Clones share it.
#[derive(Debug, Clone)]
pub struct Link(Arc<LinkState>);

/// No time.
const NEVER: i64 = i64::MIN;

#[derive(Debug)]
struct LinkState {
    origin: Origin,
    client: Mutex<Option<Client>>,
    /// When the certificate of the last client is valid; `None`: it had none.
    identity: Mutex<Option<Validity>>,
    /// Making the last client has run a program.
    runs_program: AtomicBool,
    /// Counts the changes of the credentials.
    credentials: watch::Sender<u64>,
    /// Counts how often the cluster has gone back to an older state.
    beginnings: watch::Sender<u64>,
    view: watch::Sender<ClusterView>,
    /// When a request was answered last, in milliseconds; [`NEVER`]: none was.
    answered: AtomicI64,
    /// Whether the server may know streaming lists.
    streams_lists: AtomicBool,
    /// The version that the list of Pods and what followed it have come to; 0: none.
    pods_version: AtomicU64,
    scheduler: RequestScheduler,
    outbox: Outbox,
    node_network: watch::Receiver<NodeNetwork>,
    metrics: Metrics,
    events: Events,
}

impl Link {
    /// A connection that is not made yet; `None` without a kubeconfig. `certificates`: the directory of the node's own.
    pub fn new(
        settings: &ClusterSettings,
        certificates: &Path,
        node_network: watch::Receiver<NodeNetwork>,
        metrics: Metrics,
        events: Events,
    ) -> Option<Self> {
        let kubeconfig = settings.kubeconfig.clone()?;
        let certificate = settings.manages_certificate().then(|| client_certificate(certificates));
        Some(Self::of(Origin::Files { kubeconfig, certificate }, &settings.server, node_network, metrics, events))
    }

    /// A connection by this client: of a simulated cluster.
    pub fn over(
        client: Client,
        server: &str,
        node_network: watch::Receiver<NodeNetwork>,
        metrics: Metrics,
        events: Events,
    ) -> Self {
        Self::of(Origin::Fixed(client), server, node_network, metrics, events)
    }

    /// A connection by credentials that were read before, which is not made yet.
    pub fn by(
        credentials: Credentials,
        server: &str,
        node_network: watch::Receiver<NodeNetwork>,
        metrics: Metrics,
        events: Events,
    ) -> Self {
        Self::of(Origin::Read(Box::new(credentials)), server, node_network, metrics, events)
    }

    fn of(
        origin: Origin,
        server: &str,
        node_network: watch::Receiver<NodeNetwork>,
        metrics: Metrics,
        events: Events,
    ) -> Self {
        metrics.apiserver().set_connected(server, false);
        let (view, _) = watch::channel(ClusterView {
            server: server.to_owned(),
            state: Connectivity::Connecting,
            last_online: None,
            mirrors: 0,
            refused: BTreeMap::new(),
        });
        let (client, identity, (credentials, _)) = (Mutex::default(), Mutex::default(), watch::channel(0));
        let (beginnings, _) = watch::channel(0);
        Self(Arc::new(LinkState {
            origin,
            client,
            identity,
            runs_program: AtomicBool::new(false),
            credentials,
            beginnings,
            view,
            answered: AtomicI64::new(NEVER),
            streams_lists: AtomicBool::new(true),
            pods_version: AtomicU64::new(0),
            scheduler: RequestScheduler::default(),
            outbox: Outbox::default(),
            node_network,
            metrics,
            events,
        }))
    }

    /// How it is now.
    pub fn view(&self) -> ClusterView {
        self.0.view.borrow().clone()
    }

    /// When the certificate is valid by which the node names itself; `None`: it has another way, or was not read yet.
    pub fn identity(&self) -> Option<Validity> {
        *self.0.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Digests of the certificates of the authorities that the kubeconfig in use names.
    pub(super) fn authorities(&self) -> BTreeSet<String> {
        let client = self.0.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let hex = |byte: &u8| format!("{byte:02x}");
        let digest = |certificate: &Vec<u8>| Sha256::digest(certificate).iter().map(hex).collect();
        client.iter().flat_map(|client| client.authorities().iter().map(digest)).collect()
    }

    /// When the apiserver answered a request last; `None`: not since the agent started.
    pub fn last_answer(&self) -> Option<Timestamp> {
        Timestamp::from_millisecond(self.0.answered.load(Ordering::Relaxed)).ok()
    }

    /// What the node of that name has not sent to the apiserver yet.
    pub fn unsent(&self, node: &str) -> Unsent {
        let all = self.0.events.snapshot();
        let events = due(&all, &self.0.outbox.posted(), node, Timestamp::now()).len();
        self.0.outbox.unsent(events)
    }

    /// The metrics of a node in a cluster.
    pub(super) fn metrics(&self) -> &ApiserverMetrics {
        self.0.metrics.apiserver()
    }

    /// Where the tasks say what is unsent.
    pub(super) fn outbox(&self) -> &Outbox {
        &self.0.outbox
    }

    /// Changes what others are shown of the pods.
    pub(super) fn show(&self, change: impl FnOnce(&mut ClusterView)) {
        self.0.view.send_modify(change);
    }

    /// Resolves while the server answers.
    pub(super) async fn online(&self) {
        // The sender lives as long as this handle.
        let _ = self.0.view.subscribe().wait_for(|view| view.state.is_online()).await;
    }

    /// Resolves once the server does not answer any more.
    pub(super) async fn lost(&self) {
        let _ = self.0.view.subscribe().wait_for(|view| !view.state.is_online()).await;
    }

    /// Resolves once the server answers, or does not any more, other than `online`.
    pub(super) async fn switched(&self, online: bool) {
        let _ = self.0.view.subscribe().wait_for(|view| view.state.is_online() != online).await;
    }

    /// The cluster has gone back to an older state: everything has to be listed again.
    pub(super) fn list_again(&self) {
        self.pods_reached(0);
        self.0.beginnings.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Changes when everything has to be listed again.
    pub(super) fn beginnings(&self) -> watch::Receiver<u64> {
        self.0.beginnings.subscribe()
    }

    /// The list of Pods, or what followed it, has come to that version.
    pub(super) fn pods_reached(&self, version: u64) {
        self.0.pods_version.store(version, Ordering::Relaxed);
    }

    /// The version that the Pods have come to; 0: none.
    pub(super) fn pods_version(&self) -> u64 {
        self.0.pods_version.load(Ordering::Relaxed)
    }

    /// Counts what has come from the server, whatever it answers: changes as long as something comes.
    pub(super) fn received_count(&self) -> Option<u64> {
        self.0.client.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(Client::received_count)
    }

    /// Whether the server answers.
    pub(super) fn is_online(&self) -> bool {
        self.0.view.borrow().state.is_online()
    }

    /// The server answers.
    pub(super) fn succeeded(&self) {
        self.change(|state| state.succeeded(Timestamp::now()));
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
            *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        let now = Timestamp::now();
        let cause = cause.explained(self.identity(), now);
        self.change(|state| state.failed(cause, error.to_string(), now));
    }

    fn change(&self, next: impl FnOnce(&Connectivity) -> Connectivity) {
        let mut report = None;
        self.0.view.send_if_modified(|view| {
            let state = next(&view.state);
            if state == view.state {
                return false;
            }
            if state.differs(&view.state) {
                report = Some(view.state.is_online());
            }
            if view.state.is_online() && !state.is_online() {
                view.last_online = Some(Timestamp::now());
            }
            view.state = state;
            true
        });
        if let Some(was_online) = report {
            self.report(was_online);
        }
    }

    /// One line and one event for each change of the state.
    fn report(&self, was_online: bool) {
        let ClusterView { server, state, .. } = self.view();
        self.0.metrics.apiserver().set_connected(&server, state.is_online());
        match state {
            Connectivity::Connecting => {}
            Connectivity::Online { .. } => {
                tracing::info!(server, "connected to the apiserver");
                let message = format!("The apiserver {server} answers");
                self.0.events.emit(None, None, EventType::Normal, "ApiserverConnected", message);
            }
            Connectivity::Offline { cause, message, .. } => {
                tracing::warn!(server, %cause, error = message, "no connection to the apiserver; pods keep running");
                // At the start it is no news.
                if was_online {
                    let message = format!("No connection to the apiserver {server}: {cause}");
                    self.0.events.emit(None, None, EventType::Warning, "ApiserverDisconnected", message);
                }
            }
        }
    }

    /// Others are shown that server: the kubeconfig may have been edited.
    fn show_server(&self, server: &str) {
        let mut before = None;
        self.0.view.send_if_modified(|view| {
            let differs = view.server != server;
            if differs {
                before = Some(std::mem::replace(&mut view.server, server.to_owned()));
            }
            differs
        });
        if let Some(before) = before {
            self.0.metrics.apiserver().forget_server(&before);
            self.0.metrics.apiserver().set_connected(server, self.is_online());
        }
    }

    /// There are new credentials: the next request uses them, and pausing requests are tried again.
    pub(super) fn renew_client(&self) {
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.0.credentials.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// The node's addresses, and their changes.
    pub(super) fn node_network(&self) -> watch::Receiver<NodeNetwork> {
        self.0.node_network.clone()
    }

    /// The client. One that is made meanwhile replaces the first.
    async fn client(&self) -> Result<Client, RequestError> {
        if let Some(client) = self.0.client.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(client);
        }
        let Opened { client, identity, runs_program } = match &self.0.origin {
            Origin::Files { kubeconfig, certificate } => open(kubeconfig.clone(), certificate.clone()).await?,
            Origin::Read(credentials) => {
                Opened { client: credentials.client()?, identity: None, runs_program: credentials.runs_program() }
            }
            Origin::Fixed(client) => Opened { client: client.clone(), identity: None, runs_program: false },
        };
        self.0.runs_program.store(runs_program, Ordering::Relaxed);
        if let Some(server) = client.server() {
            self.show_server(server);
        }
        *self.0.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity;
        *self.0.client.lock().unwrap_or_else(PoisonError::into_inner) = Some(client.clone());
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
