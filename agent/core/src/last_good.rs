//! The last manifests a source accepted from one file or URL, stored so that they survive a restart.

use std::sync::Arc;

use jiff::Timestamp;

/// The manifests of one file or URL in order, as canonical JSON.
pub type Manifests = Vec<Arc<[u8]>>;

/// The last good version of one file or URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastGood {
    pub manifests: Manifests,
    /// Extra data the source needs at its next start, such as a URL's ETag; may be empty.
    pub mark: String,
    /// When it was accepted, by the node's clock.
    pub accepted: Timestamp,
}

impl LastGood {
    /// Manifests accepted at `accepted`, without a mark.
    pub fn new(manifests: Manifests, accepted: Timestamp) -> Self {
        Self { manifests, mark: String::new(), accepted }
    }

    /// Whether both have the same manifests and mark, whenever they were accepted.
    pub fn same(&self, other: &Self) -> bool {
        self.manifests == other.manifests && self.mark == other.mark
    }
}
