//! The connection to one apiserver.
//!
//! kube-rs brings the credentials and TLS; the layers around them are our own few, because its stack tries again by itself
//! and logs each failure.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http_body_util::BodyExt as _;
use hyper::body::{self as http_body, Bytes};
use hyper::http;
use hyper::http::response::Parts;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
pub use kube::client::Body;
use kube::client::ConfigExt as _;
use kube::core::Status;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tower::ServiceBuilder;

use crate::connections::Connections;
use crate::dial::Dial;
use crate::error::{RequestError, was_not_processed};
use crate::kubeconfig;
use crate::protobuf;
use crate::proxy::{Proxy, Way};
use crate::request::Request;
use crate::retry_after;

/// How long the server may take to begin an answer, and to go on with one: kubelet gives its heartbeats as long.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// How long a whole answer may take while it keeps arriving: a list over a slow link.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(600);
/// A connection without traffic is probed by the kernel after this time, and then at this interval: a watch whose
/// connection is dead ends after 40 s.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// A connection on which nothing that was sent, probes too, has been acknowledged for so long is dead: requests would
/// wait on it.
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(20);
/// A connection on which no request began for so long takes none any more, and is closed once the last has ended. Renewals of
/// the lease keep the one of writes.
const IDLE_TIMEOUT: Duration = Duration::from_secs(30);
/// The same for the connection of reads. Longer than the watch of Pods lasts: else each watch that begins again would have a new
/// connection, whose handshake is 4 kB.
const IDLE_TIMEOUT_OF_READS: Duration = Duration::from_secs(15 * 60);
/// How many bytes of one answer, and of all on one connection, may wait to be read: a bound of memory.
const STREAM_WINDOW: u32 = 256 * 1_024;
const CONNECTION_WINDOW: u32 = 1_024 * 1_024;

type Connector = HttpsConnector<Way>;

/// The contents of a kubeconfig: the server and the client's credentials. Clones share the settings of TLS.
#[derive(Clone)]
pub struct Credentials {
    config: kube::Config,
    /// As the kubeconfig has it.
    server: Arc<str>,
    connector: Connector,
    authorities: Arc<[Vec<u8>]>,
}

