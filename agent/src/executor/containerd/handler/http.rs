//! A GET of a probe or hook, as kubelet sends it: with a separate connection, certificates are not verified,
//! redirects are followed only on the same host, and the body is bounded. Servers of HTTPS probes may choose HTTP/2.
//! Part of [`super`].

mod http2;

use std::error::Error as _;
use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use reqwest::Url;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, ClientConfig};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{HandlerError, KUBERNETES, MAX_OUTPUT, authority, connect, host, port};

/// The most redirects followed for one GET.
const MAX_REDIRECTS: usize = 10;
/// The most headers of an answer, and the most bytes of its head.
const MAX_HEADERS: usize = 4_096;
const MAX_HEAD: usize = 1 << 20;

/// Why a GET is sent, as its User-Agent says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    Probe,
    Lifecycle,
}

impl Purpose {
    /// The protocols that a server may choose from during the TLS handshake. kubelet's client for hooks offers none.
    fn protocols(self) -> Vec<Vec<u8>> {
        match self {
            Self::Probe => vec![http2::ALPN.to_vec(), b"http/1.1".to_vec()],
            Self::Lifecycle => Vec::new(),
        }
    }
}

/// One GET: where to, and with which headers.
#[derive(Debug, Clone)]
pub struct Get {
    url: Url,
    headers: HeaderMap,
    purpose: Purpose,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// Its status; that of a redirect when it led to another host.
    pub status: StatusCode,
    /// The beginning of its body.
    pub body: String,
}

/// Why a GET brought no answer.
#[derive(Debug, thiserror::Error)]
#[error("Get \"{url}\": {cause}")]
pub struct GetFailure {
    pub url: String,
    pub cause: String,
    /// The server does not speak TLS.
    pub without_tls: bool,
}

