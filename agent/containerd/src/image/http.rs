//! HTTP with one registry host: its clients, redirects, and a minimum download rate.
//!
//! The settings of a host in `certs.d` and its credentials (headers, client certificate, `skip_verify`, password,
//! token) apply to its own origin only: a redirect to another origin is followed without them, and never from https
//! to http.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use limpet_model::error_chain::error_chain;
use limpet_tls::System;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue, LOCATION};
use reqwest::{Client, Response, StatusCode, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tokio::time::Instant;

use super::certs::Endpoint;
use super::error::ImageError;
use super::failure::{Failure, Kind};
use super::login::Login;

/// The deadline for establishing a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(15);
/// How long a registry may send nothing before the connection counts as lost.
const READ_TIMEOUT: Duration = Duration::from_secs(60);
/// The deadline for a document, which is small.
const DOCUMENT_TIMEOUT: Duration = Duration::from_secs(300);
/// The most redirects followed for one request.
const MAX_REDIRECTS: usize = 5;
/// The most other hosts whose tokens are kept during a pull.
const MAX_HOSTS_ELSEWHERE: usize = 32;
/// The fewest bytes per [`MIN_RATE_WINDOW`] of a download: a slower one would delay other pulls for days.
const MIN_BYTES_PER_WINDOW: u64 = 32 << 10;
/// Counts time spent waiting for the registry, not for storing the data.
const MIN_RATE_WINDOW: Duration = Duration::from_secs(60);

/// The clients of one host.
#[derive(Debug)]
pub(super) struct Http {
    base: Url,
    /// It has the certificate and the settings of the host, and is for its own origin alone.
    trusted: Client,
    /// For other origins.
    foreign: Client,
    headers: HeaderMap,
}

impl Http {
    /// Reads the host's certificates. Blocks.
    pub(super) fn new(endpoint: &Endpoint, base: &str) -> Result<Self, ImageError> {
        let config = |cause: String| ImageError::Config { path: base.into(), cause };
        let base = Url::parse(base).map_err(|error| config(error.to_string()))?;
        let headers = headers(endpoint).map_err(config)?;
        let full = client(endpoint, true)?;
        let same = !endpoint.skip_verify && endpoint.client.is_empty();
        let foreign = if same { full.clone() } else { client(endpoint, false)? };
        Ok(Self { base, trusted: full, foreign, headers })
    }

    /// Whether `url` belongs to the host itself.
    pub(super) fn is_own(&self, url: &Url) -> bool {
        url.origin() == self.base.origin()
    }

    pub(super) fn base(&self) -> &Url {
        &self.base
    }

    /// The client for `url`.
    fn client(&self, url: &Url) -> &Client {
        if self.is_own(url) { &self.trusted } else { &self.foreign }
    }

    /// The client for a `url` that `asker` refers to: settings for the host itself do not apply to URLs from
    /// elsewhere.
    pub(super) fn client_for(&self, asker: &Url, url: &Url) -> &Client {
        if self.is_own(asker) { self.client(url) } else { &self.foreign }
    }

    /// Sends a GET and follows redirects. `login` and the host's headers are sent to the host only, and another
    /// host's token only to that host.
    pub(super) async fn get(
        &self,
        url: Url,
        headers: &HeaderMap,
        login: &Login,
        elsewhere: &Elsewhere,
    ) -> Result<Response, Failure> {
        let mut url = url;
        for _ in 0..=MAX_REDIRECTS {
            let mut request = self.client(&url).get(url.clone()).headers(headers.clone());
            if self.is_own(&url) {
                request = login.sign(request.headers(self.headers.clone()));
            } else if let Some(login) = elsewhere.login(&url) {
                request = login.sign(request);
            }
            let response = request.send().await;
            let response = response.map_err(|error| Failure::new(Kind::Unreachable, error_text(error)))?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            let location = response.headers().get(LOCATION).and_then(|value| value.to_str().ok());
            url = target(&url, location).map_err(|cause| Failure::new(Kind::Registry, cause))?;
        }
        Err(Failure::new(
            Kind::Registry,
            format!("more than {MAX_REDIRECTS} redirects, the last one to {}", place(&url)),
        ))
    }
}

/// Anonymous logins at other hosts to which a host redirects, by origin.
#[derive(Default)]
pub(super) struct Elsewhere {
    logins: Mutex<HashMap<String, Arc<Login>>>,
}

impl Elsewhere {
    fn login(&self, url: &Url) -> Option<Arc<Login>> {
        let logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        logins.get(&url.origin().ascii_serialization()).cloned()
    }

    /// The anonymous login at the host of `url`. It never uses the redirecting host's credentials.
    pub(super) fn anonymous(&self, url: &Url) -> Arc<Login> {
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        if logins.len() >= MAX_HOSTS_ELSEWHERE {
            logins.clear();
        }
        let login = logins.entry(url.origin().ascii_serialization());
        Arc::clone(login.or_insert_with(|| Arc::new(Login::new(None))))
    }
}

pub(super) fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

/// The target of a redirect, or why it is not followed.
fn target(from: &Url, location: Option<&str>) -> Result<Url, String> {
    let location = location.ok_or("redirect without a Location")?;
    let to = from.join(location).map_err(|_| "redirected to an invalid URL".to_owned())?;
    match (from.scheme(), to.scheme()) {
        (_, "https") | ("http", "http") if to.has_host() => Ok(to),
        _ => Err(format!("redirect from {} to {} is not followed", place(from), place(&to))),
    }
}

/// The URL without path and query, which may be signed.
pub(super) fn place(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}://{host}{port}", url.scheme())
}

