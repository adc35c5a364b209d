//! What a source accepted last of one file or URL, as it survives a restart.

use std::sync::Arc;

use jiff::Timestamp;

/// Manifests of one file or URL, canonical JSON, in order.
pub type Manifests = Vec<Arc<[u8]>>;

/// What was last good of one file or URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LastGood {
    /// Its manifests.
    pub manifests: Manifests,
    /// What else the source has to know of it at its next start, such as a URL's ETag; may be empty.
    pub mark: String,
    /// When it was accepted, by the node's clock.
    pub accepted: Timestamp,
}

impl LastGood {
    /// Manifests accepted at that moment.
    pub fn new(manifests: Manifests, accepted: Timestamp) -> Self {
        Self { manifests, mark: String::new(), accepted }
    }

    /// Whether it says the same, whenever it was accepted.
    pub fn same(&self, other: &Self) -> bool {
        self.manifests == other.manifests && self.mark == other.mark
    }
}