impl Get {
    /// The GET of `action`; `pod`: the pod's address, for an action without a host.
    ///
    /// # Errors
    /// When there is no address, no such port, or no such URL.
    pub fn new(
        action: &HTTPGetAction,
        container: &Container,
        pod: Option<IpAddr>,
        purpose: Purpose,
    ) -> Result<Self, HandlerError> {
        let scheme = action.scheme.as_deref().unwrap_or("HTTP").to_ascii_lowercase();
        let authority = authority(&host(action.host.as_deref(), pod)?, port(&action.port, container)?);
        let path = action.path.as_deref().unwrap_or_default();
        let url = format!("{scheme}://{authority}/{}", path.strip_prefix('/').unwrap_or(path));
        let failed = |cause: String| GetFailure { url: url.clone(), cause, without_tls: false };
        let mut headers = HeaderMap::new();
        // A map of more would panic. No server reads as many.
        let count = action.http_headers.as_ref().map_or(0, Vec::len);
        if count > MAX_HEADERS {
            return Err(failed(format!("{count} headers are too many: at most {MAX_HEADERS} are sent")).into());
        }
        for header in action.http_headers.iter().flatten() {
            let name = header.name.parse::<HeaderName>().map_err(|error| failed(error.to_string()))?;
            let value = header.value.parse::<HeaderValue>().map_err(|error| failed(error.to_string()))?;
            headers.append(name, value);
        }
        let agent = match purpose {
            Purpose::Probe => format!("kube-probe/{KUBERNETES}"),
            Purpose::Lifecycle => format!("kube-lifecycle/{KUBERNETES}"),
        };
        let agent = agent.parse::<HeaderValue>().map_err(|error| failed(error.to_string()))?;
        headers.entry(USER_AGENT).or_insert(agent);
        // An empty one requests none.
        if headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*")).is_empty() {
            headers.remove(ACCEPT);
        }
        headers.entry(CONNECTION).or_insert(HeaderValue::from_static("close"));
        let url = Url::parse(&url).map_err(|error| failed(error.to_string()))?;
        Ok(Self { url, headers, purpose })
    }

    /// The same without TLS, and without what was for TLS alone.
    pub fn without_tls(mut self) -> Self {
        let port = self.url.port_or_known_default();
        // Both schemes are ones that every URL may change between.
        let _ = self.url.set_scheme("http").and_then(|()| self.url.set_port(port));
        self.headers.remove(hyper::header::AUTHORIZATION);
        self
    }

    /// Where to, as in a URL.
    pub fn authority(&self) -> String {
        let host = self.url.host_str().unwrap_or_default();
        format!("{host}:{}", self.url.port_or_known_default().unwrap_or_default())
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    fn request(&self) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
        let target = match self.url.query() {
            Some(query) => format!("{}?{query}", self.url.path()),
            None => self.url.path().to_owned(),
        };
        let mut request = Request::get(target).body(Empty::new())?;
        *request.headers_mut() = self.headers.clone();
        if self.headers.get(HOST).is_none_or(HeaderValue::is_empty) {
            request.headers_mut().insert(HOST, self.authority().parse()?);
        }
        Ok(request)
    }

    /// The GET that `response` redirects this one to; `None`: to another host, or it is none.
    fn redirected<B>(&self, response: &Response<B>) -> Option<Self> {
        if !matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
            return None;
        }
        let location = response.headers().get(LOCATION)?.to_str().ok()?;
        let url = self.url.join(location).ok()?;
        let same = url.host_str() == self.url.host_str() && matches!(url.scheme(), "http" | "https");
        let mut headers = self.headers.clone();
        if Url::parse(location).is_ok() {
            // A name given with the action is for the place that the action names.
            headers.remove(HOST);
        }
        same.then_some(Self { url, headers, purpose: self.purpose })
    }

    /// What `response` comes to; `body` reads the beginning of its body.
    async fn take<B, E>(
        &self,
        response: Response<B>,
        answered: &AtomicBool,
        body: impl AsyncFnOnce(B) -> Result<String, E>,
    ) -> Result<Exchanged, E> {
        if let Some(next) = self.redirected(&response) {
            return Ok(Exchanged::Redirect(Box::new(next)));
        }
        answered.store(true, Ordering::Relaxed);
        let status = response.status();
        Ok(Exchanged::Answer(Answer { status, body: body(response.into_body()).await? }))
    }

    fn failed(&self, cause: String, without_tls: bool) -> GetFailure {
        GetFailure { url: self.url.to_string(), cause, without_tls }
    }
}

/// Sends GETs. What TLS needs is created for the first that uses it.
#[derive(Debug, Default)]
pub struct HttpGetter {
    tls: OnceLock<Arc<ClientConfig>>,
}

impl HttpGetter {
    /// Sends `get`, and follows redirects that stay at its host. `answered` is set once the status of the last answer
    /// is here: an error or a deadline after that is one of its body.
    ///
    /// # Errors
    /// When there is no answer, or its body breaks off. One of any status is an answer.
    pub async fn send(&self, get: Get, answered: &AtomicBool) -> Result<Answer, GetFailure> {
        let mut get = get;
        for _ in 0..=MAX_REDIRECTS {
            match self.exchange(&get, answered).await? {
                Exchanged::Answer(answer) => return Ok(answer),
                Exchanged::Redirect(next) => get = *next,
            }
        }
        Err(get.failed(format!("stopped after {MAX_REDIRECTS} redirects"), false))
    }

    async fn exchange(&self, get: &Get, answered: &AtomicBool) -> Result<Exchanged, GetFailure> {
        let host = get.url.host_str().unwrap_or_default().trim_matches(['[', ']']);
        let port = get.url.port_or_known_default().unwrap_or_default();
        let stream = connect(host, port).await;
        let stream = stream.map_err(|error| get.failed(format!("dial tcp {}: {error}", get.authority()), false))?;
        match get.url.scheme() {
            "https" => {
                let stream = self.handshake(host, stream, get.purpose).await;
                let stream = stream.map_err(|error| get.failed(refusal(&error), speaks_no_tls(&error)))?;
                match stream.get_ref().1.alpn_protocol() {
                    Some(http2::ALPN) => http2::over(stream, get, answered).await,
                    _ => over(stream, get, answered).await,
                }
            }
            _ => over(stream, get, answered).await,
        }
    }

