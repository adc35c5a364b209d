//! The way to the source of bundles: requests with a channel for the result, few at once.

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use limpet_bundle::decision::AppliedBundle;
use limpet_model::source::SourceKind;
use limpet_updates::{Phase, Subject, UpdateGate};
use limpet_wire::bundle::BundleDocument;
use tokio::sync::{mpsc, oneshot, watch};

use super::refusal::Refusal;
use super::upload::{UploadStream, Uploads};

/// Queued requests; further senders wait.
const INBOX_SIZE: usize = 4;

/// The way by which a bundle comes. It decides who learns of a refusal, and whether the bundle waits for a window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// By `limpet bundle apply`: its caller gets the answer.
    Hand,
    /// By `limpet bundle apply --window`: it waits as if it had come by itself.
    HandInWindow,
    Directory,
    Url,
    Registry,
}

impl Way {
    /// Whether a person applies it, who has chosen the bundle and the node.
    pub(super) fn is_by_hand(self) -> bool {
        matches!(self, Self::Hand | Self::HandInWindow)
    }
}

type Answer = oneshot::Sender<Result<BundleDocument, Refusal>>;

#[derive(Debug)]
pub(super) enum Request {
    /// A file that may be a bundle.
    Apply {
        path: PathBuf,
        /// What messages call it.
        shown: PathBuf,
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
    /// A bundle is for other nodes first: its title, and for how many percent of them.
    PassBy {
        bundle: String,
        percent: u8,
    },
    ResetSerial {
        answer: Answer,
    },
}

/// Where the source receives requests, and tells the senders which bundle is in effect.
#[derive(Debug)]
pub struct BundleInbox {
    requests: mpsc::Receiver<Request>,
    applied: watch::Sender<Option<Option<AppliedBundle>>>,
}

impl BundleInbox {
    /// The next request; `None` once nobody can send one.
    pub(super) async fn recv(&mut self) -> Option<Request> {
        self.requests.recv().await
    }

    /// Tells which bundle the node has.
    pub(super) fn tell(&self, applied: Option<&AppliedBundle>) {
        self.applied.send_if_modified(|known| {
            let is_news = known.as_ref().is_none_or(|known| known.as_ref() != applied);
            if is_news {
                *known = Some(applied.cloned());
            }
            is_news
        });
    }
}

/// Offers bundles to the source. Clones share the channel.
#[derive(Debug, Clone)]
pub struct BundleIntake {
    requests: mpsc::Sender<Request>,
    /// `None`: what the node has was not read yet.
    applied: watch::Receiver<Option<Option<AppliedBundle>>>,
    updates: UpdateGate,
    uploads: Uploads,
}

/// A way to a source of bundles, through the gate of updates. What is sent to it, with at most `max_size` bytes, is kept in
/// `directory`, which is that of the source.
pub fn intake(updates: UpdateGate, directory: PathBuf, max_size: u64) -> (BundleIntake, BundleInbox) {
    let (requests, inbox) = mpsc::channel(INBOX_SIZE);
    let (tell, applied) = watch::channel(None);
    let uploads = Uploads::new(directory, max_size);
    (BundleIntake { requests, applied, updates, uploads }, BundleInbox { requests: inbox, applied: tell })
}

impl BundleIntake {
    /// Waits until the source has read what the node has, and made the node's key if it was missing. Cancel safe.
    pub async fn wait_restored(&self) {
        // Without a source there is nobody to wait for.
        drop(self.applied.clone().wait_for(Option::is_some).await);
    }

    /// Whether the node has a bundle, once that is known. Cancel safe.
    pub(super) async fn has_bundle(&self) -> bool {
        let mut applied = self.applied.clone();
        // Without a source there is nobody to wait for.
        applied.wait_for(Option::is_some).await.is_ok_and(|known| matches!(*known, Some(Some(_))))
    }

    /// The bundle that the node has, once that is known.
    pub fn applied(&self) -> watch::Receiver<Option<Option<AppliedBundle>>> {
        self.applied.clone()
    }

