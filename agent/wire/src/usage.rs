//! The JSON documents of `/limpet/v1/usage`. Fields are only ever added.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use limpet_model::node::Pressure;
use serde::{Deserialize, Serialize};

/// The counters of every running pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageDocument {
    /// When they were read.
    pub time: Time,
    /// The node's current conditions; `None` before the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Pressure>>,
    pub pods: Vec<PodUsageDocument>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsageDocument {
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// The pod's cgroup, with all its containers.
    pub reading: Reading,
    pub containers: Vec<ContainerUsageDocument>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsageDocument {
    pub name: String,
    pub id: String,
    pub reading: Reading,
}

/// The counters of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// When they were read, in nanoseconds since the node booted.
    pub uptime_nanoseconds: u64,
    /// CPU time on all cores, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_nanoseconds: Option<u64>,
    /// The working set in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}
