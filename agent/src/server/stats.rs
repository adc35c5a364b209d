//! kubelet's figures: `/stats/summary` and the pages for Prometheus below `/metrics/`.
//!
//! Each request reads the kernel's counters, off the agent's thread ([`crate::usage`]), and renders what it has read. The
//! Summary has what directories take, too, as it was measured a while ago at the most.

pub(super) mod cadvisor;
pub(super) mod exposition;
#[cfg(test)]
mod families_tests;
mod resource;
mod summary;
#[cfg(test)]
pub(super) mod tests;

use std::io;

use axum::extract::{Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::ServerState;
use super::pods::json;
use crate::status::metrics::CONTENT_TYPE;
use limpet_host::cgroup::usage::Depth;

/// The query of `/stats/summary`.
#[derive(Debug, Deserialize)]
pub(super) struct SummaryQuery {
    /// `true`: without networks, disks and process ids.
    only_cpu_and_memory: Option<String>,
}

/// kubelet's Summary.
pub(super) async fn summary(State(state): State<ServerState>, Query(query): Query<SummaryQuery>) -> Response {
    let basic = query.only_cpu_and_memory.as_deref() == Some("true");
    let depth = if basic { Depth::Basic } else { Depth::Whole };
    let pods = state.observed.load();
    let disks = if basic { None } else { Some(state.meter.disks(&pods).await) };
    match state.meter.usage_and_rates(pods, depth).await {
        Ok((usage, nano_cores)) => json(&summary::summary(&state.node_name, &usage, &nano_cores, disks.as_ref())),
        Err(error) => failed(&error),
    }
}

/// CPU time and memory of node, pods and containers, for metrics-server.
pub(super) async fn resource(State(state): State<ServerState>) -> Response {
    let usage = state.meter.usage(state.observed.load(), Depth::Basic).await;
    page(resource::page(usage.inspect_err(report).ok().as_ref()))
}

/// The series of cAdvisor that cgroups give.
pub(super) async fn cadvisor(State(state): State<ServerState>) -> Response {
    let usage = state.meter.usage(state.observed.load(), Depth::Whole).await;
    page(cadvisor::page(usage.inspect_err(report).ok().as_ref()))
}

/// The results of probes.
pub(super) async fn probes(State(state): State<ServerState>) -> Response {
    page(state.metrics.render_probes())
}

fn page(text: String) -> Response {
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response()
}

fn report(error: &io::Error) {
    tracing::warn!(%error, "usage cannot be read");
}

/// The answer when the kernel's files do not answer.
pub(super) fn failed(error: &io::Error) -> Response {
    report(error);
    (StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: usage cannot be read: {error}")).into_response()
}
