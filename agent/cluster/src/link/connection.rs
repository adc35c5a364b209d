//! The client of the apiserver and its credentials.
//!
//! The client is created at the first request and after each loss of the connection, except when the server answers
//! that it cannot work. So rotated credentials and an edited kubeconfig take effect by themselves, and a lost
//! connection is never used again.

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

/// What clients are created from.
#[derive(Debug)]
pub enum ClientSource {
    /// Files that are read again after each loss of the connection.
    Files {
        kubeconfig: PathBuf,
        /// Certificate and key, which take precedence over the kubeconfig's user once they exist; `None` if they
        /// never will.
        certificate: Option<PathBuf>,
    },
    /// Credentials that were read before, for several nodes.
    Read(Box<Credentials>),
    /// A client of a simulated cluster.
    Fixed(Client),
}

impl ClientSource {
    /// The files in the settings; `None` without a kubeconfig. `certificates` is the directory of the node's own.
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
    /// The validity of the last client's certificate; `None` if it had none.
    identity: Mutex<Option<Validity>>,
    /// Whether a program printed the last client's credentials.
    runs_program: AtomicBool,
    /// Counts changes of the credentials.
    credentials: watch::Sender<u64>,
    /// Whether the server may support streaming lists.
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

    pub(super) fn client(&self) -> Option<Client> {
        self.lock().clone()
    }

    /// Creates a client. A client that is created meanwhile replaces it.
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

    /// Drops the client; the next request creates another one.
    pub(super) fn close(&self) {
        *self.lock() = None;
    }

    /// Records new credentials, which the next request uses.
    pub(super) fn renew(&self) {
        self.close();
        self.credentials.send_modify(|changes| *changes = changes.wrapping_add(1));
    }

    /// Resolves once the credentials have changed.
    pub(super) async fn credentials_changed(&self) {
        // The sender lives as long as `self`.
        let _ = self.credentials.subscribe().changed().await;
    }

    pub(super) fn identity(&self) -> Option<Validity> {
        *self.identity.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Digests of the certificate authorities in the current kubeconfig.
    pub(super) fn authorities(&self) -> BTreeSet<String> {
        let hex = |byte: &u8| format!("{byte:02x}");
        let digest = |certificate: &Vec<u8>| Sha256::digest(certificate).iter().map(hex).collect();
        self.client().iter().flat_map(|client| client.authorities().iter().map(digest)).collect()
    }

    /// Counts received data of any kind: the value changes as long as anything arrives.
    pub(super) fn received_count(&self) -> Option<u64> {
        self.lock().as_ref().map(Client::received_count)
    }

    pub(super) fn runs_program(&self) -> bool {
        self.runs_program.load(Ordering::Relaxed)
    }

    /// Whether the cluster is simulated, with a clock of its own.
    pub(super) fn is_simulated(&self) -> bool {
        matches!(self.source, ClientSource::Fixed(_))
    }

    /// Whether a list may be requested as the beginning of a watch.
    pub(super) fn streams_lists(&self) -> bool {
        self.streams_lists.load(Ordering::Relaxed)
    }

    /// Records that the server refuses streaming lists. The agent tries them again after its next start.
    pub(super) fn set_no_streaming_lists(&self) {
        self.streams_lists.store(false, Ordering::Relaxed);
    }

    fn lock(&self) -> MutexGuard<'_, Option<Client>> {
        self.client.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
