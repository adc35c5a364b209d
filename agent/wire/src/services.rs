//! The JSON document of `/limpet/v1/services`. Fields are only ever added.

use serde::{Deserialize, Serialize};

/// The Services of the node's own sources.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicesDocument {
    /// Why none of them is served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unserved: Option<String>,
    /// By namespace and name.
    pub services: Vec<ServiceDocument>,
}

/// One Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceDocument {
    pub namespace: String,
    pub name: String,
    pub source: String,
    /// The file, or another origin within the source.
    pub origin: String,
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    pub r#type: String,
    /// `None` for a headless Service; empty for an `ExternalName`.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_name: Option<String>,
    pub ports: Vec<ServicePortDocument>,
    /// The pods by whose addresses names are answered, as `<namespace>/<name>`.
    pub pods: Vec<String>,
    /// Why it is not served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServicePortDocument {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `TCP` or `UDP`.
    pub protocol: String,
    pub port: u16,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_port: Option<u16>,
    /// Where it leads to, as `<address>:<port>`.
    pub endpoints: Vec<String>,
}
