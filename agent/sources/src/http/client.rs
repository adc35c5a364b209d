//! The HTTP clients of the URL source, with their certificates.
//!
//! Certificate files are checked before each exchange, and a changed file creates a new client. A certificate and key
//! that do not match, because they are being replaced right now, leave the previous client in use.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use limpet_tls::System;
use reqwest::{Client, Identity, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::settings::HttpSettings;
use limpet_host::blocking::{self, DEADLINE};
use limpet_model::error_chain::error_chain;

/// The limit of a certificate file.
const MAX_FILE: u64 = 1 << 20;

/// The timeouts of an exchange.
#[derive(Debug, Clone, Copy)]
pub struct Timeouts {
    /// Until the connection is established.
    pub(super) connect: Duration,
    /// Between two reads from the server.
    pub(super) silence: Duration,
    /// For the whole exchange, redirects included.
    pub(super) whole: Duration,
}

/// kubelet gives an exchange 10 s in total; here a slow line gets more as long as data arrives.
impl Default for Timeouts {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), silence: Duration::from_secs(10), whole: Duration::from_secs(60) }
    }
}

/// Identifies a version of a file; `None` if it does not exist.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// The clients, created on demand.
#[derive(Debug)]
pub(super) struct Clients {
    settings: Arc<HttpSettings>,
    timeouts: Timeouts,
    /// The client for the URL's own origin, and the stamps of the files it was created from.
    for_origin: Option<(Vec<Stamp>, Client)>,
    /// The last logged error of newer files.
    logged_error: Option<String>,
}

impl Clients {
    pub(super) fn new(settings: Arc<HttpSettings>, timeouts: Timeouts) -> Self {
        Self { settings, timeouts, for_origin: None, logged_error: None }
    }

    /// The client for the URL's own origin, with the newest certificates that match.
    ///
    /// # Errors
    /// There are no usable certificates.
    pub(super) async fn for_origin(&mut self) -> Result<Client, String> {
        let (settings, timeouts) = (Arc::clone(&self.settings), self.timeouts);
        let before = self.for_origin.as_ref().map(|(stamps, _)| stamps.clone());
        let look = move || {
            let stamps = files(&settings).map(stamp).collect::<Vec<_>>();
            let made = (before.as_ref() != Some(&stamps)).then(|| build(&settings, timeouts, true));
            (stamps, made)
        };
        let (stamps, made) = on_certificates(look).await?;
        match (made, &self.for_origin) {
            (Some(Ok(client)), _) => {
                if self.for_origin.is_some() {
                    tracing::info!("reloaded the URL source's certificates");
                }
                self.logged_error = None;
                self.for_origin = Some((stamps, client.clone()));
                Ok(client)
            }
            (None, Some((_, client))) => Ok(client.clone()),
            (Some(Err(error)), Some((_, client))) => {
                if self.logged_error.as_ref() != Some(&error) {
                    tracing::warn!(error, "new certificates of the URL source cannot be used, keeping the old ones");
                    self.logged_error = Some(error);
                }
                Ok(client.clone())
            }
            (Some(Err(error)), None) => Err(error),
            (None, None) => Err("certificates were not checked".to_owned()),
        }
    }

    /// A client for other origins, to which redirects lead. It has no client certificate.
    pub(super) async fn foreign(&self) -> Result<Client, String> {
        let (settings, timeouts) = (Arc::clone(&self.settings), self.timeouts);
        on_certificates(move || build(&settings, timeouts, false)).await?
    }

    /// Rereads all certificates, including the system's, before the next exchange.
    pub(super) fn reload(&mut self) {
        self.for_origin = None;
    }
}

/// Runs `work`, which reads certificates, on a blocking thread.
async fn on_certificates<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, String> {
    let done = blocking::run("the URL source's certificates".into(), DEADLINE, |_| work()).await;
    done.map_err(|error| error.to_string())
}

fn files(settings: &HttpSettings) -> impl Iterator<Item = &Path> {
    let client = settings.client_files.iter().flat_map(|(certificate, key)| [certificate, key]);
    settings.ca_file.iter().chain(client).map(PathBuf::as_path)
}

fn stamp(path: &Path) -> Stamp {
    let stamp = |file: Metadata| {
        (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec())
    };
    path.metadata().ok().map(stamp)
}

/// Blocks: reads the files, and the system's CA certificates if those are trusted.
fn build(settings: &HttpSettings, timeouts: Timeouts, with_identity: bool) -> Result<Client, String> {
    // Fails if a provider is installed already, which is fine.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let identity = match &settings.client_files {
        Some((certificate, key)) if with_identity => {
            let pem = [read(certificate)?, b"\n".to_vec(), read(key)?].concat();
            Some((Identity::from_pem(&pem).map_err(|error| broken(certificate, &error))?, pem))
        }
        _ => None,
    };
    let builder = || {
        Client::builder()
            .user_agent(concat!("limpet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(timeouts.connect)
            .read_timeout(timeouts.silence)
            // Redirects are followed manually, because secret headers are sent only to their own origin.
            .redirect(redirect::Policy::none())
            .referer(false)
            .pool_max_idle_per_host(1)
    };
    let wrong = |cause: &dyn std::error::Error| format!("certificates cannot be used: {}", error_chain(cause));
    if let Some(path) = &settings.ca_file {
        let pem = read(path)?;
        let authorities: Vec<_> = CertificateDer::pem_slice_iter(&pem).map_while(Result::ok).collect();
        if authorities.is_empty() {
            return Err(format!("{} contains no certificate", path.display()));
        }
        // The server's own certificate may be among them, which reqwest refuses.
        let pem = identity.as_ref().map(|(_, pem)| &pem[..]);
        let tls = limpet_tls::client_config(authorities, System::Ignored, pem).map_err(|error| wrong(&error))?;
        return builder().tls_backend_preconfigured(tls).build().map_err(|error| wrong(&error));
    }
    let builder = || match &identity {
        Some((identity, _)) => builder().identity(identity.clone()),
        None => builder(),
    };
    if with_identity && settings.address.url().scheme() == "http" {
        return builder().tls_certs_only([]).build().map_err(|error| wrong(&error));
    }
    // A machine may have no CA certificates; the handshake then reports what is missing.
    builder().build().or_else(|_| builder().tls_certs_only([]).build()).map_err(|error| wrong(&error))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn broken(path: &Path, error: &reqwest::Error) -> String {
    format!("{} cannot be used: {}", path.display(), error_chain(error))
}