/// Checks that a body arrives at a reasonable rate.
#[derive(Debug, Default)]
struct MinimumRate {
    waited: Duration,
    bytes: u64,
}

impl MinimumRate {
    /// Counts arrived `bytes`; the error names the rate.
    fn passed(&mut self, waited: Duration, bytes: usize) -> Result<(), String> {
        self.waited += waited;
        self.bytes += bytes as u64;
        if self.waited < MIN_RATE_WINDOW {
            return Ok(());
        }
        let Self { waited, bytes } = std::mem::take(self);
        let wanted = MIN_BYTES_PER_WINDOW * waited.as_secs() / MIN_RATE_WINDOW.as_secs();
        if bytes >= wanted {
            return Ok(());
        }
        Err(format!("too slow: {bytes} bytes in {} s; the minimum is {wanted}", waited.as_secs()))
    }
}

#[derive(Debug)]
pub(super) struct Body {
    response: Response,
    minimum_rate: MinimumRate,
}

impl Body {
    pub(super) fn new(response: Response) -> Self {
        Self { response, minimum_rate: MinimumRate::default() }
    }

    /// The next piece; `None` at the end. The error names a host that was too slow.
    pub(super) async fn chunk(&mut self) -> Result<Option<bytes::Bytes>, String> {
        let began = Instant::now();
        let chunk = self.response.chunk().await.map_err(error_text)?;
        let bytes = chunk.as_ref().map_or(0, bytes::Bytes::len);
        if chunk.is_some() {
            let slow = |cause| format!("{} is {cause}", place(self.response.url()));
            self.minimum_rate.passed(began.elapsed(), bytes).map_err(slow)?;
        }
        Ok(chunk)
    }
}

