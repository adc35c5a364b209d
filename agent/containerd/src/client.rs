//! The gRPC connection to containerd: one multiplexed channel, every request with namespace and deadline.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use containerd_client::services::v1::version_client::VersionClient;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint, Uri};

/// containerd's namespace for everything Kubernetes.
pub const NAMESPACE: &str = "k8s.io";

/// The deadline of a call, after which it fails with the call's name.
pub const CALL_DEADLINE: Duration = Duration::from_secs(120);

/// A lazily connected channel to containerd's socket. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    socket: PathBuf,
    deadline: Duration,
    /// Counts successful subscriptions to containerd's events.
    connections: Arc<watch::Sender<u64>>,
}

impl Client {
    /// Prepares the channel; it connects at the first call, and again after a lost connection.
    pub fn new(socket: &Path) -> Self {
        Self::with_deadline(socket, CALL_DEADLINE)
    }

    /// The same, with another deadline for calls.
    pub fn with_deadline(socket: &Path, deadline: Duration) -> Self {
        let path = socket.to_owned();
        let channel =
            Endpoint::from_static("http://containerd").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            }));
        Self { channel, socket: socket.to_owned(), deadline, connections: Arc::default() }
    }

    /// Changes whenever containerd answers again, to retry what failed while it was away. [`crate::event_stream`]
    /// watches the connection.
    pub(crate) fn connections(&self) -> watch::Receiver<u64> {
        self.connections.subscribe()
    }

    /// Records that containerd answers.
    pub(crate) fn connected(&self) {
        self.connections.send_modify(|count| *count += 1);
    }

    /// The channel, for a service client such as `TasksClient::new(client.channel())`.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// containerd's version, without a leading `v`.
    ///
    /// # Errors
    ///
    /// containerd does not answer.
    pub async fn version(&self) -> Result<String, tonic::Status> {
        let answer = VersionClient::new(self.channel()).version(self.call("Version.Version", ())).await?;
        Ok(answer.into_inner().version.trim_start_matches('v').to_owned())
    }

    /// A request in the `k8s.io` namespace with the usual deadline.
    pub fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("containerd-namespace", tonic::metadata::MetadataValue::from_static(NAMESPACE));
        request.set_timeout(self.deadline);
        request
    }

    /// The same for `call`, whose name is reported if it hangs.
    pub fn call<T>(&self, call: &'static str, message: T) -> tonic::Request<T> {
        limpet_host::call_watch::calling(call);
        self.request(message)
    }

    /// The same, under a lease, for calls that create content or snapshots.
    pub fn leased_request<T>(&self, message: T, lease: &str) -> tonic::Request<T> {
        let mut request = self.request(message);
        // A lease id is hexadecimal digits and dashes, so it is a valid header; without it the call still works.
        if let Ok(value) = lease.parse() {
            request.metadata_mut().insert("containerd-lease", value);
        }
        request
    }
}
