//! An image that is present on the node.

use std::sync::Arc;

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