/// Reads a document up to a limit.
pub(super) async fn read_bounded(response: Response, limit: u64) -> Result<Vec<u8>, Failure> {
    let from = place(response.url());
    let mut body = Body::new(response);
    let read = async {
        let mut bytes = Vec::new();
        while let Some(chunk) = body.chunk().await.map_err(|cause| Failure::new(Kind::Unreachable, cause))? {
            if bytes.len() as u64 + chunk.len() as u64 > limit {
                return Err(Failure::new(Kind::Content, format!("answer is larger than {limit} bytes")));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    };
    let late = || format!("{from} did not send a complete answer within {} s", DOCUMENT_TIMEOUT.as_secs());
    let read = tokio::time::timeout(DOCUMENT_TIMEOUT, read).await;
    read.unwrap_or_else(|_| Err(Failure::new(Kind::Unreachable, late())))
}

/// An error's message and its causes, without the URL, which may be signed.
pub(super) fn error_text(error: reqwest::Error) -> String {
    error_chain(&error.without_url())
}

fn headers(endpoint: &Endpoint) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for (name, value) in &endpoint.headers {
        let wrong = || format!("{}: header {name:?} cannot be sent", endpoint.host);
        let name: HeaderName = name.parse().map_err(|_| wrong())?;
        let mut value: HeaderValue = value.parse().map_err(|_| wrong())?;
        value.set_sensitive(true);
        headers.try_append(name, value).map_err(|_| format!("{}: too many headers", endpoint.host))?;
    }
    Ok(headers)
}

/// A client that trusts the system's certificate authorities and the endpoint's; `with_identity`: with what is for the endpoint alone.
fn client(endpoint: &Endpoint, with_identity: bool) -> Result<Client, ImageError> {
    let read = |path: &PathBuf| {
        std::fs::read(path).map_err(|error| ImageError::Config { path: path.clone(), cause: error.to_string() })
    };
    let config = |path: PathBuf, cause: String| ImageError::Config { path, cause };
    let mut authorities = Vec::new();
    for path in &endpoint.ca {
        let (before, pem) = (authorities.len(), read(path)?);
        authorities.extend(CertificateDer::pem_slice_iter(&pem).map_while(Result::ok));
        if authorities.len() == before {
            return Err(config(path.clone(), "contains no certificate in PEM".to_owned()));
        }
    }
    let mut identity = None;
    if let Some((certificate, key)) = endpoint.client.first().filter(|_| with_identity) {
        let mut pem = read(certificate)?;
        if let Some(key) = key {
            pem.push(b'\n');
            pem.extend(read(key)?);
        }
        let parsed = reqwest::Identity::from_pem(&pem);
        identity = Some((parsed.map_err(|error| config(certificate.clone(), error_text(error)))?, pem));
    }
    let builder = || {
        Client::builder()
            .user_agent(concat!("limpet/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(CONNECT_TIMEOUT)
            .read_timeout(READ_TIMEOUT)
            .redirect(redirect::Policy::none())
    };
    let broken = |cause: String| config(endpoint.base.clone().into(), cause);
    let skip_verify = with_identity && endpoint.skip_verify;
    if !authorities.is_empty() && !skip_verify {
        // The certificates may include a server certificate, which reqwest rejects.
        let pem = identity.as_ref().map(|(_, pem)| &pem[..]);
        let tls = limpet_tls::client_config(authorities, System::Trusted, pem);
        let mut tls = tls.map_err(|error| broken(error.to_string()))?;
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        return builder().tls_backend_preconfigured(tls).build().map_err(|error| broken(error_text(error)));
    }
    let builder = || {
        let builder = builder().tls_danger_accept_invalid_certs(skip_verify);
        match &identity {
            Some((identity, _)) => builder.identity(identity.clone()),
            None => builder,
        }
    };
    // A node without certificate authorities can still pull over plain HTTP; TLS handshakes fail.
    let full = builder().build().or_else(|_| builder().tls_certs_only([]).build());
    full.map_err(|error| broken(error_text(error)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Answers one request over TLS with a certificate that is written to `dir`. Returns the port.
    fn serve(dir: &std::path::Path) -> u16 {
        let key = rcgen::KeyPair::generate().unwrap();
        let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()]).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(dir.join("own.crt"), certificate.pem()).unwrap();
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        let tls = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into();
        let tls = tls.with_no_client_auth().with_single_cert(vec![certificate.der().clone()], key).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            use std::io::{Read as _, Write as _};
            let (mut stream, _) = listener.accept().unwrap();
            let mut connection = rustls::ServerConnection::new(tls.into()).unwrap();
            let mut tls = rustls::Stream::new(&mut connection, &mut stream);
            let mut request = [0; 4_096];
            // A client that does not accept the certificate hangs up.
            let answered = tls
                .read(&mut request)
                .and_then(|_| tls.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"));
            if answered.is_ok() {
                connection.send_close_notify();
                let _ = connection.complete_io(&mut stream);
            }
        });
        port
    }

    #[tokio::test]
    async fn a_registry_whose_own_certificate_is_its_ca_is_accepted() {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let other = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap().cert;
        std::fs::write(dir.path().join("other.crt"), other.pem()).unwrap();
        for (ca, expected) in [("own.crt", true), ("other.crt", false)] {
            let port = serve(dir.path());
            std::fs::create_dir_all(dir.path().join("_default")).unwrap();
            let hosts = format!("server = \"https://127.0.0.1:{port}\"\nca = \"../{ca}\"\n");
            std::fs::write(dir.path().join("_default/hosts.toml"), hosts).unwrap();
            let endpoints = super::super::certs::endpoints(dir.path(), "registry.example").unwrap();
            let endpoint = endpoints.last().unwrap();
            let http = Http::new(endpoint, &endpoint.base).unwrap();
            let answer = http.client(http.base()).get(http.base().clone()).send().await;
            assert_eq!(answer.is_ok(), expected, "{ca}: {answer:?}");
        }
        std::fs::write(dir.path().join("other.crt"), "no certificate").unwrap();
        let endpoints = super::super::certs::endpoints(dir.path(), "registry.example").unwrap();
        let endpoint = endpoints.last().unwrap();
        let error = Http::new(endpoint, &endpoint.base).unwrap_err().to_string();
        assert!(error.contains("other.crt") && error.contains("contains no certificate"), "{error}");
    }

    #[test]
    fn redirects_are_followed_unless_they_give_up_tls() {
        let from = |scheme: &str| Url::parse(&format!("{scheme}://quay.io/v2/a/blobs/x")).unwrap();
        let target = |from: &Url, to: &str| target(from, Some(to)).map(String::from);
        assert_eq!(target(&from("https"), "/v2/b").unwrap(), "https://quay.io/v2/b");
        assert_eq!(target(&from("https"), "https://cdn/x?sig=1").unwrap(), "https://cdn/x?sig=1");
        assert_eq!(target(&from("http"), "http://cdn/x").unwrap(), "http://cdn/x");
        assert_eq!(
            target(&from("https"), "http://cdn:81/x?sig=1").unwrap_err(),
            "redirect from https://quay.io to http://cdn:81 is not followed"
        );
        for to in ["ftp://cdn/x", "file:///etc/passwd", "http://"] {
            assert!(target(&from("http"), to).is_err(), "{to}");
        }
        assert!(super::target(&from("http"), None).is_err());
    }

    #[test]
    fn a_body_below_the_floor_is_given_up() {
        let second = Duration::from_secs(1);
        let mut minimum_rate = MinimumRate::default();
        // The first minute is not judged, however slow its start.
        (0..59).for_each(|_| minimum_rate.passed(second, 1).unwrap());
        let error = minimum_rate.passed(second, 1).unwrap_err();
        assert_eq!(error, "too slow: 60 bytes in 60 s; the minimum is 32768");
        // A pause does not matter in a window with enough bytes.
        minimum_rate.passed(second, MIN_BYTES_PER_WINDOW as usize).unwrap();
        (0..59).for_each(|_| minimum_rate.passed(second, 0).unwrap());
        // A window's bytes do not count for the next.
        assert!((0..60).any(|_| minimum_rate.passed(second, 0).is_err()));
    }
}
