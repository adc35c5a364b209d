//! The JSON documents of `/limpet/v1/images`. Fields are only ever added.

use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_model::pull_progress::PullProgress;
use serde::{Deserialize, Serialize};

/// One image as it is shown.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDocument {
    /// Its names, normalized.
    pub names: Vec<String>,
    /// What they resolve to.
    pub digest: String,
    /// Bytes of documents and packed layers; missing when a part of it is.
    pub size: Option<u64>,
    /// Whether it must not be removed.
    pub pinned: bool,
    /// When it came.
    pub created: Option<Time>,
    /// When it was last used, as far as that was written down. Of an image in use, the end of an earlier use.
    pub last_used: Option<Time>,
    /// A container uses it.
    pub in_use: bool,
    /// The pods that need it, as `namespace/name`.
    pub pods: Vec<String>,
}

/// The disk that images lie on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageDiskDocument {
    /// The directory of the snapshots.
    pub directory: PathBuf,
    /// All bytes of its file system.
    pub capacity: u64,
    /// Bytes that can still be written.
    pub available: u64,
    /// As garbage collection rounds it.
    pub used_percent: u64,
}

/// The image, or the archive's path, that a request is about.
#[derive(Debug, Serialize, Deserialize)]
pub struct ImageRequest {
    /// A reference as in a Pod, or an absolute path.
    pub image: String,
    /// For a pin: whether it is set or removed.
    #[serde(default)]
    pub pinned: bool,
}

/// What a pull or an import brought, or what was removed.
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
    /// What it refers to.
    pub digest: String,
    /// It is on this node.
    pub local: bool,
    /// It may be used.
    pub accepted: bool,
    /// By `imagePolicy`; missing without one.
    pub policy: Option<PolicyVerdict>,
    /// By containerd's image verifiers; missing without one.
    pub verifiers: Option<VerifierVerdict>,
}

/// What the rule of an image says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PolicyVerdict {
    /// The rule's number and pattern.
    pub rule: String,
    /// `allow`, `digest`, `cosign` or `reject`.
    pub requirement: String,
    /// The image meets it.
    pub accepted: bool,
    /// Why not.
    pub cause: Option<String>,
    /// What each key of the rule says.
    pub keys: Vec<KeyVerdict>,
}

/// What a key says of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct KeyVerdict {
    /// The key's file.
    pub key: PathBuf,
    /// It has signed the image.
    pub accepted: bool,
    /// By which signature, or why not.
    pub detail: String,
}

/// What containerd's image verifiers say of an image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VerifierVerdict {
    /// None of them refuses it.
    pub accepted: bool,
    /// Which said what.
    pub detail: String,
}

/// One line of `/limpet/v1/images/pull?watch=1`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", content = "entry", rename_all = "UPPERCASE")]
pub enum PullEvent {
    /// How far the pull is.
    Progress(PullProgress),
    /// Its end: what it brought.
    Pulled(ImageNames),
    /// Its end: why it failed.
    Failed(String),
}
