//! The connection to containerd: one multiplexed channel, every request with namespace and deadline.

use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint, Uri};

/// containerd's namespace for everything Kubernetes.
pub const NAMESPACE: &str = "k8s.io";

/// How long a call may take before its pod is told which call hangs.
pub const CALL_DEADLINE: Duration = Duration::from_secs(120);

/// A lazily connected channel to containerd's socket. Clones share the connection.
#[derive(Debug, Clone)]
pub struct Client {
    channel: Channel,
    socket: PathBuf,
}

impl Client {
    /// Prepares the channel; nothing is dialled before the first call, and a lost connection is dialled again.
    pub fn new(socket: &Path) -> Self {
        let path = socket.to_owned();
        let channel =
            Endpoint::from_static("http://containerd").connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
                let path = path.clone();
                async move { tokio::net::UnixStream::connect(path).await.map(TokioIo::new) }
            }));
        Self { channel, socket: socket.to_owned() }
    }

    /// The channel, for a service client such as `TasksClient::new(client.channel())`.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    /// The socket's path.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// A request in the `k8s.io` namespace with the usual deadline.
    pub fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.metadata_mut().insert("containerd-namespace", tonic::metadata::MetadataValue::from_static(NAMESPACE));
        request.set_timeout(CALL_DEADLINE);
        request
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
