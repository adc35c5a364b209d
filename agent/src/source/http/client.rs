//! The HTTP clients of the URL source, and the certificates they are made of.
//!
//! Whoever replaces a certificate need not tell: its files are looked at before each exchange, and a changed one makes a
//! new client. A pair that does not fit together, because it is being replaced right now, leaves the last one in use.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::{Certificate, Client, Identity, redirect};

use super::settings::HttpSettings;
use crate::store::chain;

/// The largest certificate file that is read.
const MAX_FILE: u64 = 1 << 20;

/// How long an exchange may take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Until there is a connection.
    pub(super) connect: Duration,
    /// Without a byte from the server.
    pub(super) silence: Duration,
    /// From the first byte sent to the last one read, redirects included.
    pub(super) whole: Duration,
}

/// kubelet gives an exchange 10 s in all; a slow line gets more as long as something comes.
impl Default for Patience {
    fn default() -> Self {
        Self { connect: Duration::from_secs(10), silence: Duration::from_secs(10), whole: Duration::from_secs(60) }
    }
}

/// What tells that a file is the one read before; `None`: it is not there.
type Stamp = Option<(u64, u64, u64, i64, i64, i64, i64)>;

/// The clients, made when they are needed.
#[derive(Debug)]
pub(super) struct Clients {
    settings: Arc<HttpSettings>,
    patience: Patience,
    /// For the address' own origin, and the files it was made of.
    own: Option<(Vec<Stamp>, Client)>,
    /// What was wrong with newer files when it was said last.
    told: Option<String>,
}

impl Clients {
    pub(super) fn new(settings: Arc<HttpSettings>, patience: Patience) -> Self {
        Self { settings, patience, own: None, told: None }
    }

    /// The client for the address itself, with the newest certificates that fit together.
    ///
    /// # Errors
    /// There are none.
    pub(super) async fn own(&mut self) -> Result<Client, String> {
        let (settings, patience) = (Arc::clone(&self.settings), self.patience);
        let before = self.own.as_ref().map(|(stamps, _)| stamps.clone());
        let look = move || {
            let stamps = files(&settings).map(stamp).collect::<Vec<_>>();
            let made = (before.as_ref() != Some(&stamps)).then(|| build(&settings, patience, true));
            (stamps, made)
        };
        let (stamps, made) = tokio::task::spawn_blocking(look).await.map_err(|error| error.to_string())?;
        match (made, &self.own) {
            (Some(Ok(client)), _) => {
                if self.own.is_some() {
                    tracing::info!("certificates of the URL source read anew");
                }
                self.told = None;
                self.own = Some((stamps, client.clone()));
                Ok(client)
            }
            (None, Some((_, client))) => Ok(client.clone()),
            (Some(Err(error)), Some((_, client))) => {
                if self.told.as_ref() != Some(&error) {
                    tracing::warn!(
                        error,
                        "new certificates of the URL source cannot be used, going on with the old ones"
                    );
                    self.told = Some(error);
                }
                Ok(client.clone())
            }
            (Some(Err(error)), None) => Err(error),
            (None, None) => Err("no certificates were looked at".to_owned()),
        }
    }

    /// A client for wherever the address redirects to: it proves itself to nobody.
    pub(super) async fn foreign(&self) -> Result<Client, String> {
        let (settings, patience) = (Arc::clone(&self.settings), self.patience);
        let built = tokio::task::spawn_blocking(move || build(&settings, patience, false)).await;
        built.map_err(|error| error.to_string())?
    }

    /// Reads all certificates, the system's too, before the next exchange.
    pub(super) fn forget(&mut self) {
        self.own = None;
    }
}

fn files(settings: &HttpSettings) -> impl Iterator<Item = &Path> {
    let client = settings.client_files.iter().flat_map(|(certificate, key)| [certificate, key]);
    settings.ca_file.iter().chain(client).map(PathBuf::as_path)
}

fn stamp(path: &Path) -> Stamp {
    let of = |file: Metadata| {
        (file.dev(), file.ino(), file.size(), file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec())
    };
    path.metadata().ok().map(of)
}

/// Blocks: reads the files, and the system's authorities where those are trusted.
fn build(settings: &HttpSettings, patience: Patience, own: bool) -> Result<Client, String> {
    // Fails when one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut authorities = Vec::new();
    if let Some(path) = &settings.ca_file {
        let found = Certificate::from_pem_bundle(&read(path)?).map_err(|error| broken(path, &error))?;
        if found.is_empty() {
            return Err(format!("{} holds no certificate", path.display()));
        }
        authorities = found;
    }
    let identity = match &settings.client_files {
        Some((certificate, key)) if own => {
            let pem = [read(certificate)?, b"\n".to_vec(), read(key)?].concat();
            Some(Identity::from_pem(&pem).map_err(|error| broken(certificate, &error))?)
        }
        _ => None,
    };
    let builder = || {
        let builder = Client::builder()
            .user_agent(concat!("limpet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(patience.connect)
            .read_timeout(patience.silence)
            // Redirects are followed by hand: headers that prove something go to their own origin only.
            .redirect(redirect::Policy::none())
            .referer(false)
            .pool_max_idle_per_host(1);
        match &identity {
            Some(identity) => builder.identity(identity.clone()),
            None => builder,
        }
    };
    let wrong = |error: reqwest::Error| format!("certificates cannot be used: {}", chain(&error));
    if settings.ca_file.is_some() || (own && settings.address.url().scheme() == "http") {
        return builder().tls_certs_only(authorities).build().map_err(wrong);
    }
    // A box without certificate authorities: the handshake will say what is missing.
    builder().build().or_else(|_| builder().tls_certs_only([]).build()).map_err(wrong)
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    use std::io::Read;
    let mut bytes = Vec::new();
    let read = std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_end(&mut bytes));
    read.map(|_| bytes).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn broken(path: &Path, error: &reqwest::Error) -> String {
    format!("{} cannot be used: {}", path.display(), chain(error))
}
