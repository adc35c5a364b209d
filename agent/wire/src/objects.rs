//! The JSON document of `/limpet/v1/objects`: a workload, claim or Service of any source, with its pods. Fields are only ever
//! added.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Event, Pod};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pods::{PodEntry, RejectionDocument};

/// An object. `P` is a pod, owned or borrowed for serialization.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "P: From<Pod>"))]
pub struct ObjectDocument<P = Pod> {
    /// The source that has it.
    pub source: String,
    /// The file's name or the URL.
    pub origin: String,
    /// Sources with less precedence that have an object of this name, too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also_in: Vec<String>,
    /// The manifest as authored. A Job and a CronJob have the status that their controllers in Kubernetes write.
    pub object: Value,
    /// The directory of a claim's files.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub directory: Option<PathBuf>,
    /// Whether a claim is deleted, and kept for the pods that have it.
    #[serde(default)]
    pub ending: bool,
    /// The pods of a workload, or those that refer to a claim.
    pub pods: Vec<PodEntry<P>>,
    /// Newer manifests that were rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rejected: Vec<RejectionDocument>,
    /// Its events, least recent first.
    pub events: Vec<Event>,
}
