//! `/limpet/v1/shutdown`: an operator, or a script on a node without systemd, ends the pods before the machine goes
//! down.

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use tokio::sync::{mpsc, oneshot, watch};

use super::json_response::json;
use super::permission::Permission::Write;
use super::routes::Routes;
use super::status_error::StatusError;
use super::watch::{self as stream, Lines};
use limpet_core::node_shutdown::{Cancelled, ShutdownProgress, ShutdownRequest};
use limpet_wire::status::ShutdownCancelled;

#[derive(Debug, Clone)]
pub struct ShutdownState {
    /// Sends requests to the task that ends the pods.
    pub requests: mpsc::Sender<ShutdownRequest>,
    pub progress: watch::Receiver<ShutdownProgress>,
}

pub(super) fn routes(state: ShutdownState) -> Routes {
    Routes::default()
        .post("/limpet/v1/shutdown", Write, begin)
        .post("/limpet/v1/shutdown/cancel", Write, cancel)
        .with_state(state)
}

/// Begins the shutdown and responds with its progress, one document per line, until it is done or cancelled. It
/// continues if the caller disconnects.
async fn begin(State(state): State<ShutdownState>) -> Response {
    let (done, begun) = oneshot::channel();
    let sent = state.requests.send(ShutdownRequest::Begin(done)).await;
    match (sent, begun.await) {
        (Ok(()), Ok(())) => stream::lines(ProgressLines { progress: state.progress, begun: false, over: false }),
        _ => stopping(),
    }
}

async fn cancel(State(state): State<ShutdownState>) -> Response {
    let (done, answer) = oneshot::channel();
    let sent = state.requests.send(ShutdownRequest::Cancel(done)).await;
    match (sent, answer.await) {
        (Ok(()), Ok(Cancelled::ByMachine)) => {
            let message = "the machine itself is going down: only its service manager can cancel that";
            StatusError::new(StatusCode::CONFLICT, "Conflict", message.to_owned(), None).into_response()
        }
        (Ok(()), Ok(answer)) => json(&ShutdownCancelled { cancelled: answer == Cancelled::Yes }),
        _ => stopping(),
    }
}

fn stopping() -> Response {
    let message = "limpet is stopping".to_owned();
    StatusError::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message, None).into_response()
}

/// The progress as lines; a slow reader misses some of them, but not the last.
struct ProgressLines {
    progress: watch::Receiver<ShutdownProgress>,
    begun: bool,
    over: bool,
}

impl Lines for ProgressLines {
    async fn next(&mut self) -> Option<Vec<u8>> {
        if self.over {
            return None;
        }
        if std::mem::replace(&mut self.begun, true) {
            self.progress.changed().await.ok()?;
        }
        let progress = self.progress.borrow_and_update().clone();
        self.over = progress.done || !progress.shutting_down;
        let mut line = Vec::new();
        stream::push(&mut line, &progress);
        Some(line)
    }
}