    /// Does `work` while bundles may be downloaded: it begins anew in the next window if one closes.
    pub(super) async fn while_downloading<F: Future>(&self, place: &str, work: impl FnMut() -> F) -> F::Output {
        let subject = subject(format!("the newest bundle of {place}"), !self.has_bundle().await);
        self.updates.within(Phase::Download, &subject, work).await
    }

    /// Resolves when a bundle that was held may take effect. Cancel safe.
    pub(super) async fn may_apply(&self, bundle: &str) {
        let subject = subject(bundle.to_owned(), !self.has_bundle().await);
        self.updates.pass(Phase::Apply, &subject).await;
    }

    /// Offers a file, again and again as long as its bundle is held, and waits until it has taken effect.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub(super) async fn offer_until_taken(
        &self,
        path: &Path,
        shown: &Path,
        way: Way,
    ) -> Result<BundleDocument, Refusal> {
        loop {
            match self.offer(path.to_owned(), shown.to_owned(), way).await {
                Err(Refusal::Held { bundle, .. }) => self.may_apply(&bundle).await,
                answered => return answered,
            }
        }
    }

    /// Offers a file that messages call `shown`, and waits until it has taken effect.
    ///
    /// # Errors
    /// It is refused, and nothing has changed.
    pub(super) async fn offer(&self, path: PathBuf, shown: PathBuf, way: Way) -> Result<BundleDocument, Refusal> {
        self.ask(|answer| Request::Apply { path, shown, way, answer }).await
    }

    /// Shows which files of a way are refused, and why.
    pub(super) async fn report(&self, way: Way, refused: Vec<(PathBuf, String)>) {
        // Without a source there is nobody to show it to.
        let _ = self.requests.send(Request::Report { way, refused }).await;
    }

    /// Shows that a bundle is for other nodes first.
    pub(super) async fn pass_by(&self, bundle: String, percent: u8) {
        let _ = self.requests.send(Request::PassBy { bundle, percent }).await;
    }

    /// The place of a way has answered.
    pub(super) async fn reached(&self, way: Way) {
        let _ = self.requests.send(Request::Reached { way, problem: None }).await;
    }

    /// The place of a way has no bundle now; it is asked again at `retry`.
    pub(super) async fn unreachable(&self, way: Way, reason: String, retry: Timestamp) {
        let _ = self.requests.send(Request::Reached { way, problem: Some((reason, retry)) }).await;
    }

    async fn ask(&self, request: impl FnOnce(Answer) -> Request) -> Result<BundleDocument, Refusal> {
        let (answer, answered) = oneshot::channel();
        self.requests.send(request(answer)).await.map_err(|_| Refusal::Stopping)?;
        answered.await.map_err(|_| Refusal::Stopping)?
    }
}

/// A bundle, for the gate of updates. The first one of a node waits for no window.
pub(super) fn subject(what: String, is_first: bool) -> Subject {
    Subject { what, source: Some(SourceKind::Bundle), is_first }
}

impl BundleIntake {
    /// Receives a bundle that its sender calls `name`, lets it take effect in place of the one before, `in_window` only when
    /// updates may, and returns when it is on disk.
    ///
    /// # Errors
    ///
    /// The bundle does not take effect.
    pub async fn apply(&self, bytes: UploadStream, name: &Path, in_window: bool) -> Result<BundleDocument, Refusal> {
        // By then the source has removed what an earlier agent has left.
        self.has_bundle().await;
        let upload = self.uploads.receive(bytes, name).await?;
        let way = if in_window { Way::HandInWindow } else { Way::Hand };
        self.offer_until_taken(upload.path(), name, way).await
    }

    /// Lets the next bundle have any serial.
    ///
    /// # Errors
    ///
    /// There is no bundle, or the source does not answer.
    pub async fn reset_serial(&self) -> Result<BundleDocument, Refusal> {
        self.ask(|answer| Request::ResetSerial { answer }).await
    }
}
