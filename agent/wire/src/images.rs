//! The JSON documents of `/limpet/v1/images`. Fields are only ever added.

use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_model::pull_progress::PullProgress;
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDocument {
    /// Its names, normalized.
    pub names: Vec<String>,
    /// The digest to which the names resolve.
    pub digest: String,
    /// The bytes of documents and packed layers; absent if a part is missing on the node.
    pub size: Option<u64>,
    /// Whether it must not be removed.
    pub pinned: bool,
    /// When it was stored.
    pub created: Option<Time>,
    /// When it was last used, as far as that was recorded. For an image in use, the end of an earlier use.
    pub last_used: Option<Time>,
    /// Whether a container uses it.
    pub in_use: bool,
    /// The pods that need it, as `namespace/name`.
    pub pods: Vec<String>,
}

/// The disk with the images.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDiskDocument {
    /// The directory of the snapshots.
    pub directory: PathBuf,
    /// The size of its file system in bytes.
    pub capacity: u64,
    /// The available bytes.
    pub available: u64,
    /// The used percentage, rounded as for garbage collection.
    pub used_percent: u64,
}

/// The image, or the archive, of a request.
#[derive(Debug, Serialize, Deserialize)]
pub struct ImageRequest {
    /// An image reference as in a Pod, or the archive's absolute path.
    pub image: String,
    /// For a pin: whether to set or remove it.
    #[serde(default)]
    pub pinned: bool,
}

/// The images that were pulled, imported or removed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageNames {
    /// The images' names, normalized.
    pub images: Vec<String>,
}

/// Whether an image may be used, and why: `/limpet/v1/images/verify`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageVerdictDocument {
    /// The image's name, normalized.
    pub image: String,
    /// The digest to which the name resolves.
    pub digest: String,
    /// Whether it is on this node.
    pub local: bool,
    /// Whether it may be used.
    pub accepted: bool,
    /// The verdict of `imagePolicy`; absent without one.
    pub policy: Option<PolicyVerdict>,
    /// The verdict of containerd's image verifiers; absent without any.
    pub verifiers: Option<VerifierVerdict>,
}

/// The verdict of an image's rule.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyVerdict {
    /// The rule's number and pattern.
    pub rule: String,
    /// `allow`, `digest`, `cosign` or `reject`.
    pub requirement: String,
    /// Whether the image meets the requirement.
    pub accepted: bool,
    /// Why it does not.
    pub cause: Option<String>,
    /// The verdict of each key of the rule.
    pub keys: Vec<KeyVerdict>,
}

/// The verdict of one key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyVerdict {
    /// The key's file.
    pub key: PathBuf,
    /// Whether the key has signed the image.
    pub accepted: bool,
    /// The signature that matches, or why none does.
    pub detail: String,
}

/// The verdict of containerd's image verifiers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifierVerdict {
    /// Whether none of them refuses the image.
    pub accepted: bool,
    /// The verdict of each verifier.
    pub detail: String,
}

/// One line of `/limpet/v1/images/pull?watch=1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "entry", rename_all = "UPPERCASE")]
pub enum PullEvent {
    Progress(PullProgress),
    /// The end of a successful pull.
    Pulled(ImageNames),
    /// The end of a failed pull: the reason.
    Failed(String),
}
