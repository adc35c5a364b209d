//! The JSON document of `/limpet/v1/revisions`: the templates that a workload has had. Fields are only ever added.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A template of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RevisionDocument {
    /// Grows with each template that takes effect.
    pub number: u64,
    /// Why it took effect: the workload's annotation `kubernetes.io/change-cause` at that time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// `metadata` and `spec`, as authored.
    pub template: Value,
}
