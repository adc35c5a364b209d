//! The garbage collection of images: the task that runs when there is a reason to, and what a user requests by `limpet
//! images`.

use std::path::PathBuf;
use std::sync::Arc;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use limpet_containerd::image::{ImageError, Images};
use limpet_core::image_gc::DiskSpace;
use limpet_core::known_pods::KnownPods;

use super::SharedParts;
use crate::image_gc::{ImageCollector, prune, space};
use limpet_server::images::{ImageCollection, ImagesState};

/// Starts the task that removes images when there is a reason to.
pub(super) fn collect_images(shared: &SharedParts, images: &Images, pods: &Arc<KnownPods>) -> ImagesState {
    let collector = ImageCollector {
        images: images.clone(),
        policy: shared.config.image_gc,
        pods: Arc::clone(pods),
        events: shared.events.clone(),
        metrics: shared.metrics.clone(),
    };
    shared.tasks.spawn(collector.run(shared.stop.clone()));
    let collection = Arc::new(RequestedCollection { images: images.clone(), pods: Arc::clone(pods) });
    ImagesState { images: images.clone(), pods: Arc::clone(pods), collection }
}

/// The node's images, and which pods need them.
#[derive(Debug)]
struct RequestedCollection {
    images: Images,
    pods: Arc<KnownPods>,
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
