//! `/limpet/v1/objects`: a workload, claim or Service of any source, with its pods and events, for `limpet describe` and `limpet
//! rollout`.

use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use limpet_core::merge::DesiredPods;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::object::{ObjectKey, ObjectKind, ObjectRecord, claim};
use limpet_model::pod::PodRecord;
use limpet_model::pod::identity::OWNER_ANNOTATION;
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{Event, InvolvedObject};
use limpet_wire::objects::ObjectDocument;
use limpet_wire::pods::rejection;
use serde_json::Value;

use super::json_response::json;
use super::permission::Permission::Read;
use super::revisions::Controllers;
use super::routes::Routes;
use super::status_error::StatusError;
use super::{ServerState, view};

/// What the routes need.
#[derive(Clone)]
struct ObjectsState {
    server: ServerState,
    controllers: Arc<dyn Controllers>,
}

/// The routes that show one workload, claim or Service.
pub(super) fn routes(server: ServerState, controllers: Arc<dyn Controllers>) -> Routes {
    let state = ObjectsState { server, controllers };
    Routes::default().get("/limpet/v1/objects/{kind}/{namespace}/{name}", Read, object).with_state(state)
}

async fn object(
    State(state): State<ObjectsState>,
    Path((kind, namespace, name)): Path<(String, String, String)>,
) -> Response {
    let (resource, object) = match Resource::from_name(&kind) {
        Some(resource @ Resource::Object(object)) if is_described(object) => (resource, object),
        _ => {
            let message = format!("{kind} is no kind of workload, claim or Service");
            return StatusError::new(StatusCode::BAD_REQUEST, "BadRequest", message, None).into_response();
        }
    };
    let key = ObjectKey::new(object, namespace, name.as_str());
    let (server, desired) = (&state.server, state.server.desired.load());
    let Some((source, record, others)) = find(&desired, &key) else {
        let error = PushError::NotFound { resource, name: name.clone() };
        return StatusError::from_push_error(&error, resource, &name).into_response();
    };
    let sources = server.sources.views();
    let rows = view::rows(&server.observed.load(), &sources, &desired);
    let has = |row: &&view::Row| row.record.source == source && is_pod_of(&row.record, &key);
    let mut manifest: Value = serde_json::from_slice(&record.manifest()).unwrap_or_default();
    if let Some(status) = state.controllers.status(source, &key) {
        manifest["status"] = status;
    }
    let of_origin = sources.iter().filter(|view| view.kind == source);
    let rejections = of_origin.flat_map(|view| view.snapshot.rejected.values());
    let events = server.events.snapshot();
    json(&ObjectDocument {
        source: source.to_string(),
        origin: record.origin.to_string(),
        also_in: others.iter().map(ToString::to_string).collect(),
        object: manifest,
        directory: record.claim.as_ref().and_then(|claim| Some(claim.directory.as_ref()?.to_path_buf())),
        ending: record.claim.as_ref().is_some_and(|claim| claim.ending),
        pods: rows.values().filter(has).map(|row| row.entry(&server.node_name)).collect(),
        rejected: rejections
            .filter(|refused| refused.origin == record.origin)
            .map(|refused| rejection(refused))
            .collect(),
        events: events
            .iter()
            .filter(|event| is_about(event, &key))
            .map(|event| event.as_kubernetes(&server.node_name))
            .collect(),
    })
}

fn is_described(kind: ObjectKind) -> bool {
    kind.is_workload() || matches!(kind, ObjectKind::PersistentVolumeClaim | ObjectKind::Service)
}

/// The object of the first source that has it, and the others that have one of this name.
fn find<'a>(desired: &'a DesiredPods, key: &ObjectKey) -> Option<(SourceKind, &'a Arc<ObjectRecord>, Vec<SourceKind>)> {
    let is_local = |source: &SourceKind| *source != SourceKind::Api;
    let mut all = SourceKind::ALL.into_iter().filter(is_local).filter_map(|source| {
        let record = desired.objects[source.index()].get(key)?;
        Some((source, record))
    });
    let (source, record) = all.next()?;
    Some((source, record, all.map(|(source, _)| source).collect()))
}

/// Whether the pod is one of a workload, or refers to a claim.
fn is_pod_of(record: &PodRecord, key: &ObjectKey) -> bool {
    if record.key.namespace() != &*key.namespace {
        return false;
    }
    if key.kind == ObjectKind::PersistentVolumeClaim {
        return claim::local_names(record).any(|name| *name == *key.name);
    }
    let owner = record.pod.metadata.annotations.as_ref().and_then(|annotations| annotations.get(OWNER_ANNOTATION));
    owner
        .and_then(|owner| owner.split_once('/'))
        .is_some_and(|(kind, name)| kind == key.kind.as_str() && *name == *key.name)
}

fn is_about(event: &Event, key: &ObjectKey) -> bool {
    matches!(&event.involved, InvolvedObject::Workload(subject, _) if subject == key)
}
