//! The JSON documents of limpet's own routes (`/limpet/v1/`): what the server writes and the command line reads.
//!
//! Fields are only ever added; a reader ignores those it does not know.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hyper::header::HeaderName;
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::socket_client::ClientError;
use crate::status::HeldUpdateDocument;
use limpet_core::source::{ManifestChange, Rejection};
use limpet_model::pod::{self, Fault, PodKey, Severity};

/// The result of a PUT: `created`, `configured` or `unchanged`.
pub const OUTCOME: HeaderName = HeaderName::from_static("limpet-outcome");

/// The default namespace of a pod.
pub const DEFAULT_NAMESPACE: &str = "default";

/// A pod with the data that the Pod API has no field for. `P` is the pod, owned or borrowed for serialization.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "P: From<Pod>"))]
pub struct PodEntry<P = Pod> {
    /// `file`, `push`, `http` or `api`.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// The pod's name without the node name.
    pub manifest_name: String,
    /// The hash of the manifest.
    pub fingerprint: String,
    /// A remark for the user: one phrase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// The pod with its live status.
    #[serde(deserialize_with = "pod")]
    pub pod: P,
}

/// Reads a Pod with the manifest decoder, so that the executable holds only one copy of a Pod decoder.
fn pod<'de, D: Deserializer<'de>, P: From<Pod>>(deserializer: D) -> Result<P, D::Error> {
    let value = Value::deserialize(deserializer)?;
    pod::from_value(&value).map(P::from).map_err(D::Error::custom)
}

/// `/api/v1/namespaces/NAMESPACE/pods/NAME`: a pod as Kubernetes' API has it.
#[derive(Debug, Clone, Deserialize)]
#[serde(transparent)]
pub struct PodDocument(#[serde(deserialize_with = "pod")] pub Pod);

/// `/limpet/v1/pods`: every pod, and the sources.
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
    /// The pod is new in this watch.
    Added(Box<PodEntry<P>>),
    /// Its status, version or remark changed.
    Modified(Box<PodEntry<P>>),
    /// The pod is gone; this is its last state.
    Deleted(Box<PodEntry<P>>),
    /// The initial list is complete.
    Synced,
}

/// The names of one pod, for name resolution and shell completion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodNames {
    pub namespace: String,
    /// Its name, with the node name.
    pub name: String,
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
    /// The directory or URL it reads.
    pub place: String,
    /// `starting`, `good`, `blind` (it polls because it gets no change notifications) or `unavailable`.
    pub health: String,
    /// How it detects changes, or why it gets no change notifications or cannot read.
    pub detail: String,
    /// When it last read everything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_good: Option<Time>,
    /// When it retries after a failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_retry: Option<Time>,
    /// How many pods it publishes.
    pub pods: usize,
    /// How many ConfigMaps and Secrets it publishes.
    #[serde(default)]
    pub objects: usize,
    /// ConfigMaps and Secrets that its pods refer to and it does not define.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingObjectDocument>,
    /// The manifests it rejects.
    pub rejected: Vec<RejectionDocument>,
    /// A further remark for the user: one sentence.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Its updates that wait.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_updates: Vec<HeldUpdateDocument>,
}

/// An object that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MissingObjectDocument {
    /// Kind, namespace and name.
    pub object: String,
    /// The pods that refer to it.
    pub pods: Vec<String>,
}

/// A rejected manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RejectionDocument {
    /// The file or URL.
    pub origin: String,
    /// The reasons, errors first.
    pub faults: Vec<FaultDocument>,
    /// Pods that keep running an older version because of it, as `namespace/name`.
    pub kept: Vec<String>,
    /// The other pods of the file or URL, which are accepted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub accepted: Vec<String>,
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
    /// What the user can do about it.
    pub remedy: String,
    /// The complete message in one line, with file, line and column.
    pub text: String,
}

/// One container as the agent knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerDocument {
    /// Its container ID in containerd.
    pub id: String,
    /// The PID of its first process, while it runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// Its log directory.
    pub log_path: PathBuf,
}

/// `/limpet/v1/pods/{namespace}/{name}/describe`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(bound(deserialize = "P: From<Pod>"))]
pub struct DescribeDocument<P = Pod> {
    pub entry: PodEntry<P>,
    /// Its containers as the agent knows them, by name.
    pub containers: BTreeMap<String, ContainerDocument>,
    /// Newer manifests of this pod that were rejected.
    pub rejected: Vec<RejectionDocument>,
    /// Other pods that claim its name or its UID, one sentence each.
    #[serde(default)]
    pub duplicates: Vec<String>,
    /// Its events, least recent first.
    pub events: Vec<Event>,
    /// The last changes of its manifest, oldest first.
    #[serde(default)]
    pub history: Vec<ManifestChange>,
}

/// `/limpet/v1/pods/{namespace}/{name}/history`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HistoryDocument {
    /// The pod, as `namespace/name`.
    pub pod: String,
    /// The last changes of its manifest, oldest first.
    pub changes: Vec<ManifestChange>,
}

impl PodNames {
    /// The pod's key.
    ///
    /// # Errors
    ///
    /// The agent has sent invalid names.
    pub fn key(&self) -> Result<PodKey, ClientError> {
        PodKey::parse(self.namespace.as_str(), self.name.as_str()).map_err(|error| ClientError::Answer {
            path: "/limpet/v1/names".to_owned(),
            message: format!("pod {}/{}: the name {error}", self.namespace, self.name),
        })
    }
}

/// A rejected manifest as shown to users.
pub fn rejection(refused: &Rejection) -> RejectionDocument {
    let mut faults: Vec<&Fault> = refused.faults.iter().collect();
    faults.sort_by_key(|fault| fault.severity);
    RejectionDocument {
        origin: refused.origin.to_string(),
        faults: faults.into_iter().map(fault).collect(),
        kept: refused.kept.iter().map(ToString::to_string).collect(),
        accepted: Vec::new(),
    }
}

fn fault(fault: &Fault) -> FaultDocument {
    let severity = match fault.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    FaultDocument {
        severity: severity.to_owned(),
        line: fault.position.map(|(line, _)| line),
        column: fault.position.map(|(_, column)| column),
        path: fault.path.clone(),
        message: fault.message.clone(),
        remedy: fault.remedy.clone(),
        text: fault.to_string(),
    }
}

/// Which containers of a pod to restart.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct RestartRequest {
    /// The container's name; if absent, all containers that run or wait for their next start.
    #[serde(default)]
    pub container: Option<String>,
}

/// The containers that were restarted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RestartedContainers {
    pub containers: Vec<String>,
}
