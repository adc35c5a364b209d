//! What the Node object shows of the node's container runtime: its version and the images in its store.

use std::fmt;
use std::sync::Arc;

use futures_util::future::{BoxFuture, FutureExt as _};
use tokio::sync::watch;

use limpet_model::image::StoredImage;

/// Why the runtime did not answer.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RuntimeError(pub String);

/// Reads what a Node object shows of the runtime.
pub trait NodeRuntime: fmt::Debug + Send + Sync {
    /// Name and version, as in `containerRuntimeVersion`; `None` if the runtime does not answer.
    fn version(&self) -> BoxFuture<'_, Option<String>>;

    fn images(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, RuntimeError>>;

    /// The size of an image's packed layers and documents in bytes; `None` if a part is missing.
    fn image_size<'a>(&'a self, image: &'a StoredImage) -> BoxFuture<'a, Result<Option<u64>, RuntimeError>>;

    /// Changes when an image was stored or removed.
    fn contents(&self) -> watch::Receiver<u64>;
}

/// A runtime whose containers are only counted: it has no images.
#[derive(Debug)]
pub struct HollowRuntime(watch::Sender<u64>);

impl HollowRuntime {
    /// A runtime for any number of nodes.
    pub fn new() -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(0)))
    }
}

impl NodeRuntime for HollowRuntime {
    fn version(&self) -> BoxFuture<'_, Option<String>> {
        async { Some(format!("hollow://{}", env!("CARGO_PKG_VERSION"))) }.boxed()
    }

    fn images(&self) -> BoxFuture<'_, Result<Vec<StoredImage>, RuntimeError>> {
        async { Ok(Vec::new()) }.boxed()
    }

    fn image_size<'a>(&'a self, _: &'a StoredImage) -> BoxFuture<'a, Result<Option<u64>, RuntimeError>> {
        async { Ok(None) }.boxed()
    }

    fn contents(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
