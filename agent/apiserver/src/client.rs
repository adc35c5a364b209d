//! The connection to one apiserver.
//!
//! kube-rs brings the credentials and TLS; the layers around them are our own few, because its stack tries again by itself
//! and logs each failure.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_rustls::HttpsConnector;
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

/// What one reading of the kubeconfig brings: who the server is, and who asks. Clones share the settings of TLS.
#[derive(Clone)]
pub struct Credentials {
    config: kube::Config,
    connector: HttpsConnector<legacy::connect::HttpConnector>,
    authorities: Arc<[Vec<u8>]>,
}

impl Credentials {
    /// Reads the kubeconfig and what it names. `certificate`: a file with certificate and key that counts instead of the
    /// kubeconfig's user. Blocks.
    ///
    /// # Errors
    /// The credentials cannot be had.
    pub fn read(path: &Path, certificate: Option<&Path>) -> Result<Self, RequestError> {
        let (mut config, _) = kubeconfig::read(path)?;
        if let Some(certificate) = certificate {
            config.auth_info = kubeconfig::user(certificate);
        }
        let authorities = config.root_cert.clone().unwrap_or_default().into();
        let mut connector = legacy::connect::HttpConnector::new();
        connector.enforce_http(false);
        connector.set_connect_timeout(Some(DEADLINE));
        connector.set_nodelay(true);
        let connector = config.rustls_https_connector_with_connector(connector).map_err(refused)?;
        // The connector has them now; each node's copy need not.
        let user = &mut config.auth_info;
        (config.root_cert, user.client_certificate_data, user.client_key_data) = (None, None, None);
        Ok(Self { config, connector, authorities })
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
        let client: legacy::Client<_, Body> = legacy::Builder::new(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(2)
            .build(self.connector.clone());
        let service = ServiceBuilder::new()
            .layer(self.config.base_uri_layer())
            .option_layer(auth)
            .layer(headers)
            .map_err(tower::BoxError::from)
            .service(client);
        let inner = kube::Client::new(service, self.config.default_namespace.clone());
        Ok(Client { inner, authorities: Arc::clone(&self.authorities) })
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials")
    }
}

fn refused(error: kube::Error) -> RequestError {
    RequestError::Credentials(crate::causes::chain(&error))
}

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
        Credentials::read(path, certificate)?.client()
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

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
        let said = headers("{token: t, as: ada, as-groups: [lab]}", |credentials| credentials).await;
        assert!(said.contains("impersonate-user: ada\r\n") && said.contains("impersonate-group: lab\r\n"), "{said}");
        let said = headers("{token: t}", |credentials| credentials.as_node("edge1")).await;
        assert!(said.contains("impersonate-user: system:node:edge1\r\n"), "{said}");
        assert!(said.contains("impersonate-group: system:nodes\r\n") && said.contains("bearer t"), "{said}");
        assert!(!headers("{token: t}", |credentials| credentials).await.contains("impersonate"));
    }
}
