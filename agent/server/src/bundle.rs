//! `/limpet/v1/bundle`: a signed bundle is handed to the agent.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use limpet_wire::bundle::{BundleDocument, BundleRequest};

use super::json_response::json;
use super::permission::Permission::Write;
use super::routes::Routes;

/// The agent's source of bundles.
pub trait Bundles: fmt::Debug + Send + Sync {
    /// Lets a bundle take effect in place of the one before, `in_window` only when updates may, and returns when it is on disk.
    fn apply(&self, path: PathBuf, in_window: bool) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>>;

    /// Lets the next bundle have any serial.
    fn reset_serial(&self) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>>;
}

/// Why nothing was done. The message is for people.
#[derive(Debug)]
pub enum BundleRefusal {
    /// The bundle is not to be used.
    Refused(String),
    /// There is no bundle on the node.
    Missing(String),
    /// The same may succeed later.
    Unavailable(String),
}

/// The source; `None`: bundles are not configured.
pub type BundlesState = Option<Arc<dyn Bundles>>;

pub(super) fn routes(state: BundlesState) -> Routes {
    Routes::default()
        .post("/limpet/v1/bundle/apply", Write, apply)
        .post("/limpet/v1/bundle/reset-serial", Write, reset_serial)
        .with_state(state)
}

async fn apply(State(bundles): State<BundlesState>, Json(request): Json<BundleRequest>) -> Response {
    let Some(bundles) = bundles else { return not_configured() };
    if !request.path.is_absolute() {
        let message = format!("{} is not an absolute path", request.path.display());
        return (StatusCode::BAD_REQUEST, message).into_response();
    }
    answer(bundles.apply(request.path, request.in_window).await)
}

async fn reset_serial(State(bundles): State<BundlesState>) -> Response {
    match bundles {
        Some(bundles) => answer(bundles.reset_serial().await),
        None => not_configured(),
    }
}

fn not_configured() -> Response {
    let message = "this node takes no bundles: set bundle.keys in the LimpetConfiguration to the public keys that may sign \
                   them, and restart limpet";
    (StatusCode::CONFLICT, message).into_response()
}

fn answer(result: Result<BundleDocument, BundleRefusal>) -> Response {
    match result {
        Ok(document) => json(&document),
        Err(BundleRefusal::Refused(message)) => (StatusCode::UNPROCESSABLE_ENTITY, message).into_response(),
        Err(BundleRefusal::Missing(message)) => (StatusCode::NOT_FOUND, message).into_response(),
        Err(BundleRefusal::Unavailable(message)) => (StatusCode::SERVICE_UNAVAILABLE, message).into_response(),
    }
}
