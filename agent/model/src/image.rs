//! Images that are present on the node.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use oci_spec::image::ImageConfiguration;

/// An image that is present and unpacked: everything a container start needs. Cached by digest.
#[derive(Debug)]
pub struct LocalImage {
    /// The name in containerd, normalised: `docker.io/library/busybox:latest`.
    pub name: Arc<str>,
    /// Digest that the name resolves to (index or manifest): `sha256:…`.
    pub digest: Arc<str>,
    /// The snapshot key of the unpacked layers (`chain id`), parent of every container's snapshot.
    pub chain_id: Arc<str>,
    /// The image's configuration: entrypoint, command, environment, user, working directory.
    pub config: ImageConfiguration,
    /// Bytes of manifest, config and compressed layers.
    pub size: u64,
}

/// An image in the store, unpacked or not: all names of one digest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoredImage {
    /// What its names resolve to (index or manifest).
    pub digest: Arc<str>,
    /// Its names, normalised.
    pub names: Vec<String>,
    /// Whether it is protected from removal.
    pub pinned: bool,
    /// When the store got its oldest name.
    pub created: Option<Timestamp>,
    /// When it was last used, as far as that was recorded.
    pub last_used: Option<Timestamp>,
    /// When this agent last pulled it, or took it for a start.
    pub taken: Option<Instant>,
}

/// The prefix of digests.
pub const ALGORITHM: &str = "sha256:";

impl StoredImage {
    /// Its names with a tag.
    pub fn repo_tags(&self) -> impl Iterator<Item = &String> {
        self.names.iter().filter(|name| !name.contains('@') && !name.starts_with(ALGORITHM))
    }

    /// Its repositories with its digest.
    pub fn repo_digests(&self) -> BTreeSet<String> {
        let repository = |name: &String| {
            let name = name.split('@').next().filter(|name| !name.starts_with(ALGORITHM))?;
            let without_tag =
                name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')).map_or(name, |(name, _)| name);
            Some(format!("{without_tag}@{}", self.digest))
        };
        self.names.iter().filter_map(repository).collect()
    }
}
