//! A gRPC server of a plugin on a socket of its own.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use tokio::net::UnixListener;
use tokio::runtime::Handle;

/// Serves on a socket that appears once it listens.
pub(crate) fn serve<S>(runtime: &Handle, socket: &Path, service: S) -> Result<()>
where
    S: tonic::codegen::Service<
            hyper::Request<hyper::body::Incoming>,
            Response = hyper::Response<tonic::body::Body>,
            Error = std::convert::Infallible,
        > + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let _ = fs::remove_file(socket);
    let listener = {
        let _entered = runtime.enter();
        UnixListener::bind(socket).with_context(|| format!("{}", socket.display()))?
    };
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let service = TowerToHyperService::new(service.clone());
            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http2.serve_connection(TokioIo::new(stream), service));
        }
    });
    Ok(())
}
