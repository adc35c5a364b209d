//! The way to the source of bundles: requests with a channel for the result, few at once.

use std::path::PathBuf;

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use limpet_server::bundle::{BundleRefusal, Bundles};
use limpet_wire::bundle::BundleDocument;
use tokio::sync::{mpsc, oneshot};

use super::refusal::Refusal;

/// Queued requests; further senders wait.
const INBOX_SIZE: usize = 4;

/// How a bundle comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// By `limpet bundle apply`: its caller gets the answer.
    Hand,
    Directory,
    /// From the URL.
    Url,
    /// From the registry.
    Registry,
}

type Answer = oneshot::Sender<Result<BundleDocument, Refusal>>;

#[derive(Debug)]
pub(super) enum Request {
    /// A file that may be a bundle.
    Apply {
        path: PathBuf,
        way: Way,
        answer: Answer,
    },
    /// What of a way is refused now, in place of what was before.
    Report {
        way: Way,
        refused: Vec<(PathBuf, String)>,
    },
    /// A place was reached, or not, and when it is asked again.
    Reached {
        way: Way,
        problem: Option<(String, Timestamp)>,
    },
    ResetSerial {
        answer: Answer,
    },
}

/// The source's receiver.
#[derive(Debug)]
pub struct BundleInbox(mpsc::Receiver<Request>);

impl BundleInbox {
    /// The next request; `None` once nobody can send one.
    pub(super) async fn recv(&mut self) -> Option<Request> {
        self.0.recv().await
    }
}

/// Hands bundles to the source. Clones share the channel.
#[derive(Debug, Clone)]
pub struct BundleIntake(mpsc::Sender<Request>);

/// A way to a source of bundles.
pub fn intake() -> (BundleIntake, BundleInbox) {
    let (requests, inbox) = mpsc::channel(INBOX_SIZE);
    (BundleIntake(requests), BundleInbox(inbox))
}

impl BundleIntake {
    /// Hands over a file, and waits until it has taken effect.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub(super) async fn offer(&self, path: PathBuf, way: Way) -> Result<BundleDocument, Refusal> {
        self.ask(|answer| Request::Apply { path, way, answer }).await
    }

    /// Shows which files of a way are refused, and why.
    pub(super) async fn report(&self, way: Way, refused: Vec<(PathBuf, String)>) {
        // Without a source there is nobody to show it to.
        let _ = self.0.send(Request::Report { way, refused }).await;
    }

    /// The place of a way has answered.
    pub(super) async fn reached(&self, way: Way) {
        let _ = self.0.send(Request::Reached { way, problem: None }).await;
    }

    /// The place of a way has no bundle now; it is asked again at `retry`.
    pub(super) async fn unreachable(&self, way: Way, reason: String, retry: Timestamp) {
        let _ = self.0.send(Request::Reached { way, problem: Some((reason, retry)) }).await;
    }

    async fn ask(&self, request: impl FnOnce(Answer) -> Request) -> Result<BundleDocument, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.0.send(request(answer)).await.map_err(|_| Refusal::Stopping)?;
        answered.await.map_err(|_| Refusal::Stopping)?
    }
}

impl Bundles for BundleIntake {
    fn apply(&self, path: PathBuf) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>> {
        self.offer(path, Way::Hand).map(|result| result.map_err(BundleRefusal::from)).boxed()
    }

    fn reset_serial(&self) -> BoxFuture<'_, Result<BundleDocument, BundleRefusal>> {
        let reset = self.ask(|answer| Request::ResetSerial { answer });
        reset.map(|result| result.map_err(BundleRefusal::from)).boxed()
    }
}
