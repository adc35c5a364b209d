//! containerd as the Node object shows it: its version, and the images in its store.

use futures_util::future::{BoxFuture, FutureExt as _};
use limpet_cluster::{NodeRuntime, RuntimeError};
use limpet_containerd::client::Client;
use limpet_containerd::image::Images;
use limpet_model::image::StoredImage;
use tokio::sync::watch;

#[derive(Debug)]
pub(super) struct Containerd {
    /// The client for the version.
    pub client: Client,
    pub images: Images,
}

impl NodeRuntime for Containerd {
    fn version(&self) -> BoxFuture<'_, Option<String>> {
        async { self.client.version().await.ok().map(|version| format!("containerd://{version}")) }.boxed()
    }

    fn images(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, RuntimeError>> {
        async move { self.images.stored().await.map_err(|error| RuntimeError(error.to_string())) }.boxed()
    }

    fn image_size<'a>(&'a self, image: &'a StoredImage) -> BoxFuture<'a, Result<Option<u64>, RuntimeError>> {
        async move { self.images.size(image).await.map_err(|error| RuntimeError(error.to_string())) }.boxed()
    }

    fn contents(&self) -> watch::Receiver<u64> {
        self.images.contents()
    }
}
