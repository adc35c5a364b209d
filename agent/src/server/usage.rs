//! What `limpet top` and `limpet ui` read: counters with the moment of each, from which it computes what was used in between.

use axum::extract::State;
use axum::response::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

use super::ServerState;
use super::pods::json;
use super::stats::failed;
use limpet_core::node_state::NodePressure;
use limpet_host::cgroup::usage::{Depth, GroupUsage};
use limpet_model::node::Pressure;
use limpet_telemetry::usage::{NodeUsage, PodUsage};

/// The counters of every running pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct UsageDocument {
    /// When they were read.
    pub time: Time,
    /// The node's conditions that hold; `None` before the first measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Vec<Pressure>>,
    /// The pods.
    pub pods: Vec<PodUsageDocument>,
}

/// One pod.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodUsageDocument {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its cgroup, with all its containers.
    pub reading: Reading,
    /// Its running containers.
    pub containers: Vec<ContainerUsageDocument>,
}

/// One container.
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

impl Reading {
    fn of(group: &GroupUsage) -> Self {
        Self {
            uptime_nanoseconds: u64::try_from(group.taken.uptime.as_nanos()).unwrap_or(u64::MAX),
            cpu_nanoseconds: group.cpu.as_ref().map(|cpu| cpu.total),
            memory_bytes: group.memory.as_ref().map(|memory| memory.working_set),
        }
    }
}

/// The counters now.
pub(super) async fn usage(State(state): State<ServerState>) -> Response {
    match state.meter.usage(state.observed.load(), Depth::Basic).await {
        Ok(usage) => json(&document(&usage, *state.pressure.borrow())),
        Err(error) => failed(&error),
    }
}

fn document(usage: &NodeUsage, pressure: NodePressure) -> UsageDocument {
    let pod = |pod: &PodUsage| PodUsageDocument {
        namespace: pod.record.key.namespace().to_owned(),
        name: pod.record.key.name().to_owned(),
        uid: pod.record.uid.to_string(),
        reading: pod.group.as_ref().map(Reading::of).unwrap_or_default(),
        containers: pod
            .containers
            .iter()
            .map(|one| ContainerUsageDocument {
                name: one.name.clone(),
                id: one.id.clone(),
                reading: Reading::of(&one.group),
            })
            .collect(),
    };
    UsageDocument {
        time: Time(usage.group.taken.at),
        conditions: pressure.is_known().then(|| pressure.iter().collect()),
        pods: usage.pods.iter().map(pod).collect(),
    }
}
