//! The JSON documents of `/limpet/v1/generations` and `/limpet/v1/rollback`. Fields are only ever added.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// The generations of one source.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceGenerationsDocument {
    pub source: String,
    /// `pods` or `all`.
    pub policy: String,
    /// The number of the one in effect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub running: Option<u64>,
    /// Why the newest version of the source is not in effect yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waiting: Option<String>,
    /// Why the one in effect is not good yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unready: Option<String>,
    /// The newest version of the source is this generation, which is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// The oldest first.
    pub generations: Vec<GenerationDocument>,
}

/// One generation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GenerationDocument {
    pub number: u64,
    /// `trial`, `good` or `refused`.
    pub outcome: String,
    /// Why it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    pub made: Time,
    /// When its outcome was known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decided: Option<Time>,
    pub pods: usize,
    /// Workloads, ConfigMaps and Secrets.
    pub objects: usize,
}

/// A request to return to a generation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RollbackRequest {
    /// The source; without it the only one that has generations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// The number of the generation; without it the good one before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
}

/// The generation that is in effect now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RolledBack {
    pub source: String,
    pub generation: u64,
}
