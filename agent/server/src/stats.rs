//! kubelet's statistics: `/stats/summary` and the pages for Prometheus below `/metrics/`.
//!
//! Each request reads the kernel's counters on a blocking thread ([`limpet_telemetry::usage`]) and renders them. The
//! Summary also has the disk usage of directories, from the last measurement.

pub(super) mod cadvisor;
pub(super) mod exposition;
#[cfg(test)]
mod families_tests;
mod resource;
mod summary;
#[cfg(test)]
pub(super) mod tests;

use std::borrow::Cow;
use std::io;

use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use self::exposition::{Kind, Page, Sample};
use super::json_response::json;
use super::{ServerState, health};
use limpet_host::cgroup::usage::Depth;
use limpet_telemetry::metrics::CONTENT_TYPE;

/// The query of `/stats/summary`.
#[derive(Debug, Deserialize)]
pub(super) struct SummaryQuery {
    /// `true`: omits networks, disks and process counts.
    only_cpu_and_memory: Option<String>,
}

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

/// The Summary for a client that sends the query as a form. The error for an invalid media type is kubelet's.
pub(super) async fn summary_of_form(
    state: State<ServerState>,
    Query(mut query): Query<SummaryQuery>,
    headers: HeaderMap,
    body: String,
) -> Response {
    let of_form =
        |(key, value): (Cow<'_, str>, Cow<'_, str>)| (key == "only_cpu_and_memory").then(|| value.into_owned());
    let media_type = headers.get(header::CONTENT_TYPE).map(|value| value.to_str().unwrap_or_default());
    match media_type.map(|whole| whole.split(';').next().unwrap_or_default().trim()) {
        Some("application/x-www-form-urlencoded") => {
            let from_form = form_urlencoded::parse(body.as_bytes()).find_map(of_form);
            query.only_cpu_and_memory = from_form.or(query.only_cpu_and_memory);
        }
        Some(other) if other.split('/').count() != 2 => return unparsed("mime: unexpected content after media type"),
        // Bodies of other types are ignored.
        _ => {}
    }
    summary(state, Query(query)).await
}

fn unparsed(why: &str) -> Response {
    (StatusCode::INTERNAL_SERVER_ERROR, format!("parse form failed: {why}")).into_response()
}

/// The health checks as Kubernetes' components show them for service level indicators.
pub(super) async fn slis(State(state): State<ServerState>) -> Response {
    let checks = health::checks(&state).await;
    let samples = checks.iter().map(|(name, verdict)| Sample {
        labels: vec![("name", name.as_str()), ("type", "healthz")],
        value: if verdict.is_ok() { 1.0 } else { 0.0 },
        at: None,
    });
    let mut shown = Page::default();
    shown.add(
        "kubernetes_healthcheck",
        Kind::Gauge,
        "[STABLE] This metric records the result of a single healthcheck.",
        samples,
    );
    page(shown.into_text())
}

/// CPU time and memory of node, pods and containers, for metrics-server.
pub(super) async fn resource(State(state): State<ServerState>) -> Response {
    let usage = state.meter.usage(state.observed.load(), Depth::Basic).await;
    page(resource::page(usage.inspect_err(report).ok().as_ref()))
}

/// The series of cAdvisor that cgroups provide.
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

/// The response if the kernel's files cannot be read.
pub(super) fn failed(error: &io::Error) -> Response {
    report(error);
    (StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: usage cannot be read: {error}")).into_response()
}
