//! Whether the rest of a bundle is needed, by its first bytes: a node outside of a stage does not download what it does not take.

use std::path::PathBuf;
use std::sync::Arc;

use limpet_bundle::PublicKeys;
use limpet_bundle::announcement::{ANNOUNCEMENT_BYTES, Announcement, Foreseen};
use limpet_bundle::decision::AppliedBundle;
use limpet_core::node_place::NodePlace;
use limpet_host::blocking::{self, DEADLINE};
use tokio::sync::watch;

/// What the decision needs.
#[derive(Debug)]
pub(super) struct Foresight {
    /// The files of the keys that may sign.
    pub(super) keys: Vec<PathBuf>,
    pub(super) node_name: Arc<str>,
    /// What the node has.
    pub(super) applied: watch::Receiver<Option<Option<AppliedBundle>>>,
}

/// A bundle that is not downloaded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NotNeeded {
    /// It is for other nodes first: its title, and for how many percent of them.
    Outside(String, u8),
    /// It is older than what the node has: its title.
    Older(String),
}

/// The first bytes of a bundle that is being downloaded.
#[derive(Debug)]
pub(super) struct FirstBytes<'a> {
    foresight: &'a Foresight,
    /// `None`: they have been looked at.
    bytes: Option<Vec<u8>>,
}

impl Foresight {
    /// Looks at the first bytes of a download that begins at `offset`.
    pub(super) fn begin(&self, offset: u64) -> FirstBytes<'_> {
        FirstBytes { foresight: self, bytes: (offset == 0).then(Vec::new) }
    }

    async fn judge(&self, first: Vec<u8>) -> Option<NotNeeded> {
        let keys = self.keys.clone();
        let place = keys.first()?.clone();
        let read = blocking::run(place, DEADLINE, move |_| Announcement::read(&first, &PublicKeys::read(&keys).ok()?));
        // What cannot be read here is refused, with the reason, once it is there.
        let announcement = read.await.ok().flatten()?;
        let applied = self.applied.borrow().clone().flatten();
        match announcement.foresee(applied.as_ref(), NodePlace::new(&self.node_name)) {
            Foreseen::Open => None,
            Foreseen::Outside(percent) => Some(NotNeeded::Outside(announcement.title, percent)),
            Foreseen::Replayed => Some(NotNeeded::Older(announcement.title)),
        }
    }
}

impl FirstBytes<'_> {
    /// Takes the next bytes; says once whether the rest is not needed.
    pub(super) async fn take(&mut self, next: &[u8]) -> Option<NotNeeded> {
        let bytes = self.bytes.as_mut()?;
        let missing = ANNOUNCEMENT_BYTES.saturating_sub(bytes.len());
        bytes.extend_from_slice(next.get(..missing.min(next.len())).unwrap_or_default());
        let whole = self.bytes.take_if(|bytes| bytes.len() >= ANNOUNCEMENT_BYTES)?;
        self.foresight.judge(whole).await
    }
}
