//! Health: is the agent alive (its loop answers), and is it ready (containerd is there, the sources have spoken)?
//!
//! The sync loop has no tick to watch for, so liveness asks it: a question travels through the loop's own
//! `select`, and a loop that hangs does not answer.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use tokio::sync::{mpsc, oneshot};

use super::{ServerState, SourceView};

/// How long the loop may take to answer. kubelet's own check allows minutes because its loop runs by a timer.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// The agent's latches. Clones share them.
#[derive(Debug, Clone)]
pub struct Health {
    containerd: Arc<AtomicBool>,
    questions: mpsc::Sender<oneshot::Sender<()>>,
}

/// The sync loop's end: it answers, and so shows that it lives.
#[derive(Debug)]
pub struct Heartbeat(mpsc::Receiver<oneshot::Sender<()>>);

impl Health {
    /// The latches, and the end that the sync loop holds.
    pub fn new() -> (Self, Heartbeat) {
        let (questions, answers) = mpsc::channel(4);
        (Self { containerd: Arc::default(), questions }, Heartbeat(answers))
    }

    /// Whether containerd's event stream is open.
    pub fn set_containerd(&self, connected: bool) {
        self.containerd.store(connected, Ordering::Relaxed);
    }

    /// Whether the sync loop answers in time.
    pub async fn is_alive(&self) -> bool {
        let asked = async {
            let (ask, answer) = oneshot::channel();
            self.questions.send(ask).await.is_ok() && answer.await.is_ok()
        };
        tokio::time::timeout(ANSWER_WITHIN, asked).await.unwrap_or(false)
    }
}

impl Heartbeat {
    /// Answers the next question: one more branch of the sync loop's `select`. Safe to cancel.
    pub async fn beat(&mut self) {
        match self.0.recv().await {
            // The one who asked may have given up.
            Some(question) => drop(question.send(())),
            None => std::future::pending().await,
        }
    }
}

/// One check's name and what is wrong, if anything.
type Check = (String, Result<(), String>);

pub(super) async fn ping() -> &'static str {
    "ok"
}

pub(super) async fn sync_loop(State(state): State<ServerState>) -> (StatusCode, String) {
    report(&[sync_loop_check(&state).await])
}

pub(super) async fn healthz(State(state): State<ServerState>) -> (StatusCode, String) {
    report(&[("ping".to_owned(), Ok(())), sync_loop_check(&state).await])
}

pub(super) async fn readyz(State(state): State<ServerState>) -> (StatusCode, String) {
    let containerd = state.health.containerd.load(Ordering::Relaxed);
    let mut checks = vec![sync_loop_check(&state).await];
    checks.push(("containerd".to_owned(), containerd.then_some(()).ok_or_else(|| "not connected".to_owned())));
    checks.extend(state.sources.views().iter().map(source_check));
    report(&checks)
}

async fn sync_loop_check(state: &ServerState) -> Check {
    let answers = state.health.is_alive().await;
    let verdict = answers.then_some(()).ok_or_else(|| format!("no answer in {} s", ANSWER_WITHIN.as_secs()));
    ("syncloop".to_owned(), verdict)
}

/// A source is ready once it has spoken; an outage later does not take that back.
fn source_check(source: &SourceView) -> Check {
    let verdict = source.snapshot.ready.then_some(()).ok_or_else(|| format!("has not read {} yet", source.place));
    (format!("source {}", source.kind), verdict)
}

/// `ok`, or what Kubernetes' components answer when a check fails: status 500 and one line a check.
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
