//! TLS of kubelet's API: the node's certificate, and the authorities of its clients.
//!
//! The files are checked when a client connects, and read again if they have changed, so a rotated certificate needs
//! neither a restart nor a watch. Without `tlsCertFile` the certificate is the one that the apiserver has issued
//! (`serverTLSBootstrap`), or else a self-signed one, which is created for the first client and then kept.

mod client_certificate;
mod handshake_limit;
mod self_signed;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::{RootCertStore, ServerConfig, SupportedCipherSuite, version};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::authentication;
use super::caller::Caller;
use super::gate::{Gate, NetworkClient};
use crate::settings::{ServedNode, ServerSettings};
use client_certificate::RequestedCertificate;
pub(super) use handshake_limit::HandshakeLimit;
use limpet_cluster::{User, certificate_files};
use limpet_host::blocking;
use self_signed::SelfSignedError;

/// The deadline for reading the files.
const READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
enum TlsError {
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A file has no certificate or key.
    #[error("parse {}: {source}", path.display())]
    Pem { path: PathBuf, source: rustls::pki_types::pem::Error },
    #[error("use the authorities in clientCAFile {}: {source}", path.display())]
    Authorities { path: PathBuf, source: rustls::server::VerifierBuilderError },
    #[error("parse a certificate in clientCAFile {}: {source}", path.display())]
    Authority { path: PathBuf, source: rustls::Error },
    /// Certificate and key do not match, or have an unsupported type.
    #[error("read the node's certificate: {0}")]
    Certificate(rustls::Error),
    /// `serverTLSBootstrap` is set, and the request has not been approved.
    #[error("the node has no certificate yet; approve its request: kubectl get csr, kubectl certificate approve NAME")]
    NotIssued,
    #[error("create a self-signed certificate: {0}")]
    SelfSigned(#[from] SelfSignedError),
}

/// A file's identity when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp {
    path: PathBuf,
    modified: Option<SystemTime>,
    size: u64,
}

impl Stamp {
    fn read(path: &Path) -> Result<Self, TlsError> {
        let metadata = path.metadata().map_err(|source| TlsError::Read { path: path.to_owned(), source })?;
        Ok(Self { path: path.to_owned(), modified: metadata.modified().ok(), size: metadata.len() })
    }
}

/// The files' content.
struct Loaded {
    files: Vec<Stamp>,
    current: Current,
}

/// The current TLS configuration.
#[derive(Clone)]
struct Current {
    config: Arc<ServerConfig>,
    /// Verifies client certificates; `None` without `clientCAFile`.
    authorities: Option<Arc<dyn ClientCertVerifier>>,
}

