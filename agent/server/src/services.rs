//! `/limpet/v1/services`: the Services of the node's own sources, with their addresses and endpoints.

use axum::extract::State;
use axum::response::Response;
use limpet_wire::services::ServicesDocument;
use tokio::sync::watch;

use super::json_response::json;
use super::permission::Permission::Read;
use super::routes::Routes;

/// The Services as they are served.
pub type ServicesState = watch::Receiver<ServicesDocument>;

/// The routes.
pub(super) fn routes(state: ServicesState) -> Routes {
    Routes::default().get("/limpet/v1/services", Read, services).with_state(state)
}

async fn services(State(state): State<ServicesState>) -> Response {
    let document = state.borrow().clone();
    json(&document)
}