    async fn handshake(&self, host: &str, stream: TcpStream, purpose: Purpose) -> io::Result<TlsStream<TcpStream>> {
        let config = match self.tls.get() {
            Some(config) => Arc::clone(config),
            None => {
                let made = Arc::new(limpet_tls::unverified().map_err(io::Error::other)?);
                Arc::clone(self.tls.get_or_init(|| made))
            }
        };
        let name = match ServerName::try_from(host) {
            Ok(name) => name.to_owned(),
            // Not a name that TLS can send: none is sent.
            Err(_) => ServerName::from(stream.peer_addr()?.ip()),
        };
        TlsConnector::from(config).with_alpn(purpose.protocols()).connect(name, stream).await
    }
}

/// What one exchange came to.
enum Exchanged {
    Answer(Answer),
    Redirect(Box<Get>),
}

/// One request and its answer over `stream`, which is closed then.
async fn over<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    stream: S,
    get: &Get,
    answered: &AtomicBool,
) -> Result<Exchanged, GetFailure> {
    let failed = |error: hyper::Error| {
        let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
        get.failed(format!("{error}{cause}"), false)
    };
    let request = get.request().map_err(|error| get.failed(error.to_string(), false))?;
    let mut client = http1::Builder::new();
    client.title_case_headers(true).max_headers(MAX_HEADERS).max_buf_size(MAX_HEAD);
    // What Go's client puts up with. Of the headers only the place of a redirect and the body's length count.
    client.allow_spaces_after_header_name_in_responses(true).allow_obsolete_multiline_headers_in_responses(true);
    client.ignore_invalid_headers_in_responses(true);
    let handshake = client.handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(failed)?;
    let answer = async {
        let response = sender.send_request(request).await?;
        get.take(response, answered, body).await
    };
    driven(answer, connection).await.map_err(failed)
}

/// The outcome of `answer`, which comes over `connection`.
async fn driven<T, E>(
    answer: impl Future<Output = Result<T, E>>,
    connection: impl Future<Output = Result<(), E>>,
) -> Result<T, E> {
    let (mut answer, mut connection) = (std::pin::pin!(answer), std::pin::pin!(connection));
    tokio::select! {
        answer = &mut answer => answer,
        ended = &mut connection => match ended {
            // What came is still to be read.
            Ok(()) => answer.await,
            Err(error) => Err(error),
        },
    }
}

/// The beginning of a body; the rest is not read.
async fn body(mut body: Incoming) -> Result<String, hyper::Error> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame?.into_data() else { continue };
        if is_full_with(&mut bytes, &data) {
            break;
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Appends what fits of `data` to a body; whether nothing more fits.
fn is_full_with(body: &mut Vec<u8>, data: &[u8]) -> bool {
    let room = MAX_OUTPUT - body.len();
    body.extend_from_slice(&data[..data.len().min(room)]);
    body.len() == MAX_OUTPUT
}

/// Why a TLS handshake failed. Of a server that shares no cipher suite or version with kubelet either, the alert says little.
fn refusal(error: &io::Error) -> String {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    let hint = match cause {
        Some(rustls::Error::AlertReceived(
            AlertDescription::HandshakeFailure
            | AlertDescription::ProtocolVersion
            | AlertDescription::InsufficientSecurity,
        )) => ": the server may have no cipher suite with ECDHE, or no TLS 1.2; use tcpSocket or exec for it",
        _ => "",
    };
    format!("{error}{hint}")
}

/// Whether what came back of a TLS handshake was something else, such as a plain answer.
fn speaks_no_tls(error: &io::Error) -> bool {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>());
    matches!(cause, Some(rustls::Error::InvalidMessage(_)))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
