//! `POST /limpet/v1/pods/{namespace}/{name}/debug`: adds an ephemeral container to a pod of this node, whatever its
//! source.

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::sync::oneshot;

use super::json_response::json;
use super::permission::Permission::Write;
use super::pod_orders::PodOrdersState;
use super::routes::Routes;
use super::status_error::StatusError;
use limpet_core::debug_order::{DebugError, DebugOrder};
use limpet_core::pod_order::PodOrder;
use limpet_model::pod::{PodKey, ephemeral};

/// The limit of a request body.
const MAX_BODY: usize = 256 << 10;

pub(super) fn routes(state: PodOrdersState) -> Routes {
    let path = "/limpet/v1/pods/{namespace}/{name}/debug";
    Routes::default().post(path, Write, add).body_limit(MAX_BODY).with_state(state)
}

/// Responds with the container as the pod has it, defaults included.
async fn add(
    State(state): State<PodOrdersState>,
    Path((namespace, name)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let container: Value = match serde_json::from_slice(&body) {
        Ok(container) => container,
        Err(error) => {
            let message = format!("EphemeralContainer: {error}");
            return StatusError::new(StatusCode::BAD_REQUEST, "BadRequest", message, None).into_response();
        }
    };
    let container = match ephemeral::read(&container) {
        Ok(container) => container,
        Err(faults) => return refusal(&DebugError::Invalid(faults)),
    };
    let Ok(key) = PodKey::parse(namespace.as_str(), name.as_str()) else {
        let message = format!("pod {namespace}/{name} does not run on this node");
        return StatusError::new(StatusCode::NOT_FOUND, "NotFound", message, None).into_response();
    };
    let shown = container.clone();
    let (done, answer) = oneshot::channel();
    let order = DebugOrder { key: key.clone(), container: Box::new(container), done };
    if state.orders.send(PodOrder::Debug(order)).await.is_err() {
        let message = "limpet is stopping".to_owned();
        return StatusError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message, None).into_response();
    }
    match answer.await {
        Ok(Ok(())) => json(&shown),
        Ok(Err(error)) => refusal(&error),
        Err(_) => refusal(&DebugError::Over(key)),
    }
}

fn refusal(error: &DebugError) -> Response {
    let (code, reason) = match error {
        DebugError::NoPod(_) => (StatusCode::NOT_FOUND, "NotFound"),
        DebugError::Over(_) => (StatusCode::CONFLICT, "Conflict"),
        DebugError::Invalid(_) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
    };
    StatusError::new(code, reason, error.to_string(), None).into_response()
}