impl Credentials {
    /// Reads the kubeconfig and what it names. `certificate`: a file with certificate and key that counts instead of the
    /// kubeconfig's user. Blocks.
    ///
    /// # Errors
    /// The credentials cannot be had.
    pub fn read(path: &Path, certificate: Option<&Path>) -> Result<Self, RequestError> {
        let kubeconfig::Read { mut config, server, proxy } = kubeconfig::read(path)?;
        if let Some(certificate) = certificate {
            config.auth_info = kubeconfig::user(certificate);
        }
        let authorities = config.root_cert.clone().unwrap_or_default().into();
        let dial = Dial::new(|connector| {
            connector.enforce_http(false);
            connector.set_connect_timeout(Some(DEADLINE));
            connector.set_nodelay(true);
            connector.set_keepalive(Some(KEEPALIVE_IDLE));
            connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
            connector.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT));
        });
        let connector = over_tls(&config, dial, proxy.as_ref())?;
        // The connector has them now; each node's copy need not.
        let user = &mut config.auth_info;
        (config.root_cert, user.client_certificate_data, user.client_key_data) = (None, None, None);
        Ok(Self { config, server: server.into(), connector, authorities })
    }

    /// The same, asking in the name of a node: its user has to be allowed to impersonate `system:node:<name>` and the group
    /// `system:nodes`. The apiserver then treats every request as one of that node.
    pub fn as_node(&self, name: &str) -> Self {
        let mut credentials = self.clone();
        credentials.config.auth_info.impersonate = Some(format!("system:node:{name}"));
        credentials.config.auth_info.impersonate_groups = Some(vec!["system:nodes".to_owned()]);
        credentials
    }

    /// Whether each client runs a program to have its credentials.
    pub fn runs_program(&self) -> bool {
        self.config.auth_info.exec.is_some()
    }

    /// A client with connections of its own; runs the `exec` program of the kubeconfig if it has one. Connects to nothing
    /// yet. Blocks; within a runtime.
    ///
    /// # Errors
    /// The credentials cannot be had.
    pub fn client(&self) -> Result<Client, RequestError> {
        let auth = self.config.auth_layer().map_err(refused)?;
        let headers = self.config.extra_headers_layer().map_err(refused)?;
        // What lists, gets and watches has connections of its own: a long answer keeps no renewal of the lease waiting.
        let connections = |idle_timeout| {
            let connector = self.connector.clone();
            Arc::new(Connections::new(move || connection(connector.clone(), idle_timeout)))
        };
        let (reads, writes) = (connections(IDLE_TIMEOUT_OF_READS), connections(IDLE_TIMEOUT));
        let either = tower::service_fn(move |request: http::Request<Body>| {
            let connections = if request.method() == http::Method::GET { &reads } else { &writes };
            let (connection, place) = connections.acquire();
            async move {
                let answer = connection.request(request).await?;
                // The place is free once the answer has been read, or is not waited for any more.
                let keep_place = move |frame| {
                    let _place = &place;
                    frame
                };
                Ok::<_, legacy::Error>(answer.map(|body| body.map_frame(keep_place)))
            }
        });
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(auth)
            .layer(headers)
            .and_then(retry_after::with_status)
            .service(either);
        let inner = kube::Client::new(service, self.config.default_namespace.clone());
        let (server, authorities) = (Some(Arc::clone(&self.server)), Arc::clone(&self.authorities));
        Ok(Client { inner, server, authorities, received_count: Arc::default() })
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

/// One connection by HTTP/2; with a server that has only HTTP/1.1 as many as there are requests at a time.
fn connection(connector: Connector, idle_timeout: Duration) -> legacy::Client<Connector, Body> {
    legacy::Builder::new(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(idle_timeout)
        .pool_max_idle_per_host(2)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(CONNECTION_WINDOW)
        .build(connector)
}

/// Connects by TLS, and by HTTP/2 where the server has it: one connection then carries many requests, and no header twice.
fn over_tls(config: &kube::Config, dial: Dial, proxy: Option<&Proxy>) -> Result<Connector, RequestError> {
    let tls = config.rustls_client_config().map_err(refused)?;
    let way = Way::new(dial, proxy, &tls);
    let mut builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let invalid = |error| RequestError::Credentials(format!("tls-server-name {name:?}: {error}"));
        let name = ServerName::try_from(name.clone()).map_err(invalid)?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }
    Ok(builder.enable_all_versions().wrap_connector(way))
}

fn refused(error: kube::Error) -> RequestError {
    match error {
        kube::Error::Auth(error) => RequestError::of_credentials(&error),
        error => RequestError::Credentials(limpet_model::error_chain::error_chain(&error)),
    }
}

/// A client with the credentials of one reading of the kubeconfig. Clones share its connections; when the last clone is
/// dropped, they are closed.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: kube::Client,
    /// `None`: no server answers, but a service.
    server: Option<Arc<str>>,
    authorities: Arc<[Vec<u8>]>,
    /// Counts what the server has sent.
    pub(crate) received_count: Arc<AtomicU64>,
}

/// A request and its answer: the bytes of their bodies; `None`: there was none. The body of a refusal is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The HTTP status of the answer.
    pub code: Option<u16>,
    /// Of the request.
    pub sent: Option<usize>,
    /// Of the answer.
    pub received: Option<usize>,
}

impl Client {
    /// Reads the kubeconfig and what it names, and runs its `exec` program if it has one. `certificate`: a file with
    /// certificate and key that counts instead of the kubeconfig's user. Connects to nothing yet. Blocks; within a runtime.
    ///
    /// # Errors
    /// The credentials cannot be had.
    pub fn open(path: &Path, certificate: Option<&Path>) -> Result<Self, RequestError> {
        Credentials::read(path, certificate)?.client()
    }

    /// A client whose requests `service` answers in place of a server, without TLS and credentials: for simulated clusters.
    /// Within a runtime.
    pub fn over<S, B>(service: S) -> Self
    where
        S: tower::Service<http::Request<Body>, Response = http::Response<B>> + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Into<tower::BoxError>,
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: Into<tower::BoxError>,
    {
        let service = ServiceBuilder::new().and_then(retry_after::with_status).service(service);
        Self {
            inner: kube::Client::new(service, "default"),
            server: None,
            authorities: Arc::default(),
            received_count: Arc::default(),
        }
    }

