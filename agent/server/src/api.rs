//! `/api/v1`: pods, ConfigMaps and Secrets, as an apiserver serves them. Reads return all pods of the node and the
//! pushed objects; writes go to the push source.
//!
//! A pod can be requested by the name in its manifest or by its name on the node. Errors are `Status` objects, as every
//! Kubernetes client expects.

mod objects;
mod rejected_push;

use std::sync::Arc;

use axum::Extension;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use super::caller::Caller;
use super::json_response::json;
use super::permission::Permission::{Read, Write};
use super::routes::Routes;
use super::status_error::StatusError;
use super::view::{PodListView, Row, rows};
use super::{ServerState, view};
use limpet_core::source::push::{Pusher, Verb};
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::object::ObjectKind;
use limpet_model::pod::{PodKey, identity};
use limpet_wire::pods::OUTCOME;
use rejected_push::RejectedPush;

/// The limit of a request body in bytes, the same as for a manifest file.
const MAX_BODY: usize = 10 << 20;

pub(super) fn routes() -> Routes<ServerState> {
    let pod = "/api/v1/namespaces/{namespace}/pods/{name}";
    let routes = Routes::default()
        .get("/api/v1/pods", Read, all)
        .get("/api/v1/namespaces/{namespace}/pods", Read, of_namespace)
        .get(pod, Read, read_pod)
        .put(pod, Write, put)
        .delete(pod, Write, delete);
    let kinds = ObjectKind::LOCAL.into_iter().map(objects::routes);
    kinds.fold(routes, Routes::merge).body_limit(MAX_BODY)
}

async fn all(State(state): State<ServerState>) -> Response {
    let rows = rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    json(&rows.values().map(Row::pod).collect::<PodListView<'_>>())
}

async fn of_namespace(State(state): State<ServerState>, Path(namespace): Path<String>) -> Response {
    let rows = rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    let in_namespace = rows.iter().filter(|(key, _)| key.namespace() == namespace);
    json(&in_namespace.map(|(_, row)| row.pod()).collect::<PodListView<'_>>())
}

async fn read_pod(State(state): State<ServerState>, Path((namespace, name)): Path<(String, String)>) -> Response {
    let rows = rows(&state.observed.load(), &state.sources.views(), &state.desired.load());
    let node = identity::key(Some(&namespace), &name, &state.node_name);
    let keys = [PodKey::parse(&*namespace, &*name), node];
    match keys.iter().flatten().find_map(|key| rows.get(key)) {
        Some(row) => json(&row.pod()),
        None => {
            let error = PushError::NotFound { resource: Resource::Pod, name: name.clone() };
            StatusError::from_push_error(&error, Resource::Pod, &name).into_response()
        }
    }
}

async fn put(
    State(state): State<ServerState>,
    Path((namespace, name)): Path<(String, String)>,
    Extension(caller): Extension<Caller>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let rejected = RejectedPush { state: &state, resource: Resource::Pod, namespace: &namespace, name: &name };
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return rejected.body(&rejection, MAX_BODY),
    };
    let pusher = state.pusher_of(&caller).await;
    let reading = (pusher.clone(), namespace.clone(), name.clone());
    let read = read(move || reading.0.pod(&reading.1, &reading.2, &body)).await;
    let stored = match read {
        Ok(record) => pusher.put(record).await,
        Err(error) => Err(error),
    };
    match stored {
        Ok(stored) => stored_response(stored.verb, &view::authored(&stored.record)),
        Err(error) => rejected.push(&error),
    }
}

impl ServerState {
    /// The push source, with the connected process as actor.
    async fn pusher_of(&self, caller: &Caller) -> Pusher {
        self.pusher.by(caller.actor(Arc::clone(&self.observer), self.actor_of_process).await)
    }
}

/// Decodes a body off the agent's thread: 10 MiB of YAML take a while.
async fn read<T: Send + 'static>(read: impl FnOnce() -> Result<T, PushError> + Send + 'static) -> Result<T, PushError> {
    tokio::task::spawn_blocking(read).await.map_err(|_| PushError::Stopping)?
}

fn stored_response(verb: Verb, document: &impl Serialize) -> Response {
    let status = if verb == Verb::Created { StatusCode::CREATED } else { StatusCode::OK };
    (status, [(OUTCOME, verb.as_str())], json(document)).into_response()
}

/// The options of a DELETE, from its query or, as `DeleteOptions`, from its body.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct DeleteOptions {
    grace_period_seconds: Option<u64>,
}

async fn delete(
    State(state): State<ServerState>,
    Path((namespace, name)): Path<(String, String)>,
    Query(query): Query<DeleteOptions>,
    Extension(caller): Extension<Caller>,
    body: Bytes,
) -> Response {
    let status_error = |error: &PushError| StatusError::from_push_error(error, Resource::Pod, &name).into_response();
    let asked = match body.is_empty() {
        true => Ok(DeleteOptions::default()),
        false => serde_json::from_slice::<DeleteOptions>(&body),
    };
    let asked = match asked {
        Ok(asked) => asked,
        Err(error) => {
            return status_error(&PushError::BadRequest(format!("DeleteOptions: {error}")));
        }
    };
    let grace = asked.grace_period_seconds.or(query.grace_period_seconds);
    match state.pusher_of(&caller).await.delete(&namespace, &name, grace).await {
        Ok(record) => json(&view::authored(&record)),
        Err(error) => status_error(&error),
    }
}
