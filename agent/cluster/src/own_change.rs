//! Coordinates the agent's own change of an object that it also watches: the watch ends before the change and begins
//! again after it, so that the server does not send the object back.

use tokio::sync::watch;

/// The progress of a change.
#[derive(Debug, Clone, Default, PartialEq)]
enum Phase {
    /// No change is being made.
    #[default]
    Idle,
    /// The request is in flight.
    InProgress,
    /// The change has led to this version, with no other change since the version that the request required.
    Made(String),
}

/// The side that changes the object.
#[derive(Debug)]
pub(super) struct OwnChanges(watch::Sender<Phase>);

/// The side that watches the object.
#[derive(Debug, Clone)]
pub(super) struct OwnChangesSeen(watch::Receiver<Phase>);

/// A change in progress. If it is dropped, the change may not have been made.
#[derive(Debug)]
pub(super) struct InProgress<'a>(&'a OwnChanges);

/// Creates both sides.
pub(super) fn own_changes() -> (OwnChanges, OwnChangesSeen) {
    let (sender, receiver) = watch::channel(Phase::Idle);
    (OwnChanges(sender), OwnChangesSeen(receiver))
}

impl OwnChanges {
    /// Ends the watch until the change is made.
    pub(super) fn begin(&self) -> InProgress<'_> {
        self.0.send_replace(Phase::InProgress);
        InProgress(self)
    }
}

impl InProgress<'_> {
    /// Lets the watch begin again at this version. The request must have required the preceding version.
    pub(super) fn made(self, version: String) {
        self.0.0.send_replace(Phase::Made(version));
    }
}

impl Drop for InProgress<'_> {
    fn drop(&mut self) {
        self.0.0.send_if_modified(|phase| {
            let is_open = *phase == Phase::InProgress;
            if is_open {
                *phase = Phase::Idle;
            }
            is_open
        });
    }
}

impl OwnChangesSeen {
    /// Resolves once a change begins. Cancel safe.
    pub(super) async fn begins(&mut self) {
        if self.0.wait_for(|phase| *phase == Phase::InProgress).await.is_err() {
            std::future::pending().await
        }
    }

    /// Whether a change is in progress, or has ended since the last call of [`end`](Self::end).
    pub(super) fn is_new(&self) -> bool {
        self.0.has_changed().unwrap_or(false) || *self.0.borrow() == Phase::InProgress
    }

    /// Waits until no change is in progress. Returns the version of a change that has ended since
    /// [`begins`](Self::begins) or the last call.
    pub(super) async fn end(&mut self) -> Option<String> {
        if !self.is_new() {
            return None;
        }
        match &*self.0.wait_for(|phase| *phase != Phase::InProgress).await.ok()? {
            Phase::Made(version) => Some(version.clone()),
            Phase::Idle | Phase::InProgress => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_version_is_taken_once_and_a_change_that_fails_has_none() {
        let (changes, mut seen) = own_changes();
        assert!(seen.begins().now_or_never().is_none());
        assert_eq!(seen.end().now_or_never(), Some(None));
        let change = changes.begin();
        assert!(seen.begins().now_or_never().is_some());
        assert_eq!(seen.end().now_or_never(), None, "it is in progress");
        change.made("7".to_owned());
        assert_eq!(seen.end().now_or_never(), Some(Some("7".to_owned())));
        assert_eq!(seen.end().now_or_never(), Some(None), "taken before");
        drop(changes.begin());
        assert_eq!(seen.end().now_or_never(), Some(None));
        changes.begin().made("9".to_owned());
        assert_eq!(seen.end().now_or_never(), Some(Some("9".to_owned())), "of a change whose beginning was missed");
        drop(changes);
        assert!(seen.begins().now_or_never().is_none());
        assert_eq!(seen.end().now_or_never(), Some(None));
    }
}
