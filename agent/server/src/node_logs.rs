//! kubelet's `/logs/`: files below `/var/log` and, with `enableSystemLogQuery`, the logs of services, from the
//! journal or else from their files.
//!
//! No path and no symlink leads outside of the directory ([`files`]). A query that runs journalctl has a deadline,
//! and few run at once.

mod files;
mod journal;
mod query;

use std::path::PathBuf;
use std::sync::Arc;

use axum::extract::{Path, RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::Semaphore;

use super::permission::{Permission, Subresource};
use super::routes::Routes;
use query::Query;

/// The most concurrent queries.
const MAX_QUERIES: usize = 2;

#[derive(Debug, Clone)]
pub(super) struct NodeLogState {
    dir: PathBuf,
    /// Whether `enableSystemLogQuery` is set.
    queries: bool,
    turns: Arc<Semaphore>,
}

impl NodeLogState {
    pub(super) fn new(dir: PathBuf, queries: bool) -> Self {
        Self { dir, queries, turns: Arc::new(Semaphore::new(MAX_QUERIES)) }
    }
}

/// kubelet's `/logs/` and everything below it.
pub(super) fn routes(state: NodeLogState) -> Routes {
    let permission = Permission::Nodes(Subresource::Log);
    let routes = Routes::default().get("/logs", permission, root).get("/logs/", permission, root);
    routes.get("/logs/{*path}", permission, below).with_state(state)
}

async fn root(State(state): State<NodeLogState>, RawQuery(query): RawQuery) -> Response {
    logs(state, "", query.as_deref()).await
}

async fn below(State(state): State<NodeLogState>, Path(path): Path<String>, RawQuery(query): RawQuery) -> Response {
    logs(state, &path, query.as_deref()).await
}

async fn logs(state: NodeLogState, path: &str, query: Option<&str>) -> Response {
    let query = query.filter(|_| state.queries).unwrap_or_default();
    let query = match Query::parse(form_urlencoded::parse(query.as_bytes())) {
        Ok(None) => return files::serve(&state.dir, path).await,
        Ok(Some(query)) => query,
        Err(faults) => return refuse(StatusCode::BAD_REQUEST, &faults.join(", ")),
    };
    if !path.is_empty() {
        return refuse(StatusCode::NOT_ACCEPTABLE, "path not allowed in query mode");
    }
    if let Err(faults) = query.validate() {
        return refuse(StatusCode::NOT_ACCEPTABLE, &faults.join(", "));
    }
    if let Some(file) = query.files.first() {
        return files::serve(&state.dir, file).await;
    }
    match Arc::clone(&state.turns).try_acquire_owned() {
        Ok(turn) => journal::serve(state.dir, query, turn),
        Err(_) => refuse(
            StatusCode::SERVICE_UNAVAILABLE,
            &format!("{MAX_QUERIES} other queries are being answered; try again"),
        ),
    }
}

fn refuse(status: StatusCode, message: &str) -> Response {
    (status, format!("{message}\n")).into_response()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
