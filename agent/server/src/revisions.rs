//! `/limpet/v1/revisions`: the templates that a workload of any source has had, for `limpet rollout history` and `undo`.

use std::fmt;
use std::sync::Arc;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use super::json_response::json;
use super::permission::Permission::Read;
use super::routes::Routes;
use super::status_error::StatusError;
use limpet_core::source::push_error::PushError;
use limpet_core::source::resource::Resource;
use limpet_model::object::ObjectKey;
use limpet_model::source::SourceKind;
use limpet_wire::revisions::RevisionDocument;
use serde_json::Value;

/// What the controllers of workloads remember.
pub trait Controllers: fmt::Debug + Send + Sync {
    /// The templates that a workload has had, the oldest first; `None` if it is not known.
    fn revisions(&self, workload: &ObjectKey) -> Option<Vec<RevisionDocument>>;

    /// The status of a Job or CronJob of a source; `None` for other kinds, or if it is not known.
    fn status(&self, source: SourceKind, workload: &ObjectKey) -> Option<Value>;
}

/// The routes.
pub(super) fn routes(state: Arc<dyn Controllers>) -> Routes {
    Routes::default().get("/limpet/v1/revisions/{kind}/{namespace}/{name}", Read, revisions).with_state(state)
}

async fn revisions(
    State(state): State<Arc<dyn Controllers>>,
    Path((kind, namespace, name)): Path<(String, String, String)>,
) -> Response {
    let Some(resource @ Resource::Object(object)) = Resource::from_name(&kind).filter(|resource| resource.has_pods())
    else {
        let message = format!("{kind} is no kind of workload");
        return StatusError::new(StatusCode::BAD_REQUEST, "BadRequest", message, None).into_response();
    };
    match state.revisions(&ObjectKey::new(object, namespace, name.as_str())) {
        Some(documents) => json(&documents),
        None => {
            let error = PushError::NotFound { resource, name: name.clone() };
            StatusError::from_push_error(&error, resource, &name).into_response()
        }
    }
}
