//! `/api/v1`: pods as an apiserver has them. Reading shows all pods of the node, writing goes to the push source.
//!
//! A pod may be asked for by the name in its manifest or by its name on the node. Refusals are `Status` objects, as
//! every Kubernetes client reads them.

mod refusal;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderName, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;

use super::pods::json;
use super::view::{PodListView, Row, rows};
use super::{ServerState, view};
use crate::pod::{PodKey, Severity, identity};
use crate::source::SourceKind;
use crate::source::push::{PushError, Verb};
use crate::status::metrics::RejectionReason;
use refusal::Refusal;

/// Bytes of one pod, as of a manifest file.
const MAX_BODY: usize = 10 << 20;
/// What became of a pod that was put: `created`, `configured` or `unchanged`.
pub(crate) const OUTCOME: HeaderName = HeaderName::from_static("limpet-outcome");

/// The routes.
pub(super) fn router() -> Router<ServerState> {
    Router::new()
        .route("/api/v1/pods", get(all))
        .route("/api/v1/namespaces/{namespace}/pods", get(of_namespace))
        .route("/api/v1/namespaces/{namespace}/pods/{name}", get(one).put(put).delete(delete))
        .layer(DefaultBodyLimit::max(MAX_BODY))
}

async fn all(State(state): State<ServerState>) -> Response {
    let rows = rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    json(&rows.values().map(Row::pod).collect::<PodListView<'_>>())
}

async fn of_namespace(State(state): State<ServerState>, Path(namespace): Path<String>) -> Response {
    let rows = rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    let of = rows.iter().filter(|(key, _)| key.namespace() == namespace);
    json(&of.map(|(_, row)| row.pod()).collect::<PodListView<'_>>())
}

async fn one(State(state): State<ServerState>, Path((namespace, name)): Path<(String, String)>) -> Response {
    let rows = rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    let node = identity::key(Some(&namespace), &name, &state.node_name);
    match rows.get(&PodKey::new(&*namespace, &*name)).or_else(|| rows.get(&node)) {
        Some(row) => json(&row.pod()),
        None => Refusal::of(&PushError::NotFound { namespace, name: name.clone() }, &name).into_response(),
    }
}

async fn put(
    State(state): State<ServerState>,
    Path((namespace, name)): Path<(String, String)>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return Refusal::of_body(&rejection, MAX_BODY).into_response(),
    };
    match state.pusher.put(&namespace, &name, body.to_vec()).await {
        Ok(stored) => {
            let status = if stored.verb == Verb::Created { StatusCode::CREATED } else { StatusCode::OK };
            let pod = json(&view::authored(&stored.record));
            (status, [(OUTCOME, stored.verb.as_str())], pod).into_response()
        }
        Err(error) => {
            if let PushError::Invalid(faults) = &error {
                for fault in faults.iter().filter(|fault| fault.severity == Severity::Error) {
                    state.metrics.manifest_rejected(SourceKind::Push, RejectionReason::of(fault));
                }
            }
            Refusal::of(&error, &name).into_response()
        }
    }
}

/// What a DELETE may ask for, in its query or, as `DeleteOptions`, in its body.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    grace_period_seconds: Option<u64>,
}

async fn delete(
    State(state): State<ServerState>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<DeleteOptions>,
    body: Bytes,
) -> Response {
    let asked = match body.is_empty() {
        true => Ok(DeleteOptions::default()),
        false => serde_json::from_slice::<DeleteOptions>(&body),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => {
            return Refusal::of(&PushError::BadRequest(format!("DeleteOptions: {error}")), &name).into_response();
        }
    };
    let grace = asked.grace_period_seconds.or(query.grace_period_seconds);
    match state.pusher.delete(&namespace, &name, grace).await {
        Ok(record) => json(&view::authored(&record)),
        Err(error) => Refusal::of(&error, &name).into_response(),
    }
}
