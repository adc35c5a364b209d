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
    /// The node's conditions that hold; `None` before the first measurement.
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
    /// Its cgroup, with all its containers.
    pub reading: Reading,
    /// Its running containers.
    pub containers: Vec<ContainerUsageDocument>,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ContainerUsageDocument {
    /// Its name in the pod.
    pub name: String,
    /// Its id in containerd.
    pub id: String,
    /// Its cgroup.
    pub reading: Reading,
}

/// The counters of a cgroup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reading {
    /// Since the node booted: when they were read.
    pub uptime_nanoseconds: u64,
    /// CPU time on all cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_nanoseconds: Option<u64>,
    /// The working set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
}
