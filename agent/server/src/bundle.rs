//! `/limpet/v1/bundle`: a signed bundle is sent to the agent as the body of a request, and the key of the node to which Secrets
//! of bundles are sealed.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt as _, TryStreamExt as _};
use limpet_wire::bundle::{BundleDocument, BundleQuery, NodeKeyDocument};

use serde::Serialize;

use super::json_response::json;
use super::permission::Permission::{Read, Write};
use super::routes::Routes;

/// The most characters of a name that are shown.
const MAX_NAME: usize = 512;

/// The bytes of a bundle.
pub type BundleStream = BoxStream<'static, io::Result<Bytes>>;

/// The agent's source of bundles.
pub trait Bundles: fmt::Debug + Send + Sync {
    /// Receives a bundle that messages call `name`, lets it take effect in place of the one before, `in_window` only when
    /// updates may, and returns when it is on disk.
    fn apply(
        &self,
        bytes: BundleStream,
        name: PathBuf,
        in_window: bool,
    ) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>>;

    /// Lets the next bundle have any serial.
    fn reset_serial(&self) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>>;

    /// The key of the node.
    fn node_key(&self) -> BoxFuture<'_, Result<NodeKeyDocument, BundleRefusal>>;
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
        .post_stream("/limpet/v1/bundle/apply", Write, apply)
        .get("/limpet/v1/bundle/node-key", Read, node_key)
        .post("/limpet/v1/bundle/reset-serial", Write, reset_serial)
        .with_state(state)
}

async fn apply(State(bundles): State<BundlesState>, Query(query): Query<BundleQuery>, body: Body) -> Response {
    let mut bytes = body.into_data_stream().map_err(io::Error::other).boxed();
    let Some(bundles) = bundles else {
        // A client that is still sending would not see the answer.
        while let Some(Ok(_)) = bytes.next().await {}
        return not_configured();
    };
    answer(bundles.apply(bytes, shown(&query.name), query.in_window).await)
}

/// A name for messages, of one line.
fn shown(name: &str) -> PathBuf {
    let name: String = name.chars().filter(|letter| !letter.is_control()).take(MAX_NAME).collect();
    if name.is_empty() { Path::new("the bundle").to_owned() } else { PathBuf::from(name) }
}

async fn node_key(State(bundles): State<BundlesState>) -> Response {
    match bundles {
        Some(bundles) => answer(bundles.node_key().await),
        None => not_configured(),
    }
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

fn answer(result: Result<impl Serialize, BundleRefusal>) -> Response {
    match result {
        Ok(document) => json(&document),
        Err(BundleRefusal::Refused(message)) => (StatusCode::UNPROCESSABLE_ENTITY, message).into_response(),
        Err(BundleRefusal::Missing(message)) => (StatusCode::NOT_FOUND, message).into_response(),
        Err(BundleRefusal::Unavailable(message)) => (StatusCode::SERVICE_UNAVAILABLE, message).into_response(),
    }
}