    /// The URL of the server, as the kubeconfig has it; `None`: a service answers in its place.
    pub fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    /// The certificates, DER, of the authorities that the kubeconfig names; none: the system's count.
    pub fn authorities(&self) -> &[Vec<u8>] {
        &self.authorities
    }

    /// Sends a request, and reads the whole answer.
    ///
    /// # Errors
    /// See [`RequestError`]. Whether the server has done it is not known after [`RequestError::Deadline`].
    pub async fn send(&self, request: Request) -> Result<Value, RequestError> {
        self.send_counted(request, &mut Traffic::default()).await
    }

    /// The same, and counts the bytes into `traffic`.
    ///
    /// # Errors
    /// As [`Client::send`].
    pub async fn send_counted(&self, request: Request, traffic: &mut Traffic) -> Result<Value, RequestError> {
        let request = request.into_http().map_err(|error| RequestError::Unreadable(error.to_string()))?;
        traffic.sent = Some(request.body().len());
        let answered = tokio::time::timeout(ANSWER_TIMEOUT, self.exchange(request)).await;
        let (head, bytes) = answered.map_err(|_| RequestError::Deadline(ANSWER_TIMEOUT))??;
        let document = read(&head, &bytes);
        traffic.code = Some(head.status.as_u16());
        if head.status.is_client_error() || head.status.is_server_error() {
            return Err(refusal(head.status, document, &bytes));
        }
        traffic.received = Some(bytes.len());
        document.map_err(RequestError::Unreadable)
    }

    /// Sends a request and reads its answer, for as long as something comes.
    async fn exchange(&self, request: http::Request<Vec<u8>>) -> Result<(Parts, Vec<u8>), RequestError> {
        let late = |_| RequestError::Deadline(DEADLINE);
        let send = |request: http::Request<Vec<u8>>| self.inner.send(request.map(Body::from));
        let answer = tokio::time::timeout(DEADLINE, begin(request, send)).await.map_err(late)??;
        let ((head, mut body), mut bytes) = (answer.into_parts(), Vec::new());
        self.received_count.fetch_add(1, Ordering::Relaxed);
        while let Some(frame) = tokio::time::timeout(DEADLINE, body.frame()).await.map_err(late)? {
            self.received_count.fetch_add(1, Ordering::Relaxed);
            bytes.extend_from_slice(frame?.data_ref().map_or(&[], |data| data));
        }
        Ok((head, bytes))
    }

    /// Counts the bytes received from the server: it changes as long as data arrives.
    pub fn received_count(&self) -> u64 {
        self.received_count.load(Ordering::Relaxed)
    }
}

/// Sends a request, and once more where the server ended the connection before it looked at it.
pub(crate) async fn begin<T, F: Future<Output = Result<T, kube::Error>>>(
    request: http::Request<Vec<u8>>,
    send: impl Fn(http::Request<Vec<u8>>) -> F,
) -> F::Output {
    match send(request.clone()).await {
        Err(error) if was_not_processed(&error) => send(request).await,
        begun => begun,
    }
}

/// The document of an answer, in the format that its head names.
fn read(head: &Parts, body: &[u8]) -> Result<Value, String> {
    let content_type = head.headers.get(http::header::CONTENT_TYPE);
    if content_type.is_some_and(|value| value.as_bytes().starts_with(protobuf::CONTENT_TYPE.as_bytes())) {
        return protobuf::read(body).map_err(|error| error.to_string());
    }
    serde_json::from_slice(body).map_err(|error| error.to_string())
}