impl Current {
    /// The user in a client's certificate, the first of `chain`; `None` if there is no certificate or, as in kubelet,
    /// it names no user. The error says why the certificate is invalid.
    fn user(&self, chain: &[CertificateDer<'_>]) -> Result<Option<User>, String> {
        let (Some((certificate, intermediates)), Some(authorities)) = (chain.split_first(), &self.authorities) else {
            return Ok(None);
        };
        match authorities.verify_client_cert(certificate, intermediates, UnixTime::now()) {
            Ok(_) => Ok(authentication::of_certificate(certificate.as_ref())),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// The TLS of a listener.
pub(super) struct Tls {
    settings: ServerSettings,
    gate: Arc<Gate>,
    /// The directory of the self-signed certificate.
    pki_dir: PathBuf,
    node_name: Arc<str>,
    loaded: Mutex<Option<Loaded>>,
    /// The last logged error: the same cause is not logged for every client.
    reported: Mutex<Option<String>>,
}

impl Tls {
    pub(super) fn new(config: &ServedNode, node_name: &Arc<str>, gate: Gate) -> Self {
        Self {
            settings: config.server.clone(),
            gate: Arc::new(gate),
            pki_dir: config.pki_dir.clone(),
            node_name: Arc::clone(node_name),
            loaded: Mutex::new(None),
            reported: Mutex::new(None),
        }
    }

    /// Performs the handshake with a client, and verifies its certificate if it has one.
    pub(super) async fn accept(
        self: Arc<Self>,
        stream: TcpStream,
    ) -> io::Result<(TlsStream<HandshakeLimit<TcpStream>>, Caller)> {
        let tls = Arc::clone(&self);
        let reading = blocking::run(self.pki_dir.clone(), READ_TIMEOUT, move |_| tls.current());
        let current = match reading.await {
            Ok(Ok(current)) => current,
            Ok(Err(error)) => return Err(self.report(error.to_string())),
            Err(error) => return Err(self.report(error.to_string())),
        };
        let mut stream = TlsAcceptor::from(Arc::clone(&current.config)).accept(HandshakeLimit::new(stream)).await?;
        stream.get_mut().0.lift();
        let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
        let mut client = NetworkClient::new(current.user(chain), Arc::clone(&self.gate));
        if client.is_named() {
            let chain: Vec<_> = chain.iter().map(|certificate| certificate.clone().into_owned()).collect();
            client = client.checked_by(move || self.verify(&chain));
        }
        Ok((stream, Caller::Network(Arc::new(client))))
    }

    /// Checks that a client's certificate is still valid, by the authorities that were read last.
    fn verify(&self, chain: &[CertificateDer<'_>]) -> Result<(), String> {
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let current = loaded.as_ref().map(|loaded| loaded.current.clone());
        drop(loaded);
        current.map_or(Ok(()), |current| current.user(chain).map(drop))
    }

    fn report(&self, cause: String) -> io::Error {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        if reported.as_ref() != Some(&cause) {
            tracing::error!(port = self.settings.port, error = cause, "serving kubelet's API failed");
            *reported = Some(cause.clone());
        }
        io::Error::other(cause)
    }

    /// The configuration from the files' current content. Blocks.
    fn current(&self) -> Result<Current, TlsError> {
        let (certificate, key) = match &self.settings.certificate {
            _ if self.settings.certificate_by_request => {
                let file = certificate_files::serving_certificate(&self.pki_dir);
                if !file.exists() {
                    return Err(TlsError::NotIssued);
                }
                (file.clone(), file)
            }
            Some(files) => files.clone(),
            None => self_signed::ensure(&self.pki_dir, &self.node_name)?,
        };
        let files = [Some(&certificate), Some(&key), self.settings.client_ca.as_ref()];
        let files = files.into_iter().flatten().map(|path| Stamp::read(path)).collect::<Result<Vec<_>, _>>()?;
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = loaded.as_ref().filter(|loaded| loaded.files == files) {
            return Ok(loaded.current.clone());
        }
        let current = load(&self.settings, &certificate, &key)?;
        *loaded = Some(Loaded { files, current: current.clone() });
        *self.reported.lock().unwrap_or_else(PoisonError::into_inner) = None;
        Ok(current)
    }
}

fn load(settings: &ServerSettings, certificate: &Path, key: &Path) -> Result<Current, TlsError> {
    let mut provider = rustls::crypto::ring::default_provider();
    if !settings.cipher_suites.is_empty() {
        // As in Go, the suites of TLS 1.3 cannot be chosen by name.
        let is_chosen =
            |suite: &SupportedCipherSuite| suite.tls13().is_some() || settings.cipher_suites.contains(&suite.suite());
        provider.cipher_suites.retain(is_chosen);
    }
    if !settings.key_exchanges.is_empty() {
        provider.kx_groups.retain(|group| settings.key_exchanges.contains(&group.name()));
    }
    let provider = Arc::new(provider);
    let versions: &[_] = if settings.tls13_only { &[&version::TLS13] } else { &[&version::TLS13, &version::TLS12] };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(TlsError::Certificate)?;
    let chain = certificates(certificate)?;
    let pem = |source| TlsError::Pem { path: key.to_owned(), source };
    let key = PrivateKeyDer::from_pem_file(key).map_err(pem)?;
    let authorities = match &settings.client_ca {
        None => None,
        Some(path) => Some(authorities(path, provider)?),
    };
    let builder = match authorities.clone() {
        None => builder.with_no_client_auth(),
        Some(authorities) => builder.with_client_cert_verifier(Arc::new(RequestedCertificate { authorities })),
    };
    let mut config = builder.with_single_cert(chain, key).map_err(TlsError::Certificate)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // A resumable session stores the client's chain, which anyone can make 64 KiB long: 256 of them would be 16 MiB.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Current { config: Arc::new(config), authorities })
}

fn authorities(path: &Path, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    let mut roots = RootCertStore::empty();
    for authority in certificates(path)? {
        roots.add(authority).map_err(|source| TlsError::Authority { path: path.to_owned(), source })?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|source| TlsError::Authorities { path: path.to_owned(), source })
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let pem = |source| TlsError::Pem { path: path.to_owned(), source };
    CertificateDer::pem_file_iter(path).map_err(pem)?.collect::<Result<_, _>>().map_err(pem)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
