//! What a CronJob's controller remembers besides its pods.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::job::JobMemory;

/// What is remembered about one CronJob. It is stored in this JSON form, so fields are only ever added.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronMemory {
    /// When it was first seen by a clock that can be right. What was due before does not count as missed.
    pub created: Option<Timestamp>,
    /// When the Job that began last was due.
    pub last_schedule: Option<Timestamp>,
    /// Its Jobs, in the order in which they began.
    pub jobs: Vec<MadeJob>,
}

/// A Job that a CronJob has made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct MadeJob {
    pub name: String,
    /// When it was due.
    pub scheduled: Timestamp,
    /// Its spec as authored when it began, without the template of its pods.
    pub spec: Value,
    /// The hash of that template.
    pub hash: String,
    /// What its controller remembers.
    pub state: JobMemory,
    /// Whether it has finished, and that was reported.
    #[serde(default)]
    pub is_reported: bool,
}
