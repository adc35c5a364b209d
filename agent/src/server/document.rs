//! The JSON documents of limpet's own routes (`/limpet/v1/`): what the server writes and the command line reads.
//!
//! Fields are only ever added; a reader ignores those it does not know.

use std::collections::BTreeMap;
use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use limpet_core::source::ManifestChange;
use limpet_model::pod;

/// The namespace of a pod that names none.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A pod with what the Pod API has no field for. `P` is how the pod is held: owned, or borrowed to be written.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "P: From<Pod>"))]
pub struct PodEntry<P = Pod> {
    /// `file`, `push`, `http` or `api`.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// The pod's name without the node's.
    pub manifest_name: String,
    /// Hash of the manifest.
    pub fingerprint: String,
    /// What people should know, in a phrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The pod with its live status.
    #[serde(deserialize_with = "pod")]
    pub pod: P,
}

/// Reads a Pod by the code that reads manifests: of what reads a Pod there should be one copy in the executable.
fn pod<'de, D: Deserializer<'de>, P: From<Pod>>(deserializer: D) -> Result<P, D::Error> {
    let value = Value::deserialize(deserializer)?;
    pod::from_value(&value).map(P::from).map_err(D::Error::custom)
}

/// `/limpet/v1/pods`: every pod, and the sources they come from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "P: From<Pod>"))]
pub struct PodsDocument<P = Pod> {
    /// The pods, by namespace and name.
    pub pods: Vec<PodEntry<P>>,
    /// The sources, in order of precedence.
    pub sources: Vec<SourceDocument>,
}

/// One line of `/limpet/v1/pods?watch=1`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "type", content = "entry", rename_all = "UPPERCASE", bound(deserialize = "P: From<Pod>"))]
pub enum PodChange<P = Pod> {
    /// The pod is new to the watcher.
    Added(Box<PodEntry<P>>),
    /// Its status, version or note changed.
    Modified(Box<PodEntry<P>>),
    /// It is gone; this is how it was seen last.
    Deleted(Box<PodEntry<P>>),
    /// All pods there were when the watch began have been told.
    Synced,
}

/// One pod's names, for those who only resolve or complete them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNames {
    /// Its namespace.
    pub namespace: String,
    /// Its name, the node's included.
    pub name: String,
    /// Its name in the manifest.
    pub manifest_name: String,
    /// Its containers, init containers last.
    pub containers: Vec<String>,
}

/// `/limpet/v1/sources`: one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceDocument {
    /// `file`, `push`, `http` or `api`.
    pub source: String,
    /// Where it reads.
    pub place: String,
    /// `starting`, `good`, `blind` (it looks every so often, because nothing tells it of changes) or `unavailable`.
    pub health: String,
    /// How it learns of changes, or why it is not told of them or cannot read.
    pub detail: String,
    /// When it last read its place in full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good: Option<Time>,
    /// When it tries again, after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry: Option<Time>,
    /// How many pods it publishes.
    pub pods: usize,
    /// How many ConfigMaps and Secrets it has for them.
    #[serde(default)]
    pub objects: usize,
    /// What it refuses.
    pub rejected: Vec<RejectionDocument>,
    /// What else people should know, in a sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
}

/// A manifest that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectionDocument {
    /// The file or URL.
    pub origin: String,
    /// Why, errors first.
    pub faults: Vec<FaultDocument>,
    /// Pods that keep running an older version because of it, as `namespace/name`.
    pub kept: Vec<String>,
}

/// One finding about a manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultDocument {
    /// `error` or `warning`.
    pub severity: String,
    /// One-based line, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<u32>,
    /// One-based column, where known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<u32>,
    /// The field's path.
    pub path: String,
    /// What is wrong.
    pub message: String,
    /// What to do about it.
    pub remedy: String,
    /// The whole in one line, with file and place.
    pub text: String,
}

/// What the agent holds of one container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDocument {
    /// Its id in containerd.
    pub id: String,
    /// Its first process, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The directory of its logs.
    pub log_path: PathBuf,
}

/// `/limpet/v1/pods/{namespace}/{name}/describe`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "P: From<Pod>"))]
pub struct DescribeDocument<P = Pod> {
    /// The pod.
    pub entry: PodEntry<P>,
    /// What the agent holds of its containers, by name.
    pub containers: BTreeMap<String, ContainerDocument>,
    /// Newer manifests of this pod that were refused.
    pub rejected: Vec<RejectionDocument>,
    /// Other pods that claim its name or its UID, a sentence each.
    #[serde(default)]
    pub duplicates: Vec<String>,
    /// Its events, the least recent first.
    pub events: Vec<Event>,
    /// The last changes of its manifest, the oldest first.
    #[serde(default)]
    pub history: Vec<ManifestChange>,
}

/// `/limpet/v1/pods/{namespace}/{name}/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryDocument {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// The last changes of its manifest, the oldest first.
    pub changes: Vec<ManifestChange>,
}
