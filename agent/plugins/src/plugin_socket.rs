//! The socket of a plugin: the connection to it, and error messages.

use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Uri};

/// A channel to a socket. It connects here, and again by itself if the plugin was restarted at the same path.
///
/// # Errors
///
/// The message if no process listens.
pub(crate) async fn connect(socket: PathBuf) -> Result<Channel, String> {
    let connector = tower::service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { tokio::net::UnixStream::connect(socket).await.map(TokioIo::new) }
    });
    Endpoint::from_static("http://localhost")
        .connect_with_connector(connector)
        .await
        .map_err(|error| limpet_model::error_chain::error_chain(&error))
}

/// The message of a plugin's error.
pub(crate) fn status_message(status: &Status) -> String {
    format!("rpc error: code = {:?} desc = {}", status.code(), status.message())
}
