//! `POST /limpet/v1/agent/restart`: the agent stops as at SIGTERM and starts again in the same process, by whatever init
//! system, or none, it was started.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use tokio_util::sync::CancellationToken;

use super::json_response::json;
use super::permission::Permission::Write;
use super::routes::Routes;

/// Records that a restart was requested. Clones share the flag.
#[derive(Debug, Clone)]
pub struct AgentRestart {
    requested: Arc<AtomicBool>,
    stop: CancellationToken,
}

impl AgentRestart {
    /// A restart cancels `stop`, the agent's own stop.
    pub fn new(stop: CancellationToken) -> Self {
        Self { requested: Arc::default(), stop }
    }

    /// Whether the agent should start again after it has stopped.
    pub fn is_requested(&self) -> bool {
        self.requested.load(Ordering::Relaxed)
    }
}

pub(super) fn routes(state: AgentRestart) -> Routes {
    Routes::default().post("/limpet/v1/agent/restart", Write, restart).with_state(state)
}

async fn restart(State(state): State<AgentRestart>) -> Response {
    state.requested.store(true, Ordering::Relaxed);
    state.stop.cancel();
    json(&serde_json::json!({ "restarting": true })).into_response()
}
