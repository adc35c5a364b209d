//! The connection to one apiserver.
//!
//! hyper provides the connections. The rest, address, authorization and impersonation, takes a few lines here:
//! kube-rs's client retries by itself and logs each failure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use http_body_util::BodyExt as _;
use hyper::body::{self as http_body, Bytes};
use hyper::http;
use hyper::http::header::{AUTHORIZATION, CONTENT_TYPE};
use hyper::http::response::Parts;
use hyper::http::uri::{PathAndQuery, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::core::Status;
use limpet_tls::System;
use rustls::ClientConfig;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::Value;
use tower::{BoxError, Service, ServiceExt as _};

use crate::authorization::Authorization;
use crate::body::{Body, full_body};
use crate::connections::Connections;
use crate::dial::Dial;
use crate::error::{RequestError, was_not_processed};
use crate::kubeconfig::Settings;
use crate::program::{self, Issued};
use crate::proxy::Way;
use crate::request::Request;
use crate::{impersonation, kubeconfig, protobuf, retry_after};

/// How long the server may take to begin an answer, and between pieces of one: the deadline of kubelet's heartbeats.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How long a complete answer may take while data keeps arriving, such as a list over a slow link.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// The kernel probes a silent connection after this time, and then at this interval. A watch on a dead connection
/// ends after 40 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A connection is dead after this time without an acknowledgement of sent data or probes; requests would wait on it.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection accepts no more requests after this time without a new one, and is closed once the last has ended.
/// Renewals of the lease keep the connection for writes open.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for the connection for reads. It outlasts the watch of Pods: otherwise each new watch would need a new
/// connection, whose handshake takes 4 kB.
const IDLE_TIMEOUT_OF_READS: Duration = Duration::from_secs(15 * 60);
/// The most unread bytes of one answer, and of all answers on a connection; bounds memory.
const STREAM_WINDOW: u32 = 256 * 1_024;
const CONNECTION_WINDOW: u32 = 1_024 * 1_024;
/// The largest answer in bytes: some thousand Pods.
const MAX_ANSWER: usize = 64 << 20;
/// The largest refusal in bytes.
pub(crate) const MAX_REFUSAL: usize = 1 << 20;

type Connector = HttpsConnector<Way>;
/// Sends a request, and returns the beginning of its answer.
type Exchange = dyn Fn(http::Request<Body>) -> BoxFuture<'static, Result<http::Response<Body>, BoxError>> + Send + Sync;

/// The contents of a kubeconfig: the server and the client's credentials. Clones share the settings of TLS.
#[derive(Clone)]
pub struct Credentials {
    settings: Settings,
    connector: Connector,
    authorities: Arc<[Vec<u8>]>,
    /// `None` if the client has a certificate, or no credentials.
    authorization: Option<Arc<Authorization>>,
}

impl Credentials {
    /// Reads the kubeconfig and the files it names, and runs its `exec` program if it has one. `certificate` is a
    /// file with certificate and key that takes precedence over the kubeconfig's user. Blocks.
    ///
    /// # Errors
    ///
    /// The credentials cannot be obtained.
    pub fn read(path: &Path, certificate: Option<&Path>) -> Result<Self, RequestError> {
        let mut settings = kubeconfig::read(path)?;
        if let Some(certificate) = certificate {
            settings.user = kubeconfig::user(certificate);
        }
        let user = &mut settings.user;
        let issued = user.exec.as_ref().map(program::run).transpose()?;
        if let Some(Issued { identity: Some((certificate, key)), .. }) = &issued {
            user.client_certificate_data = Some(BASE64_STANDARD.encode(certificate));
            user.client_key_data = Some(BASE64_STANDARD.encode(key).into());
        }
        let authorization = Authorization::new(user, issued)?.map(Arc::new);
        let authorities = settings.authorities.clone().unwrap_or_default().into();
        let dial = Dial::new(|connector| {
            connector.enforce_http(false);
            connector.set_connect_timeout(Some(DEADLINE));
            connector.set_nodelay(true);
            connector.set_keepalive(Some(KEEPALIVE_IDLE));
            connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
            connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
        });
        let identity = kubeconfig::identity(path, &settings.user)?;
        let connector = over_tls(&settings, identity.as_deref(), dial)?;
        // The connector has them now, and not each node's copy.
        let user = &mut settings.user;
        (settings.authorities, user.client_certificate_data, user.client_key_data) = (None, None, None);
        Ok(Self { settings, connector, authorities, authorization })
    }

    /// Credentials that act as a node: the user must be allowed to impersonate `system:node:<name>` and the group
    /// `system:nodes`. The apiserver then treats every request as one of that node.
    pub fn as_node(&self, name: &str) -> Self {
        let mut credentials = self.clone();
        credentials.settings.user.impersonate = Some(format!("system:node:{name}"));
        credentials.settings.user.impersonate_groups = Some(vec!["system:nodes".to_owned()]);
        credentials
    }

    pub fn runs_program(&self) -> bool {
        self.settings.user.exec.is_some()
    }

    /// A client with connections of its own. It does not connect yet.
    ///
    /// # Errors
    ///
    /// The credentials cannot be sent.
    pub fn client(&self) -> Result<Client, RequestError> {
        let names = impersonation::headers(&self.settings.user)?;
        // Reads and watches have connections of their own, so that a long answer does not delay a renewal of the
        // lease.
        let connections = |idle_timeout| {
            let connector = self.connector.clone();
            Arc::new(Connections::new(move || connection(connector.clone(), idle_timeout)))
        };
        let (reads, writes) = (connections(IDLE_TIMEOUT_OF_READS), connections(IDLE_TIMEOUT));
        let (url, authorization) = (self.settings.url.clone(), self.authorization.clone());
        let service = tower::service_fn(move |mut request: http::Request<Body>| {
            let connections = if request.method() == http::Method::GET { &reads } else { &writes };
            let (connection, place) = connections.acquire();
            let (authorization, uri, names) = (authorization.clone(), at(&url, request.uri()), names.clone());
            async move {
                *request.uri_mut() = uri?;
                for (name, value) in names {
                    request.headers_mut().append(name, value);
                }
                if let Some(authorization) = authorization {
                    request.headers_mut().insert(AUTHORIZATION, authorization.header().await?);
                }
                let answer = connection.request(request).await?;
                // The slot is released once the answer has been read, or was dropped.
                let keep_place = move |frame| {
                    let _place = &place;
                    frame
                };
                Ok::<_, BoxError>(answer.map(|body| body.map_frame(keep_place)))
            }
        });
        let (server, authorities) = (Some(Arc::clone(&self.settings.server)), Arc::clone(&self.authorities));
        Ok(Client { server, authorities, ..Client::over(service) })
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// A single HTTP/2 connection or, with a server that only supports HTTP/1.1, one per concurrent request.
fn connection(connector: Connector, idle_timeout: Duration) -> legacy::Client<Connector, Body> {
    legacy::Builder::new(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle_timeout)
        .pool_max_idle_per_host(2)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

/// Connects over TLS, with HTTP/2 where the server supports it: one connection then carries many requests, and
/// repeats no header.
fn over_tls(settings: &Settings, identity: Option<&[u8]>, dial: Dial) -> Result<Connector, RequestError> {
    let tls = tls(settings, identity).map_err(|error| RequestError::Credentials(error.to_string()))?;
    let way = Way::new(dial, settings.proxy.as_ref(), &tls);
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &settings.tls_server_name {
        let invalid = |error| RequestError::Credentials(format!("tls-server-name {name:?}: {error}"));
        let name = ServerName::try_from(name.clone()).map_err(invalid)?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(way))
}

/// The trusted certificate authorities: those in the kubeconfig, else the system's; or none are checked.
fn tls(settings: &Settings, identity: Option<&[u8]>) -> Result<ClientConfig, rustls::Error> {
    if settings.accepts_any_server {
        return limpet_tls::any_server(identity);
    }
    let named = settings.authorities.iter().flatten().cloned().map(CertificateDer::from).collect();
    let system = if settings.authorities.is_some() { System::Ignored } else { System::Trusted };
    limpet_tls::client_config(named, system, identity)
}

/// The URL of a request at a server whose URL may have a path.
fn at(server: &Uri, request: &Uri) -> Result<Uri, http::Error> {
    let target = request.path_and_query().map_or("/", PathAndQuery::as_str);
    let mut parts = server.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(format!("{}{target}", server.path().trim_end_matches('/')))?);
    Ok(Uri::from_parts(parts)?)
}

/// A client with credentials as they were read once from the kubeconfig. Clones share its connections, which are
/// closed when the last clone is dropped.
#[derive(Clone)]
pub struct Client {
    exchange: Arc<Exchange>,
    /// `None` if a service answers instead of a server.
    server: Option<Arc<str>>,
    authorities: Arc<[Vec<u8>]>,
    /// Counts received data.
    pub(crate) received_count: Arc<AtomicU64>,
}

/// The body sizes of a request and its answer; `None` if there was none. A refusal's body is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The answer's HTTP status.
    pub code: Option<u16>,
    /// The request's bytes.
    pub sent: Option<usize>,
    /// The answer's bytes.
    pub received: Option<usize>,
}

impl Client {
    /// [`Credentials::read`], then [`Credentials::client`]. Blocks.
    ///
    /// # Errors
    ///
    /// The credentials cannot be obtained.
    pub fn open(path: &Path, certificate: Option<&Path>) -> Result<Self, RequestError> {
        Credentials::read(path, certificate)?.client()
    }

    /// A client whose requests `service` answers instead of a server, without TLS and credentials, for simulated
    /// clusters.
    pub fn over<S, B>(service: S) -> Self
    where
        S: Service<http::Request<Body>, Response = http::Response<B>> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
        S::Error: Into<BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<BoxError>,
    {
        let service = service.map_err(Into::into).and_then(retry_after::with_status);
        let exchange = Arc::new(move |request| service.clone().oneshot(request).boxed());
        Self { exchange, server: None, authorities: Arc::default(), received_count: Arc::default() }
    }

    /// The server's URL in the kubeconfig; `None` if a service answers instead.
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// The DER certificates of the kubeconfig's authorities; empty if the system's are used.
    pub fn authorities(&self) -> &[Vec<u8>] {
        &self.authorities
    }

    /// Sends a request and reads the complete answer.
    ///
    /// # Errors
    ///
    /// See [`RequestError`]. After [`RequestError::Deadline`] it is unknown whether the server has performed the
    /// request.
    pub async fn send(&self, request: Request) -> Result<Value, RequestError> {
        self.send_counted(request, &mut Traffic::default()).await
    }

    /// The same, and records sizes in `traffic`.
    ///
    /// # Errors
    ///
    /// As [`Client::send`].
    pub async fn send_counted(&self, request: Request, traffic: &mut Traffic) -> Result<Value, RequestError> {
        let request = request.into_http().map_err(|error| RequestError::Unreadable(error.to_string()))?;
        traffic.sent = Some(request.body().len());
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(request)).await;
        let (head, bytes) = answered.map_err(|_| RequestError::Deadline(ANSWER_TIMEOUT))??;
        traffic.code = Some(head.status.as_u16());
        if head.status.is_client_error() || head.status.is_server_error() {
            return Err(refusal(&head, &bytes));
        }
        traffic.received = Some(bytes.len());
        read(&head, &bytes).map_err(RequestError::Unreadable)
    }

    /// Sends a request and reads its answer as long as data arrives.
    async fn exchange(&self, request: http::Request<Vec<u8>>) -> Result<(Parts, Vec<u8>), RequestError> {
        let late = |_| RequestError::Deadline(DEADLINE);
        let answer = tokio::time::timeout(DEADLINE, self.begin(request)).await.map_err(late)??;
        self.received_count.fetch_add(1, Ordering::Relaxed);
        let (head, body) = answer.into_parts();
        let refused = head.status.is_client_error() || head.status.is_server_error();
        let bytes = self.whole(body, if refused { MAX_REFUSAL } else { MAX_ANSWER }).await?;
        Ok((head, bytes))
    }

    /// Reads a body of at most `limit` bytes as long as data arrives.
    pub(crate) async fn whole(&self, mut body: Body, limit: usize) -> Result<Vec<u8>, RequestError> {
        let late = |_| RequestError::Deadline(DEADLINE);
        let mut bytes = Vec::new();
        while let Some(frame) = tokio::time::timeout(DEADLINE, body.frame()).await.map_err(late)? {
            self.received_count.fetch_add(1, Ordering::Relaxed);
            let frame = frame?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if bytes.len() + data.len() > limit {
                return Err(RequestError::Unreadable(format!("more than {} MiB", limit >> 20)));
            }
            bytes.extend_from_slice(data);
        }
        Ok(bytes)
    }

    /// Sends a request, and again if the server closed the connection before it processed the request.
    pub(crate) async fn begin(&self, request: http::Request<Vec<u8>>) -> Result<http::Response<Body>, BoxError> {
        let send = |request: http::Request<Vec<u8>>| (self.exchange)(request.map(|bytes| full_body(bytes.into())));
        match send(request.clone()).await {
            Err(error) if was_not_processed(&*error) => send(request).await,
            begun => begun,
        }
    }

    /// Counts received data: the value changes as long as anything arrives.
    pub fn received_count(&self) -> u64 {
        self.received_count.load(Ordering::Relaxed)
    }
}

/// Decodes an answer in the format that its head names.
fn read(head: &Parts, body: &[u8]) -> Result<Value, String> {
    let content_type = head.headers.get(CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(protobuf::CONTENT_TYPE.as_bytes())) {
        return protobuf::read(body).map_err(|error| error.to_string());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// The error for a request that the server refused. A proxy may have answered in another format.
pub(crate) fn refusal(head: &Parts, body: &[u8]) -> RequestError {
    let document = read(head, body).ok().and_then(|document| serde_json::from_value::<Status>(document).ok());
    let output = document.unwrap_or_else(|| {
        let text = String::from_utf8_lossy(body);
        Status::failure(text.trim(), "Failed to parse error data").with_code(head.status.as_u16())
    });
    RequestError::refused(&output)
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
