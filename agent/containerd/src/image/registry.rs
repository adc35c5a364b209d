//! A client of a registry and its mirrors for one image: the OCI distribution protocol over HTTP.
//!
//! The hosts of `certs.d` are tried in order; the one that served the manifest is tried first for the rest. A session
//! lives as long as its pull: an idle agent has no connection, no certificate store and no password in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_RANGE, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, RANGE};
use reqwest::{Response, StatusCode};

use super::auth::Keyring;
use super::certs::{self, Endpoint};
use super::document;
use super::error::ImageError;
use super::token::Login;
use limpet_model::image_name::ImageName;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a registry may send nothing before the connection counts as lost.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Why one host did not answer a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) kind: Kind,
    pub(super) cause: String,
}

/// The kinds of failure, as in `ImageError`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Unreachable,
    Registry,
    Unauthorized,
    NotFound,
    Content,
}

impl Failure {
    pub(super) fn new(kind: Kind, cause: impl Into<String>) -> Self {
        Self { kind, cause: cause.into() }
    }

    fn into_error(self, image: &str) -> ImageError {
        let (image, cause) = (image.to_owned(), self.cause);
        match self.kind {
            Kind::Unreachable => ImageError::Unreachable { image, cause },
            Kind::Registry => ImageError::Registry { image, cause },
            Kind::Unauthorized => ImageError::Unauthorized { image, cause },
            Kind::NotFound => ImageError::NotFound { image, cause },
            Kind::Content => ImageError::Content { image, cause },
        }
    }
}

/// One host of a session.
struct Host {
    endpoint: Endpoint,
    http: reqwest::Client,
    headers: HeaderMap,
    login: Login,
}

/// The hosts that may have one image.
pub(super) struct Session {
    pub(super) name: ImageName,
    hosts: Vec<Host>,
    /// Index of the host that answered last.
    preferred: AtomicUsize,
}

/// A document with its media type and digest from the registry.
#[derive(Debug)]
pub(super) struct Fetched {
    pub(super) bytes: Vec<u8>,
    pub(super) digest: String,
    pub(super) media_type: String,
}

/// A blob being downloaded.
pub(super) struct Download {
    response: Response,
    /// The offset of the first byte in the blob.
    pub(super) offset: u64,
}

impl Download {
    /// The next piece; `None` at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<bytes::Bytes>, String> {
        self.response.chunk().await.map_err(error_text)
    }
}

impl Session {
    /// Reads `certs.d` and the certificates it names. Blocks. `turn`: which of several credentials to use.
    pub(super) fn prepare(
        name: ImageName,
        certs_d: &std::path::Path,
        keyring: &Keyring,
        turn: usize,
    ) -> Result<Self, ImageError> {
        let mut hosts = Vec::new();
        for endpoint in certs::endpoints(certs_d, &name.host)? {
            // Credentials are selected by the image's name, as kubelet and containerd do, also for the hosts of certs.d;
            // a mirror with credentials of its own gets those.
            let own = if endpoint.mirror { keyring.find(&endpoint.host, &name.repository, turn) } else { None };
            let credentials = own.or_else(|| keyring.find(&name.host, &name.repository, turn)).cloned();
            let http = http_client(&endpoint)?;
            let headers = headers(&endpoint).map_err(|cause| ImageError::Config { path: certs_d.into(), cause })?;
            hosts.push(Host { endpoint, http, headers, login: Login::new(credentials) });
        }
        Ok(Self { name, hosts, preferred: AtomicUsize::new(0) })
    }

    /// Fetches a manifest or index by tag or digest; a digest is verified.
    pub(super) async fn manifest(&self, target: &str) -> Result<Fetched, ImageError> {
        let mut hosts = self.attempts(!target.starts_with("sha256:"));
        while let Some(host) = hosts.next() {
            match self.manifest_from(host, target).await {
                Ok(fetched) => return Ok(hosts.won(fetched)),
                Err(failure) => hosts.lost(failure),
            }
        }
        Err(hosts.into_error())
    }

    async fn manifest_from(&self, host: &Host, target: &str) -> Result<Fetched, Failure> {
        let path = format!("{}/manifests/{target}", self.name.repository);
        let response = self.get(host, &path, Some(document::ACCEPT), 0).await?;
        let media_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        let media_type = media_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_owned();
        let bytes = read_bounded(response, document::MAX_DOCUMENT).await?;
        let digest = document::sha256(&bytes);
        if target.starts_with("sha256:") && target != digest {
            return Err(Failure::new(Kind::Content, format!("asked for {target}, got {digest}")));
        }
        Ok(Fetched { bytes, digest, media_type })
    }

