//! `/limpet/v1/events`: what happened, as Kubernetes Events.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::json;

use super::ServerState;
use super::watch::{self, EventWatch};
use super::{pods, view};
use crate::pod::PodKey;

#[derive(Debug, Deserialize)]
pub(super) struct EventsQuery {
    /// `1` or `true`: go on with one event a line as they happen.
    watch: Option<String>,
    /// `namespace/name`: only the events of that pod.
    pod: Option<String>,
}

/// An EventList, the least recent first; with `watch=1` one event a line.
pub(super) async fn events(State(state): State<ServerState>, Query(query): Query<EventsQuery>) -> Response {
    let about = match query.pod.as_deref().map(|pod| pod.split_once('/')) {
        None => None,
        Some(Some((namespace, name))) => Some(PodKey::new(namespace, name)),
        Some(None) => return (StatusCode::BAD_REQUEST, "pod must be namespace/name").into_response(),
    };
    if matches!(query.watch.as_deref(), Some("1" | "true")) {
        return watch::lines(EventWatch::new(state, about));
    }
    let kept = state.events.snapshot();
    let wanted = kept.iter().filter(|event| about.as_ref().is_none_or(|key| view::is_about(event, key)));
    let items: Vec<_> = wanted.map(|event| view::event(event, &state.node_name)).collect();
    pods::json(&json!({ "apiVersion": "v1", "kind": "EventList", "metadata": {}, "items": items }))
}
