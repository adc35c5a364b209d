//! The JSON documents of `/limpet/v1/bundle`. Fields are only ever added.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The bundle that a request is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BundleRequest {
    /// An absolute path that the agent can read.
    pub path: PathBuf,
    /// Whether it waits until updates may be applied.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub in_window: bool,
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