/// The server's message for a request that it refused. A proxy may answer instead, in another format.
fn refusal(status: http::StatusCode, document: Result<Value, String>, body: &[u8]) -> RequestError {
    let output =
        document.ok().and_then(|document| serde_json::from_value::<Status>(document).ok()).unwrap_or_else(|| {
            let text = String::from_utf8_lossy(body);
            Status::failure(text.trim(), "Failed to parse error data").with_code(status.as_u16())
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
mod tests {
    use futures_util::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use serde_json::json;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::time::Instant;

    use super::*;
    use crate::request::Resource;

    /// The headers of a request by the credentials that `of` makes of a kubeconfig whose user has that line.
    async fn headers(user: &str, of: impl Fn(Credentials) -> Credentials) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: edge\n\
             contexts: [{{name: edge, context: {{cluster: lab, user: node}}}}]\n\
             clusters: [{{name: lab, cluster: {{server: 'http://{}'}}}}]\n\
             users: [{{name: node, user: {user}}}]\n",
            listener.local_addr().unwrap()
        );
        std::fs::write(&path, text).unwrap();
        let client = of(Credentials::read(&path, None).unwrap()).client().unwrap();
        let answer = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4_096];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await.unwrap();
            String::from_utf8_lossy(&request[..length]).to_lowercase()
        };
        let (answered, request) = tokio::join!(client.send(Request::get(Resource::Nodes)), answer);
        answered.unwrap();
        request
    }

    #[tokio::test]
    async fn requests_are_in_the_name_of_whom_the_kubeconfig_or_the_node_says() {
        let output = headers("{token: t, as: ada, as-groups: [lab]}", |credentials| credentials).await;
        assert!(
            output.contains("impersonate-user: ada\r\n") && output.contains("impersonate-group: lab\r\n"),
            "{output}"
        );
        let output = headers("{token: t}", |credentials| credentials.as_node("edge1")).await;
        assert!(output.contains("impersonate-user: system:node:edge1\r\n"), "{output}");
        assert!(output.contains("impersonate-group: system:nodes\r\n") && output.contains("bearer t"), "{output}");
        assert!(!headers("{token: t}", |credentials| credentials).await.contains("impersonate"));
    }

    /// A client of a server that sends `{"a":…}` byte by byte, with that pause before each, `count` digits in all.
    fn slow(pause: Duration, count: usize) -> Client {
        let bytes = format!("{{\"a\":1{}}}", "0".repeat(count)).into_bytes();
        Client::over(tower::service_fn(move |_: http::Request<Body>| {
            let bytes = bytes.clone();
            let frames = stream::unfold(bytes.into_iter(), move |mut bytes| async move {
                tokio::time::sleep(pause).await;
                let frame = Frame::data(Bytes::from(vec![bytes.next()?]));
                Some((Ok::<_, tower::BoxError>(frame), bytes))
            });
            async move { Ok::<_, tower::BoxError>(http::Response::new(StreamBody::new(Box::pin(frames)))) }
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_may_take_long_as_long_as_it_comes() {
        let (begun, client) = (Instant::now(), slow(DEADLINE / 2, 10));
        let received_count = client.received_count();
        let answer = client.send(Request::get(Resource::Nodes)).await.unwrap();
        assert_eq!(answer, json!({ "a": 10_000_000_000_u64 }));
        assert!(begun.elapsed() > DEADLINE * 5 && client.received_count() != received_count);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_stops_or_never_ends_is_given_up() {
        let begun = Instant::now();
        let stopped = slow(DEADLINE * 2, 10).send(Request::get(Resource::Nodes)).await;
        assert!(matches!(stopped, Err(RequestError::Deadline(DEADLINE))), "{stopped:?}");
        assert!(begun.elapsed() < DEADLINE * 2);
        let endless = slow(DEADLINE / 2, 1_000).send(Request::get(Resource::Nodes)).await;
        assert!(matches!(endless, Err(RequestError::Deadline(ANSWER_TIMEOUT))), "{endless:?}");
    }

    #[tokio::test]
    async fn a_refusal_keeps_what_the_server_says_in_whatever_words() {
        let refused = |body: &'static str| async move {
            let client = Client::over(tower::service_fn(move |_: http::Request<Body>| async move {
                let mut answer = http::Response::new(body.to_owned());
                *answer.status_mut() = http::StatusCode::BAD_GATEWAY;
                Ok::<_, tower::BoxError>(answer)
            }));
            client.send(Request::get(Resource::Nodes)).await.unwrap_err().to_string()
        };
        let status = r#"{"kind":"Status","status":"Failure","message":"no","reason":"Odd","code":502}"#;
        assert_eq!(refused(status).await, "no (502)");
        assert_eq!(refused("<html>\n").await, "<html> (502)");
    }
}