    /// Fetches a small blob whole and verifies it.
    pub(super) async fn small_blob(&self, digest: &str) -> Result<Vec<u8>, ImageError> {
        let mut hosts = self.attempts(false);
        while let Some(host) = hosts.next() {
            match self.small_blob_from(host, digest).await {
                Ok(bytes) => return Ok(hosts.won(bytes)),
                Err(failure) => hosts.lost(failure),
            }
        }
        Err(hosts.into_error())
    }

    async fn small_blob_from(&self, host: &Host, digest: &str) -> Result<Vec<u8>, Failure> {
        let response = self.get(host, &format!("{}/blobs/{digest}", self.name.repository), None, 0).await?;
        let bytes = read_bounded(response, document::MAX_DOCUMENT).await?;
        match document::sha256(&bytes) == digest {
            true => Ok(bytes),
            false => Err(Failure::new(Kind::Content, format!("{digest} is not what was sent"))),
        }
    }

    /// Starts to download a blob at `offset`; the answer may begin earlier when the registry does not support ranges.
    pub(super) async fn blob(&self, digest: &str, offset: u64) -> Result<Download, ImageError> {
        let mut hosts = self.attempts(false);
        while let Some(host) = hosts.next() {
            match self.blob_from(host, digest, offset).await {
                Ok(download) => return Ok(hosts.won(download)),
                Err(failure) => hosts.lost(failure),
            }
        }
        Err(hosts.into_error())
    }

    async fn blob_from(&self, host: &Host, digest: &str, offset: u64) -> Result<Download, Failure> {
        let response = self.get(host, &format!("{}/blobs/{digest}", self.name.repository), None, offset).await?;
        let begins = match response.status() {
            StatusCode::PARTIAL_CONTENT => range_start(response.headers()).filter(|start| *start <= offset),
            _ => Some(0),
        };
        let refused = || Failure::new(Kind::Registry, "answered with another range than requested");
        Ok(Download { response, offset: begins.ok_or_else(refused)? })
    }

    /// The hosts to try, the one that answered last first.
    fn attempts(&self, by_tag: bool) -> Attempts<'_> {
        let preferred = self.preferred.load(Ordering::Relaxed);
        let order = std::iter::once(preferred).chain((0..self.hosts.len()).filter(|i| *i != preferred));
        let may = |i: &usize| {
            self.hosts.get(*i).is_some_and(|host| if by_tag { host.endpoint.resolve } else { host.endpoint.pull })
        };
        let mut order: Vec<usize> = order.filter(may).collect();
        order.reverse();
        Attempts { session: self, order, current: 0, failures: Vec::new() }
    }

    /// One GET, with one login if the host requires it.
    async fn get(&self, host: &Host, path: &str, accept: Option<&str>, offset: u64) -> Result<Response, Failure> {
        let mut url = format!("{}/{path}", host.endpoint.base);
        if host.endpoint.mirror {
            url.push_str("?ns=");
            url.push_str(&self.name.host);
        }
        let mut response = send(host, &url, accept, offset).await?;
        if response.status() == StatusCode::UNAUTHORIZED {
            let plain = host.endpoint.base.starts_with("http://");
            let challenges = response.headers().clone();
            host.login.answer(&host.http, &challenges, &self.name.repository, plain).await?;
            response = send(host, &url, accept, offset).await?;
        }
        let status = response.status();
        if matches!(status, StatusCode::OK | StatusCode::PARTIAL_CONTENT) {
            return Ok(response);
        }
        let kind = match status {
            StatusCode::NOT_FOUND => Kind::NotFound,
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Kind::Unauthorized,
            _ => Kind::Registry,
        };
        let with = if kind == Kind::Unauthorized { host.login.description() } else { "" };
        Err(Failure::new(kind, format!("{status}{with}")))
    }
}

async fn send(host: &Host, url: &str, accept: Option<&str>, offset: u64) -> Result<Response, Failure> {
    let mut request = host.http.get(url).headers(host.headers.clone());
    if let Some(accept) = accept {
        request = request.header(ACCEPT, accept);
    }
    if offset > 0 {
        request = request.header(RANGE, format!("bytes={offset}-"));
    }
    let response = host.login.sign(request).send().await;
    response.map_err(|error| Failure::new(Kind::Unreachable, error_text(error)))
}

