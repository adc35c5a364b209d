//! The document of `limpet top` and `limpet ui`: counters with their timestamps, from which they compute the usage in
//! between.

use axum::extract::State;
use axum::response::Response;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::ServerState;
use super::json_response::json;
use super::stats::failed;
use limpet_core::node_state::NodePressure;
use limpet_host::cgroup::usage::{Depth, GroupUsage};
use limpet_telemetry::usage::{NodeUsage, PodUsage};
use limpet_wire::usage::{ContainerUsageDocument, PodUsageDocument, Reading, UsageDocument};

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
        reading: pod.group.as_ref().map(reading).unwrap_or_default(),
        containers: pod
            .containers
            .iter()
            .map(|container| ContainerUsageDocument {
                name: container.name.clone(),
                id: container.id.clone(),
                reading: reading(&container.group),
            })
            .collect(),
    };
    UsageDocument {
        time: Time(usage.group.taken.at),
        conditions: pressure.is_known().then(|| pressure.iter().collect()),
        pods: usage.pods.iter().map(pod).collect(),
    }
}

fn reading(group: &GroupUsage) -> Reading {
    Reading {
        uptime_nanoseconds: u64::try_from(group.taken.uptime.as_nanos()).unwrap_or(u64::MAX),
        cpu_nanoseconds: group.cpu.as_ref().map(|cpu| cpu.total),
        memory_bytes: group.memory.as_ref().map(|memory| memory.working_set),
    }
}
