//! `/limpet/v1/events`: the node's events as Kubernetes Events.

use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Value, json};

use super::watch::{self, EventWatch};
use super::{ServerState, json_response, view};
use limpet_model::pod::PodKey;
use limpet_telemetry::event::Event;

#[derive(Debug, Deserialize)]
pub(super) struct EventsQuery {
    /// `1` or `true`: stream further events as they happen, one per line.
    watch: Option<String>,
    /// `namespace/name`: only the events of that pod.
    pod: Option<String>,
}

/// An EventList, oldest first; with `watch=1` one event per line.
pub(super) async fn events(State(state): State<ServerState>, Query(query): Query<EventsQuery>) -> Response {
    let key = |pod: &str| pod.split_once('/').and_then(|(namespace, name)| PodKey::parse(namespace, name).ok());
    let about = match query.pod.as_deref().map(key) {
        None => None,
        Some(Some(key)) => Some(key),
        Some(None) => return (StatusCode::BAD_REQUEST, "pod must be namespace/name").into_response(),
    };
    if matches!(query.watch.as_deref(), Some("1" | "true")) {
        return watch::lines(EventWatch::new(state, about));
    }
    let mut events = state.events.snapshot();
    events.retain(|event| about.as_ref().is_none_or(|key| view::is_about(event, key)));
    let items = Items { events, node: &state.node_name };
    json_response::json(&EventList { api_version: "v1", kind: "EventList", metadata: json!({}), items })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EventList<'a> {
    api_version: &'static str,
    kind: &'static str,
    metadata: Value,
    items: Items<'a>,
}

/// Events that are converted to Kubernetes' Event one at a time during serialization: a thousand at once would take
/// megabytes.
struct Items<'a> {
    events: Vec<Event>,
    node: &'a str,
}

impl Serialize for Items<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.events.iter().map(|event| event.as_kubernetes(self.node)))
    }
}
