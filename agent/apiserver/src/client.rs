//! The connection to one apiserver.
//!
//! kube-rs brings the credentials and TLS; the layers around them are our own few, because its stack tries again by itself
//! and logs each failure.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ConfigExt as _};
use serde_json::Value;
use tower::ServiceBuilder;

use crate::error::RequestError;
use crate::kubeconfig;
use crate::request::Request;

/// How long a request may take, but for a watch: kubelet gives its heartbeats as long.
pub const DEADLINE: Duration = Duration::from_secs(10);
/// A connection that is not used for so long is closed; renewals of the lease keep one open.
const IDLE: Duration = Duration::from_secs(30);

/// A client with the credentials of one reading of the kubeconfig. Clones share its connections; when the last one goes,
/// they are closed.
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: kube::Client,
    authorities: Arc<[Vec<u8>]>,
}

/// The bodies of a request and its answer, in bytes; `None`: there was none. The body of a refusal is not counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
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
        let (mut config, _) = kubeconfig::read(path)?;
        if let Some(certificate) = certificate {
            config.auth_info = kubeconfig::user(certificate);
        }
        let authorities = config.root_cert.clone().unwrap_or_default().into();
        let refused = |error: kube::Error| RequestError::Credentials(crate::causes::chain(&error));
        let auth = config.auth_layer().map_err(refused)?;
        let mut connector = legacy::connect::HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(DEADLINE));
        connector.set_nodelay(true);
        let connector = config.rustls_https_connector_with_connector(connector).map_err(refused)?;
        let client: legacy::Client<_, Body> = legacy::Builder::new(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(2)
            .build(connector);
        let service = ServiceBuilder::new()
            .layer(config.base_uri_layer())
            .option_layer(auth)
            .map_err(tower::BoxError::from)
            .service(client);
        Ok(Self { inner: kube::Client::new(service, config.default_namespace), authorities })
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
        let answered = tokio::time::timeout(DEADLINE, self.inner.request_text(request)).await;
        let text = answered.map_err(|_| RequestError::Deadline(DEADLINE))??;
        traffic.received = Some(text.len());
        serde_json::from_str(&text).map_err(|error| RequestError::Unreadable(error.to_string()))
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Client")
    }
}
