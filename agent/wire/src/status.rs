//! The JSON documents of `/limpet/v1/status`, `/limpet/v1/cluster` and `/limpet/v1/shutdown`. Fields are only ever added.

use std::path::PathBuf;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_model::node::Pressure;
use serde::{Deserialize, Serialize};

/// The state of the agent and the node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StatusDocument {
    /// The agent's version.
    pub version: String,
    /// The node's name.
    pub node: String,
    pub started: Time,
    /// When the machine booted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub booted: Option<Time>,
    /// Whether containerd's event stream is open.
    pub containerd: bool,
    /// The connection to the apiserver; `None` outside a cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apiserver: Option<ApiserverDocument>,
    /// The node's certificates.
    pub certificates: Vec<CertificateDocument>,
    /// The tokens of service accounts that pods have.
    pub tokens: TokensDocument,
    /// The node's current conditions; `None` before the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Pressure>>,
    /// Whether the node is shutting down: pods end, and none starts.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shutting_down: bool,
    /// The newest upgrade, and the directory for new versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub upgrade: Option<UpgradeDocument>,
    /// Updates that wait for a window, a cheaper link or an application.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held_updates: Vec<HeldUpdateDocument>,
    /// The node's reports to a server; `None`: it sends none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub report: Option<ReportDocument>,
}

/// How the node's reports fare.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReportDocument {
    /// Where they are sent, without secrets.
    pub url: String,
    /// When the last one arrived, since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sent: Option<Time>,
    /// Why the newest one did not arrive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// An update that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeldUpdateDocument {
    pub what: String,
    /// The source that it is of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// `download` or `apply`.
    pub phase: String,
    pub reason: String,
    /// When a window opens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,
}

/// The directory for new versions of limpet, and the result of the last upgrade.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UpgradeDocument {
    /// The directory of the executables.
    pub directory: PathBuf,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last: Option<LastUpgrade>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LastUpgrade {
    /// The version before.
    pub from: String,
    pub to: String,
    /// `trial`, `installed` or `undone`.
    pub outcome: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<Time>,
    /// Why it was undone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The connection to the apiserver.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ApiserverDocument {
    /// Its URL.
    pub server: String,
    /// `connecting`, `online` or `offline`.
    pub state: String,
    /// Why it is offline: `unreachable`, `certificate expired`, …
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// The newest failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When the state began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,
    /// When it last answered a request since the agent started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_sync: Option<Time>,
    pub unsent: UnsentDocument,
}

/// What is not sent to the apiserver yet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnsentDocument {
    /// The apiserver's pods whose status it does not know.
    pub statuses: usize,
    /// Mirror pods to create, replace, remove or update.
    pub mirrors: usize,
    pub events: usize,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateDocument {
    /// `client`: the node authenticates to the apiserver with it; `serving`: its own API presents it.
    pub purpose: String,
    /// The beginning of its validity.
    pub not_before: Time,
    /// The end of its validity.
    pub not_after: Time,
}

/// The tokens of service accounts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokensDocument {
    pub count: usize,
    /// When the first of them expires.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_expiry: Option<Time>,
}

/// The response of `/limpet/v1/shutdown/cancel`.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShutdownCancelled {
    /// Whether pods run again; false if the node was not shutting down.
    pub cancelled: bool,
}

/// The pods that end because the cluster does not have them.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcceptedDocument {
    /// Each as `namespace/name`.
    pub ended: Vec<String>,
}
