//! `POST /limpet/v1/pods/{namespace}/{name}/restart`: restarts the containers of a pod of this node, or one of them.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::oneshot;

use super::json_response::json;
use super::permission::Permission::Write;
use super::pod_orders::PodOrdersState;
use super::routes::Routes;
use super::status_error::StatusError;
use limpet_core::pod_order::{PodOrder, RestartError, RestartOrder};
use limpet_model::pod::PodKey;
use limpet_wire::pods::{RestartRequest, RestartedContainers};

pub(super) fn routes(state: PodOrdersState) -> Routes {
    Routes::default().post("/limpet/v1/pods/{namespace}/{name}/restart", Write, restart).with_state(state)
}

/// Responds with the containers' names before they are ended.
async fn restart(
    State(state): State<PodOrdersState>,
    Path((namespace, name)): Path<(String, String)>,
    Json(request): Json<RestartRequest>,
) -> Response {
    let Ok(key) = PodKey::parse(namespace.as_str(), name.as_str()) else {
        let message = format!("pod {namespace}/{name} does not run on this node");
        return StatusError::new(StatusCode::NOT_FOUND, "NotFound", message, None).into_response();
    };
    let (done, answer) = oneshot::channel();
    let order = RestartOrder { key: key.clone(), container: request.container, done };
    if state.orders.send(PodOrder::Restart(order)).await.is_err() {
        let message = "limpet is stopping".to_owned();
        return StatusError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message, None).into_response();
    }
    match answer.await {
        Ok(Ok(containers)) => json(&RestartedContainers { containers }),
        Ok(Err(error)) => refusal(&error),
        Err(_) => refusal(&RestartError::Over(key)),
    }
}

fn refusal(error: &RestartError) -> Response {
    let (code, reason) = match error {
        RestartError::NoPod(_) | RestartError::NoContainer(..) => (StatusCode::NOT_FOUND, "NotFound"),
        RestartError::Over(_) | RestartError::NothingRuns(_) => (StatusCode::CONFLICT, "Conflict"),
        RestartError::RunsOnce(..) => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
    };
    StatusError::new(code, reason, error.to_string(), None).into_response()
}
