//! The health routes: whether the agent is alive, and whether it is ready (containerd is connected, all sources have
//! read).

use std::fmt::Write as _;

use axum::extract::State;
use axum::http::StatusCode;
use limpet_telemetry::health::REPLY_TIMEOUT;

use super::{ServerState, SourceView};

/// A check's name, and its error if it fails.
pub(super) type Check = (String, Result<(), String>);

pub(super) async fn ping() -> &'static str {
    "ok"
}

pub(super) async fn sync_loop(State(state): State<ServerState>) -> (StatusCode, String) {
    report(&[sync_loop_check(&state).await])
}

pub(super) async fn healthz(State(state): State<ServerState>) -> (StatusCode, String) {
    report(&checks(&state).await)
}

/// The checks of `/healthz`.
pub(super) async fn checks(state: &ServerState) -> [Check; 2] {
    [("ping".to_owned(), Ok(())), sync_loop_check(state).await]
}

pub(super) async fn readyz(State(state): State<ServerState>) -> (StatusCode, String) {
    let containerd = state.health.has_containerd();
    let mut checks = vec![sync_loop_check(&state).await];
    checks.push(("containerd".to_owned(), containerd.then_some(()).ok_or_else(|| "not connected".to_owned())));
    checks.extend(state.sources.views().iter().map(source_check));
    report(&checks)
}

async fn sync_loop_check(state: &ServerState) -> Check {
    let answers = state.health.is_alive().await;
    let verdict = answers.then_some(()).ok_or_else(|| format!("no answer in {} s", REPLY_TIMEOUT.as_secs()));
    ("syncloop".to_owned(), verdict)
}

/// A source is ready once it has reported; a later outage does not change that.
fn source_check(source: &SourceView) -> Check {
    let verdict = source.snapshot.ready.then_some(()).ok_or_else(|| format!("has not read {} yet", source.place));
    (format!("source {}", source.kind), verdict)
}

/// `ok`, or as Kubernetes' components respond when a check fails: status 500 and one line per check.
fn report(checks: &[Check]) -> (StatusCode, String) {
    if checks.iter().all(|(_, verdict)| verdict.is_ok()) {
        return (StatusCode::OK, "ok".to_owned());
    }
    let mut text = String::new();
    for (name, verdict) in checks {
        // Writing to a `String` cannot fail.
        let _ = match verdict {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(why) => writeln!(text, "[-]{name} failed: {why}"),
        };
    }
    (StatusCode::INTERNAL_SERVER_ERROR, text)
}
