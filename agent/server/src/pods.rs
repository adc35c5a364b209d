//! Routes for pods and sources.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::{Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::json_response::json;
use super::view::{self, PodListView};
use super::watch::{self, PodWatch};
use super::{ServerState, SourceView, status};
use limpet_core::merge::DesiredPods;
use limpet_core::source::{Health, ManifestChange};
use limpet_model::pod::PodKey;
use limpet_telemetry::metrics::{CONTENT_TYPE, ClaimFigures};
use limpet_telemetry::usage::claims::ClaimName;
use limpet_telemetry::usage::disks::VolumeDisk;
use limpet_wire::pods::{DescribeDocument, HistoryDocument, PodsDocument, SourceDocument};
use limpet_wire::status::HeldUpdateDocument;

/// The query of routes that can be watched.
#[derive(Debug, Deserialize)]
pub(super) struct WatchQuery {
    /// `1` or `true`: stream one JSON document per line at every change.
    watch: Option<String>,
}

impl WatchQuery {
    pub(super) fn wanted(&self) -> bool {
        matches!(self.watch.as_deref(), Some("1" | "true"))
    }
}

/// kubelet's `/pods`: a PodList of the pods with their live status.
pub(super) async fn pod_list(State(state): State<ServerState>) -> Response {
    let rows = view::rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    json(&rows.values().map(|row| row.pod()).collect::<PodListView<'_>>())
}

/// kubelet's `/runningpods/`: the running containers, by pod.
pub(super) async fn running_pods(State(state): State<ServerState>) -> Response {
    let rows = view::rows(&state.observed.load(), &[], &DesiredPods::default());
    json(&rows.values().filter_map(|row| row.running()).collect::<PodListView<'_>>())
}

/// Every pod with source, file and remark; with `watch=1` its changes too.
pub(super) async fn entries(State(state): State<ServerState>, Query(query): Query<WatchQuery>) -> Response {
    if query.wanted() {
        return watch::lines(PodWatch::new(state));
    }
    let sources = state.sources.views();
    let desired = state.desired.load();
    let mut rows = view::rows(&state.observed.load(), &sources, &desired);
    view::remark_refused(&mut rows, state.cluster.as_ref());
    json(&PodsDocument {
        pods: rows.values().map(|row| row.entry(&state.node_name)).collect(),
        sources: sources.iter().map(|source| view::source(source, &desired)).collect(),
    })
}

/// The names of the pods and their containers.
pub(super) async fn names(State(state): State<ServerState>) -> Response {
    let rows = view::rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    json(&rows.values().map(|row| row.names(&state.node_name)).collect::<Vec<_>>())
}

/// All details of a pod.
pub(super) async fn describe(
    State(state): State<ServerState>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let sources = state.sources.views();
    let desired = state.desired.load();
    let mut rows = view::rows(&state.observed.load(), &sources, &desired);
    view::remark_refused(&mut rows, state.cluster.as_ref());
    let Ok(key) = PodKey::parse(namespace.as_str(), name.as_str()) else {
        return no_pod(&format!("{namespace}/{name}"));
    };
    // The page is useful without the history. The source's log reports what is wrong with the database.
    let history = read_history(&state, &key).await.unwrap_or_default();
    match rows.get(&key) {
        Some(row) => {
            let document = row.describe(&state.node_name, &sources, &desired, &state.events.snapshot());
            json(&DescribeDocument { history, ..document })
        }
        None => no_pod(&key.to_string()),
    }
}

fn no_pod(pod: &str) -> Response {
    (StatusCode::NOT_FOUND, format!("no pod {pod} on this node")).into_response()
}

/// The last changes of a pod's manifest, oldest first; also of a removed pod.
pub(super) async fn history(
    State(state): State<ServerState>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let Ok(key) = PodKey::parse(namespace.as_str(), name.as_str()) else {
        return no_pod(&format!("{namespace}/{name}"));
    };
    match read_history(&state, &key).await {
        Ok(changes) => json(&HistoryDocument { pod: key.to_string(), changes }),
        Err(reason) => (StatusCode::INTERNAL_SERVER_ERROR, reason).into_response(),
    }
}

async fn read_history(state: &ServerState, key: &PodKey) -> Result<Vec<ManifestChange>, String> {
    let (sources, key) = (Arc::clone(&state.sources), key.clone());
    let read = tokio::task::spawn_blocking(move || sources.history(&key)).await;
    read.map_err(|error| error.to_string()).flatten()
}

/// The sources, their health and the manifests they reject.
pub(super) async fn sources(State(state): State<ServerState>) -> Response {
    let desired = state.desired.load();
    let sources = Arc::clone(&state.sources);
    let damaged = tokio::task::spawn_blocking(move || sources.damaged()).await.unwrap_or_default();
    let damage = damaged.last().map(|path| {
        let path = path.display();
        format!("the database was damaged and is set aside as {path}; check the disk, then remove that file")
    });
    let updates = (state.held_updates)();
    let document = |view: &SourceView| {
        let persist_error = view.persist_error.as_ref().map(|reason| {
            format!("manifests accepted by {} are not saved to disk; a reboot while it is unavailable would lose them: {reason}", view.kind)
        });
        // For the apiserver's source the connection is shown instead of its health.
        let held = match &view.snapshot.health {
            Health::Unavailable(reason) if view.kind.traits().is_connection => Some(reason.to_string()),
            _ => None,
        };
        let remarks: Vec<String> = damage.iter().cloned().chain(persist_error).chain(held).collect();
        let remark = (!remarks.is_empty()).then(|| remarks.join("\n"));
        let of_source = |held: &&HeldUpdateDocument| held.source.as_deref() == Some(view.kind.as_str());
        let held_updates = updates.iter().filter(of_source).cloned().collect();
        let source = SourceDocument { remark, held_updates, ..view::source(view, &desired) };
        match state.cluster.as_ref().filter(|_| view.kind.traits().is_connection) {
            Some(link) => view::cluster(&link.view(), source),
            None => source,
        }
    };
    let documents: Vec<SourceDocument> = state.sources.views().iter().map(document).collect();
    json(&documents)
}

/// The page for Prometheus.
pub(super) async fn metrics(State(state): State<ServerState>) -> Response {
    let sources = state.sources.views();
    if let Some(link) = &state.cluster {
        state.metrics.apiserver().set_unsent(&link.unsent(&state.node_name).by_kind());
        let first_expiry = status::tokens(&state).first_expiry.map(|expiry| expiry.0);
        state.metrics.apiserver().set_first_token_expiry(first_expiry);
    }
    let snapshots = sources.iter().map(|source| (source.kind, &*source.snapshot, source.last_good));
    let observed = state.observed.load();
    state.metrics.set_claims(figures(state.meter.claims(&observed).await));
    let page = state.metrics.render(&observed, snapshots);
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], page).into_response()
}

/// The statistics of claims for which all of them are known.
fn figures(claims: BTreeMap<ClaimName, VolumeDisk>) -> impl Iterator<Item = (ClaimName, ClaimFigures)> {
    claims.into_iter().filter_map(|(name, disk)| {
        let (space, used) = (disk.space?, disk.used?.seen);
        let figures = ClaimFigures {
            capacity: space.capacity,
            available: space.available,
            used: used.bytes,
            inodes: space.inodes,
            inodes_free: space.inodes_free,
            inodes_used: used.inodes,
        };
        Some((name, figures))
    })
}
