//! `POST /limpet/v1/cluster/accept`: an operator accepts a cluster that was restored from a backup or replaced.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::{mpsc, oneshot};

use super::json_response::json;
use super::permission::Permission::Write;
use super::routes::Routes;
use super::status_error::StatusError;
use limpet_core::source::cluster_update;
use limpet_wire::status::AcceptedDocument;

#[derive(Debug, Clone)]
pub struct ClusterState {
    /// The source of the apiserver's pods; `None` outside a cluster.
    pub source: Option<mpsc::Sender<cluster_update::Update>>,
}

pub(super) fn routes(state: ClusterState) -> Routes {
    Routes::default().post("/limpet/v1/cluster/accept", Write, accept).with_state(state)
}

async fn accept(State(state): State<ClusterState>) -> Response {
    let refusal = |code, reason, message: &str| StatusError::new(code, reason, message.to_owned(), None);
    let Some(source) = state.source else {
        return refusal(StatusCode::CONFLICT, "Conflict", "the node is in no cluster").into_response();
    };
    let (done, answer) = oneshot::channel();
    let sent = source.send(cluster_update::Update::Accepted(done)).await.is_ok();
    match answer.await {
        Ok(ended) if sent => json(&AcceptedDocument { ended: ended.iter().map(ToString::to_string).collect() }),
        _ => refusal(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "limpet is stopping").into_response(),
    }
}
