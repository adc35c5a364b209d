//! Health: is the agent alive (its sync loop responds), and is it ready (containerd is connected, all sources have
//! read)?
//!
//! The sync loop has no periodic tick to check, so the liveness probe sends a request through the loop's own `select`:
//! a loop that hangs does not reply.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use tokio::sync::{mpsc, oneshot};

use super::{ServerState, SourceView};

/// How long the sync loop may take to reply. kubelet's own check allows minutes because its loop runs on a timer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

/// The agent's health flags. Clones share them.
#[derive(Debug, Clone)]
pub struct Health {
    containerd: Arc<AtomicBool>,
    questions: mpsc::Sender<oneshot::Sender<()>>,
}

/// The sync loop's side: it replies to liveness probes.
#[derive(Debug)]
pub struct Heartbeat(mpsc::Receiver<oneshot::Sender<()>>);

impl Health {
    /// The flags, and the side that the sync loop holds.
    pub fn new() -> (Self, Heartbeat) {
        let (questions, answers) = mpsc::channel(4);
        (Self { containerd: Arc::default(), questions }, Heartbeat(answers))
    }

    /// Whether containerd's event stream is open.
    pub fn set_containerd(&self, connected: bool) {
        self.containerd.store(connected, Ordering::Relaxed);
    }

    /// Whether containerd's event stream is open, as it was last reported.
    pub fn has_containerd(&self) -> bool {
        self.containerd.load(Ordering::Relaxed)
    }

    /// Whether the sync loop replies in time.
    pub async fn is_alive(&self) -> bool {
        let asked = async {
            let (ask, answer) = oneshot::channel();
            self.questions.send(ask).await.is_ok() && answer.await.is_ok()
        };
        tokio::time::timeout(REPLY_TIMEOUT, asked).await.unwrap_or(false)
    }
}

impl Heartbeat {
    /// Replies to the next probe: one more branch of the sync loop's `select`. Cancel safe.
    pub async fn beat(&mut self) {
        match self.0.recv().await {
            // The receiver may have timed out.
            Some(question) => drop(question.send(())),
            None => std::future::pending().await,
        }
    }
}

/// A check's name, and its error, if it fails.
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

/// `ok`, or the response of Kubernetes' components when a check fails: status 500 and one line per check.
fn report(checks: &[Check]) -> (StatusCode, String) {
    if checks.iter().all(|(_, verdict)| verdict.is_ok()) {
        return (StatusCode::OK, "ok".to_owned());
    }
    let mut text = String::new();
    for (name, verdict) in checks {
        // Writing to a String cannot fail.
        let _ = match verdict {
            Ok(()) => writeln!(text, "[+]{name} ok"),
            Err(why) => writeln!(text, "[-]{name} failed: {why}"),
        };
    }
    (StatusCode::INTERNAL_SERVER_ERROR, text)
}
