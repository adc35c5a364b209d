//! The images in the Node's status. The store is read after this agent has stored or removed an image, and for each
//! full report of the status, which picks up changes by others.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::runtime::{NodeRuntime, RuntimeError};
use limpet_core::node_images::{self, NodeImage};

/// Changes within this time, such as the pulls of one pod, are reported together.
const REPORT_DELAY: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct NodeImages {
    runtime: Arc<dyn NodeRuntime>,
    /// `nodeStatusMaxImages`; `None` means all.
    most: Option<usize>,
    contents: watch::Receiver<u64>,
    /// When a change will be read.
    due: Option<Instant>,
    /// The known sizes by digest; they never change.
    sizes: BTreeMap<Arc<str>, u64>,
    shown: Vec<NodeImage>,
}

impl NodeImages {
    /// Reports at most `most` images of the runtime's store.
    pub(super) fn new(runtime: Arc<dyn NodeRuntime>, most: Option<usize>) -> Self {
        let mut contents = runtime.contents();
        contents.mark_unchanged();
        // The existing images have not been read yet.
        let due = Some(Instant::now());
        Self { runtime, most, contents, due, sizes: BTreeMap::new(), shown: Vec::new() }
    }

    /// Resolves when a change is due to be read. Cancel safe.
    pub(super) async fn changed(&mut self) {
        if self.due.is_none() {
            if self.contents.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            self.due = Some(Instant::now() + REPORT_DELAY);
        }
        if let Some(due) = self.due {
            tokio::time::sleep_until(due).await;
        }
    }

    /// The images for the Node's status. Read again if a change is due, or with `force_refresh`.
    pub(super) async fn shown(&mut self, force_refresh: bool) -> Vec<NodeImage> {
        if force_refresh || self.due.is_some_and(|due| due <= Instant::now()) {
            self.due = None;
            self.contents.mark_unchanged();
            match self.read().await {
                Ok(shown) => self.shown = shown,
                // The next change or report reads them again.
                Err(error) => tracing::debug!(%error, "listing the node's images failed"),
            }
        }
        self.shown.clone()
    }

    async fn read(&mut self) -> Result<Vec<NodeImage>, RuntimeError> {
        let stored = self.runtime.images().await?;
        let mut sizes = BTreeMap::new();
        for image in &stored {
            let known = self.sizes.get(&image.digest).copied();
            let size = match known {
                Some(size) => Some(size),
                None => self.runtime.image_size(image).await?,
            };
            sizes.extend(size.map(|size| (Arc::clone(&image.digest), size)));
        }
        self.sizes = sizes;
        // An image with missing parts cannot run.
        let whole = stored.into_iter().filter_map(|image| Some((self.sizes.get(&image.digest).copied()?, image)));
        Ok(node_images::node_images(whole.map(|(size, image)| (image, size)), self.most))
    }
}
