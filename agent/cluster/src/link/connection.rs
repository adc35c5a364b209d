//! The client of the apiserver and the credentials that it is made by.
//!
//! The client is made at the first request, and again after each loss, but where the server answers that it cannot
//! work: so credentials that were rotated, and a kubeconfig that was edited, are read by themselves, and no earlier
//! connection is used again.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

use super::opened::{Opened, open};
use crate::certificate_files::client_certificate;
use crate::settings::ClusterSettings;
use limpet_apiserver_client::{Client, Credentials, RequestError};
use limpet_core::certificate::Validity;

/// What clients are made of.
#[derive(Debug)]
pub enum ClientSource {
    /// Files, read again after each loss of the connection.
    Files {
        kubeconfig: PathBuf,
        /// Certificate and key, which count instead of the kubeconfig's user once they are there; `None`: they never are.
        certificate: Option<PathBuf>,
    },
    /// Credentials that were read before, for several nodes.
    Read(Box<Credentials>),
    /// A client of a simulated cluster.
    Fixed(Client),
}

impl ClientSource {
    /// The files that the settings name; `None` without a kubeconfig. `certificates`: the directory of the node's own.
    pub fn files(settings: &ClusterSettings, certificates: &Path) -> Option<Self> {
        let kubeconfig = settings.kubeconfig.clone()?;
        let certificate = settings.manages_certificate().then(|| client_certificate(certificates));
        Some(Self::Files { kubeconfig, certificate })
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    source: ClientSource,
    client: Mutex<Option<Client>>,
    /// When the certificate of the last client is valid; `None`: it had none.
    identity: Mutex<Option<Validity>>,
    /// Making the last client has run a program.
    runs_program: AtomicBool,
    /// Counts the changes of the credentials.
    credentials: watch::Sender<u64>,
    /// Whether the server may know streaming lists.
    streams_lists: AtomicBool,
}

impl Connection {
    pub(super) fn new(source: ClientSource) -> Self {
        Self {
            source,
            client: Mutex::default(),
            identity: Mutex::default(),
            runs_program: AtomicBool::new(false),
            credentials: watch::channel(0).0,
            streams_lists: AtomicBool::new(true),
        }
    }

    /// The client that is open.
    pub(super) fn client(&self) -> Option<Client> {
        self.lock().clone()
    }

    /// Makes a client. One that is made meanwhile replaces it.
    pub(super) async fn open(&self) -> Result<Client, RequestError> {
        let Opened { client, identity, runs_program } = match &self.source {
            ClientSource::Files { kubeconfig, certificate } => open(kubeconfig.clone(), certificate.clone()).await?,
            ClientSource::Read(credentials) => {
                Opened { client: credentials.client()?, identity: None, runs_program: credentials.runs_program() }
            }
            ClientSource::Fixed(client) => Opened { client: client.clone(), identity: None, runs_program: false },
        };
        self.runs_program.store(runs_program, Ordering::Relaxed);
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner) = identity;
        *self.lock() = Some(client.clone());
        Ok(client)
    }

    /// The next request makes another client.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }

    /// There are new credentials: the next request uses them.
    pub(super) fn renew(&self) {
        self.close();
        self.credentials.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Resolves once there are other credentials.
    pub(super) async fn credentials_changed(&self) {
        // The sender lives as long as this does.
        let _ = self.credentials.subscribe().changed().await;
    }

    pub(super) fn identity(&self) -> Option<Validity> {
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Digests of the certificates of the authorities that the kubeconfig in use names.
    pub(super) fn authorities(&self) -> BTreeSet<String> {
        let hex = |byte: &u8| format!("{byte:02x}");
        let digest = |certificate: &Vec<u8>| Sha256::digest(certificate).iter().map(hex).collect();
        self.client().iter().flat_map(|client| client.authorities().iter().map(digest)).collect()
    }

    /// Counts what has come from the server, whatever it answers: changes as long as something comes.
    pub(super) fn received_count(&self) -> Option<u64> {
        self.lock().as_ref().map(Client::received_count)
    }

    pub(super) fn runs_program(&self) -> bool {
        self.runs_program.load(Ordering::Relaxed)
    }

    /// A simulated cluster has a time of its own.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self.source, ClientSource::Fixed(_))
    }

    /// Whether a list may be requested as the beginning of a watch.
    pub(super) fn streams_lists(&self) -> bool {
        self.streams_lists.load(Ordering::Relaxed)
    }

    /// The server has refused that. After an upgrade of the server the next agent tries again.
    pub(super) fn set_no_streaming_lists(&self) {
        self.streams_lists.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
