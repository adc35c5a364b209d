//! The garbage collection of images that a user requests by `limpet images`.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use limpet_containerd::image::{ImageError, Images};
use limpet_core::image_gc::DiskSpace;
use limpet_core::known_pods::KnownPods;

use crate::image_gc::{prune, space};
use limpet_server::images::ImageCollection;

/// The node's images, and which pods need them.
#[derive(Debug)]
pub(super) struct RequestedCollection {
    pub(super) images: Images,
    pub(super) pods: Arc<KnownPods>,
}

impl ImageCollection for RequestedCollection {
    fn prune(&self) -> BoxFuture<'_, Result<Option<Vec<String>>, ImageError>> {
        async {
            let removed = prune(&self.images, &self.pods).await?;
            Ok(removed.map(|images| images.into_iter().flat_map(|image| image.names).collect()))
        }
        .boxed()
    }

    fn space(&self, directory: PathBuf) -> BoxFuture<'_, Result<DiskSpace, String>> {
        async move { space(&directory).await.map_err(|error| error.to_string()) }.boxed()
    }
}
