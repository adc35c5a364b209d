//! Pushed ConfigMaps, Secrets, claims and workloads. A Secret's values are never returned, only its keys.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Path, State};
use axum::http::header::WARNING;
use axum::response::{IntoResponse, Response};
use imbl::OrdMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Status, StatusDetails};
use serde_json::{Value, json};

use super::rejected_push::RejectedPush;
use super::{MAX_BODY, read, stored_response};
use crate::ServerState;
use crate::json_response::json as answer;
use crate::permission::Permission::{Read, Write};
use crate::routes::Routes;
use crate::status_error::StatusError;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::object::{KEYS_ANNOTATION, ObjectKey, ObjectKind, ObjectRecord};
use limpet_model::pod::PodKey;
use limpet_model::source::SourceKind;

/// The most pods that a warning lists.
const MAX_LISTED_PODS: usize = 8;

type ObjectPath = Path<(String, String)>;

pub(super) fn routes(kind: ObjectKind) -> Routes<ServerState> {
    let plural = Resource::Object(kind).plural();
    let all = move |State(state): State<ServerState>| async move { list(&state, kind, None) };
    let of_namespace = move |State(state): State<ServerState>, Path(namespace): Path<String>| async move {
        list(&state, kind, Some(&namespace))
    };
    let read =
        move |State(state): State<ServerState>, name: ObjectPath| async move { read_object(&state, &key(kind, name)) };
    let write = move |State(state): State<ServerState>, name: ObjectPath, body: Result<Bytes, BytesRejection>| async move {
        put(&state, key(kind, name), body).await
    };
    let remove =
        move |State(state): State<ServerState>, name: ObjectPath| async move { delete(&state, key(kind, name)).await };
    let root = Resource::Object(kind).root();
    let path = format!("{root}/namespaces/{{namespace}}/{plural}/{{name}}");
    Routes::default()
        .get(&format!("{root}/{plural}"), Read, all)
        .get(&format!("{root}/namespaces/{{namespace}}/{plural}"), Read, of_namespace)
        .get(&path, Read, read)
        .put(&path, Write, write)
        .delete(&path, Write, remove)
}

fn key(kind: ObjectKind, Path((namespace, name)): ObjectPath) -> ObjectKey {
    ObjectKey::new(kind, namespace, name)
}

fn pushed(state: &ServerState) -> OrdMap<ObjectKey, Arc<ObjectRecord>> {
    let views = state.sources.views();
    let push = views.iter().find(|view| view.kind == SourceKind::Push);
    push.map(|view| view.snapshot.objects.clone()).unwrap_or_default()
}

fn list(state: &ServerState, kind: ObjectKind, namespace: Option<&str>) -> Response {
    let objects = pushed(state);
    let matches = |key: &ObjectKey| key.kind == kind && namespace.is_none_or(|namespace| *key.namespace == *namespace);
    let items: Vec<Value> = objects.iter().filter(|(key, _)| matches(key)).map(|(_, object)| render(object)).collect();
    answer(
        &json!({"apiVersion": kind.api_version(), "kind": format!("{}List", kind.as_str()), "metadata": {}, "items": items}),
    )
}

fn read_object(state: &ServerState, key: &ObjectKey) -> Response {
    match pushed(state).get(key) {
        Some(object) => answer(&render(object)),
        None => {
            let (resource, name) = (Resource::Object(key.kind), key.name.to_string());
            StatusError::from_push_error(&PushError::NotFound { resource, name }, resource, &key.name).into_response()
        }
    }
}

async fn put(state: &ServerState, key: ObjectKey, body: Result<Bytes, BytesRejection>) -> Response {
    let resource = Resource::Object(key.kind);
    let (namespace, name) = (Arc::clone(&key.namespace), Arc::clone(&key.name));
    let rejected = RejectedPush { state, resource, namespace: &namespace, name: &name };
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return rejected.body(&rejection, MAX_BODY),
    };
    let pusher = state.pusher.clone();
    let stored = match read(move || pusher.object(&key, &body)).await {
        Ok(record) => state.pusher.put_object(record).await,
        Err(error) => Err(error),
    };
    match stored {
        Ok(stored) => stored_response(stored.verb, &render(&stored.record)),
        Err(error) => rejected.push(&error),
    }
}

/// Responds as an apiserver does. A warning, which kubectl prints, lists the pods that still refer to the object.
async fn delete(state: &ServerState, key: ObjectKey) -> Response {
    let (resource, name) = (Resource::Object(key.kind), key.name.to_string());
    let deleted = match state.pusher.delete_object(key).await {
        Ok(deleted) => deleted,
        Err(error) => return StatusError::from_push_error(&error, resource, &name).into_response(),
    };
    let status = Status {
        status: Some("Success".to_owned()),
        details: Some(StatusDetails {
            name: Some(name),
            kind: Some(resource.plural().to_owned()),
            ..StatusDetails::default()
        }),
        ..Status::default()
    };
    match &deleted.referred_by[..] {
        [] => answer(&status),
        pods => ([(WARNING, warning(&deleted.record.key, pods))], answer(&status)).into_response(),
    }
}

/// The `Warning` header of RFC 9111, as an apiserver writes it.
fn warning(key: &ObjectKey, pods: &[PodKey]) -> String {
    let names: Vec<String> = pods.iter().take(MAX_LISTED_PODS).map(|pod| format!("pod {pod}")).collect();
    let more = match pods.len().saturating_sub(MAX_LISTED_PODS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("299 - \"{key} is still referred to by {}{more}\"", names.join(", "))
}

/// The object in full; a Secret without its values.
fn render(object: &ObjectRecord) -> Value {
    let key = &object.key;
    match key.kind {
        kind if kind != ObjectKind::Secret => serde_json::from_slice(&object.manifest()).unwrap_or_default(),
        _ => json!({
            "apiVersion": "v1", "kind": key.kind.as_str(), "type": &*object.secret_type, "immutable": object.immutable,
            "metadata": {"name": &*key.name, "namespace": &*key.namespace, "annotations": {
                KEYS_ANNOTATION: object.data.keys().map(String::as_str).collect::<Vec<_>>().join(","),
            }},
        }),
    }
}
