//! CRI, `runtime.v1`, for node tools such as crictl: what runs, read-only, and commands in containers.
//!
//! A pod is a sandbox (`sandbox`), each run of its containers a container (`container`), both from the observed
//! snapshot; images are containerd's (`images`), usage is read from the kernel on request (`stats`, `metrics`). What
//! would change pods or images is refused with the way that does it in limpet (`refusal`). Live streams are kubelet's
//! routes behind a token (`streaming`).

mod container;
mod events;
mod exec;
mod identity;
mod images;
mod metrics;
mod refusal;
mod runtime;
mod sandbox;
mod selection;
mod stats;
mod streaming;

use axum::Router;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use tonic::{Response, Status};

use super::ServerState;
use super::exec::ExecState;
use super::grpc::MAX_MESSAGE;
use limpet_containerd::image::Images;
use limpet_host::network::NetworkStatus;
use limpet_node_api::runtime::image_service_server::ImageServiceServer;
use limpet_node_api::runtime::runtime_service_server::RuntimeServiceServer;
use streaming::{MakeRoutes, Streaming};

/// What the services need. Clones share everything.
#[derive(Clone)]
pub struct CriState {
    pub(super) server: ServerState,
    images: Images,
    network: watch::Receiver<NetworkStatus>,
    exec: ExecState,
    streaming: Streaming,
}

impl CriState {
    /// Serves the data of `server` and `images`. `network` tells whether pods can have a pod network; `exec` runs
    /// commands in containers; live streams are passed on to the routes that `routes` makes; `tasks` owns the streaming server.
    pub fn new(
        server: ServerState,
        images: Images,
        network: watch::Receiver<NetworkStatus>,
        exec: ExecState,
        (routes, tasks): (Box<MakeRoutes>, TaskTracker),
    ) -> Self {
        let streaming = Streaming::new(routes, tasks, exec.stop.clone());
        Self { server, images, network, exec, streaming }
    }
}

type Answer<T> = Result<Response<T>, Status>;

pub(super) fn services(state: CriState) -> Router {
    let images = ImageServiceServer::new(images::Images(state.clone())).max_decoding_message_size(MAX_MESSAGE);
    let runtime = RuntimeServiceServer::new(runtime::Runtime(state)).max_decoding_message_size(MAX_MESSAGE);
    Router::new()
        .route_service("/runtime.v1.RuntimeService/{call}", runtime)
        .route_service("/runtime.v1.ImageService/{call}", images)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
