//! Health: whether the agent is alive (its sync loop replies), and whether containerd is connected.
//!
//! The sync loop has no periodic tick to check, so the liveness probe sends a request through the loop's own
//! `select`, to which a hanging loop does not reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// The deadline for the sync loop's reply. kubelet's own check allows minutes, because its loop runs on a timer.
pub const REPLY_TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, Clone)]
pub struct Health {
    containerd: Arc<AtomicBool>,
    questions: mpsc::Sender<oneshot::Sender<()>>,
}

/// The sync loop's side, which replies to liveness probes.
#[derive(Debug)]
pub struct Heartbeat(mpsc::Receiver<oneshot::Sender<()>>);

impl Health {
    /// The flags, and the side for the sync loop.
    pub fn new() -> (Self, Heartbeat) {
        let (questions, answers) = mpsc::channel(4);
        (Self { containerd: Arc::default(), questions }, Heartbeat(answers))
    }

    /// Records whether containerd's event stream is open.
    pub fn set_containerd(&self, connected: bool) {
        self.containerd.store(connected, Ordering::Relaxed);
    }

    /// Whether containerd's event stream is open.
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
    /// Replies to the next probe, as a branch of the sync loop's `select`. Cancel safe.
    pub async fn beat(&mut self) {
        match self.0.recv().await {
            // The prober may have timed out.
            Some(question) => drop(question.send(())),
            None => std::future::pending().await,
        }
    }
}