/// One request that is tried on each host.
struct Attempts<'a> {
    session: &'a Session,
    /// Indexes of the hosts not tried yet, the next at the end.
    order: Vec<usize>,
    current: usize,
    failures: Vec<(usize, Failure)>,
}

impl<'a> Attempts<'a> {
    fn next(&mut self) -> Option<&'a Host> {
        self.current = self.order.pop()?;
        self.session.hosts.get(self.current)
    }

    fn won<T>(&self, answer: T) -> T {
        self.session.preferred.store(self.current, Ordering::Relaxed);
        answer
    }

    fn lost(&mut self, failure: Failure) {
        let host = self.session.hosts.get(self.current).map_or("", |host| host.endpoint.host.as_str());
        let cause = format!("{host}: {}", failure.cause);
        tracing::debug!(image = self.session.name.whole, cause, "registry host did not answer the request");
        self.failures.push((self.current, Failure { kind: failure.kind, cause }));
    }

    fn into_error(self) -> ImageError {
        together(self.failures).into_error(&self.session.name.whole)
    }
}

/// The failure when every host failed: the last of the file, the registry itself, decides the kind, because a mirror
/// without the image proves nothing; all causes are reported.
fn together(mut failures: Vec<(usize, Failure)>) -> Failure {
    failures.sort_by_key(|(i, _)| *i);
    let Some((_, last)) = failures.last() else {
        return Failure::new(Kind::Registry, "no host in certs.d has the capability to serve it");
    };
    let causes: Vec<&str> = failures.iter().map(|(_, failure)| failure.cause.as_str()).collect();
    Failure::new(last.kind, causes.join("; "))
}

/// An error's message with those of its causes, without the URL, which may be signed.
pub(super) fn error_text(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Reads a response body up to a limit.
pub(super) async fn read_bounded(mut response: Response, limit: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| Failure::new(Kind::Unreachable, error_text(error)))?
    {
        if bytes.len() as u64 + chunk.len() as u64 > limit {
            return Err(Failure::new(Kind::Content, format!("answer is larger than {limit} bytes")));
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// The first byte of `Content-Range: bytes 5-9/10`.
fn range_start(headers: &HeaderMap) -> Option<u64> {
    let value = headers.get(CONTENT_RANGE)?.to_str().ok()?;
    value.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

fn headers(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &endpoint.headers {
        let wrong = || format!("{}: header {name:?} cannot be sent", endpoint.host);
        let name: HeaderName = name.parse().map_err(|_| wrong())?;
        let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.append(name, value);
    }
    Ok(headers)
}

/// A client that trusts the system's certificate authorities and the endpoint's own.
fn http_client(endpoint: &Endpoint) -> Result<reqwest::Client, ImageError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| ImageError::Config { path: path.clone(), cause: error.to_string() })
    };
    let broken = |path: &PathBuf, error| ImageError::Config { path: path.clone(), cause: error_text(error) };
    let mut authorities = Vec::new();
    for path in &endpoint.ca {
        let pem = read(path)?;
        authorities.extend(reqwest::Certificate::from_pem_bundle(&pem).map_err(|error| broken(path, error))?);
    }
    let mut identity = None;
    if let Some((certificate, key)) = endpoint.client.first() {
        let mut pem = read(certificate)?;
        if let Some(key) = key {
            pem.push(b'\n');
            pem.extend(read(key)?);
        }
        identity = Some(reqwest::Identity::from_pem(&pem).map_err(|error| broken(certificate, error))?);
    }
    let builder = || {
        let mut builder = reqwest::Client::builder()
            .user_agent(concat!("limpet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .tls_danger_accept_invalid_certs(endpoint.skip_verify);
        if let Some(identity) = &identity {
            builder = builder.identity(identity.clone());
        }
        builder
    };
    let full = builder().tls_certs_merge(authorities.iter().cloned()).build();
    // A node without certificate authorities can still pull over plain HTTP; over TLS the handshake fails.
    full.or_else(|_| builder().tls_certs_only(authorities.iter().cloned()).build())
        .map_err(|error| ImageError::Config { path: endpoint.base.clone().into(), cause: error_text(error) })
}
