//! The JSON documents of `/limpet/v1/bundle`. Fields are only ever added.

use serde::{Deserialize, Serialize};

/// The query of a request whose body is a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleQuery {
    /// What messages call it, such as the path that a person knows.
    #[serde(default)]
    pub name: String,
    /// Whether it waits until updates may be applied.
    #[serde(default)]
    pub in_window: bool,
}

/// The key of the node, to which Secrets of bundles are sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeKeyDocument {
    /// What names it in a bundle.
    pub id: String,
    /// Its public half, in PEM.
    pub public_key: String,
}

/// What was done with a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleDocument {
    /// Whether it replaced what the node had; otherwise the node had it.
    pub changed: bool,
    /// What it is for.
    pub name: String,
    pub version: String,
    pub serial: u64,
    /// How many pods it defines.
    pub pods: usize,
    /// The images that came with it, as containerd has them.
    pub images: Vec<String>,
}
