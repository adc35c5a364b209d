//! What is configured of bundles.

use std::path::PathBuf;
use std::time::Duration;

/// `bundle` of the LimpetConfiguration, without the URL, which is a setting of its source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleSettings {
    /// `keys`: the public keys, any of which may have signed; at least one.
    pub keys: Vec<PathBuf>,
    /// `directory`: where bundles appear, such as the mount point of a stick; it need not exist.
    pub directory: Option<PathBuf>,
    /// `image`: an artifact of a registry, by tag or digest.
    pub image: Option<String>,
    /// `interval`: how often the registry is asked; the URL has its own.
    pub interval: Duration,
    /// `maxSize`: the most bytes of a bundle.
    pub max_size: u64,
}

impl BundleSettings {
    /// Five minutes: a bundle is a release.
    pub const DEFAULT_INTERVAL: Duration = Duration::from_secs(300);
    /// 4 GiB: an offline bundle of a gateway has some hundred MiB.
    pub const DEFAULT_MAX_SIZE: u64 = 4 << 30;
}
