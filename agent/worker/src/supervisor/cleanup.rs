//! Removes orphans and forgets pulls, beside the supervisor's loop.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use limpet_core::backoff;
use limpet_model::container::ContainerId;
use limpet_model::pod::PodUid;
use limpet_model::pod::images::normalized_images;
use tokio::task::{JoinError, JoinSet};

use super::Supervisor;

/// A finished job.
#[derive(Debug)]
pub(super) enum Cleaned {
    /// The pods with files on disk or kernel resources.
    Found(HashSet<PodUid>),
    /// The removal of a pod's remains, and whether it was complete.
    Removed(PodUid, bool),
    /// Failed removals are due again.
    Due,
    /// Whether everything that interrupted pulls left was released.
    PullsForgotten(bool),
}

/// The cleanup after one start of the agent.
#[derive(Debug, Default)]
pub(super) struct Cleanup {
    jobs: JoinSet<Cleaned>,
    /// Whether the search for orphans was begun, which happens once per start.
    begun: bool,
    /// Whether the search has ended, so orphans are known.
    searched: bool,
    /// Pods whose orphans are to be removed, or are being removed: no pod with such a UID may start.
    orphans: Vec<PodUid>,
    /// Pods whose orphans were not removed because a driver or a plugin failed.
    failed: Vec<PodUid>,
    /// The pause before they are retried.
    pause: Duration,
    /// Whether interrupted pulls may concern images that no pod needs any more.
    pulls_are_stale: bool,
    /// Whether the last attempt did not release all of them.
    not_forgotten: bool,
    forgetting: bool,
}

impl Cleanup {
    /// The next finished job; never resolves while there is none. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Cleaned, JoinError> {
        match self.jobs.join_next().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// Records that pods changed or ended: `unfinished` pulls may concern images that no pod needs any more.
    pub(super) fn pods_changed(&mut self, unfinished: bool) {
        self.pulls_are_stale |= unfinished || self.not_forgotten;
    }

    /// Whether the remains of a pod with this UID are being removed.
    pub(super) fn is_removing(&self, uid: &PodUid) -> bool {
        self.orphans.contains(uid)
    }
}

impl Supervisor {
    /// Begins what is due: the search for orphans, once every source is ready, and forgetting pulls.
    pub(super) fn clean_up(&mut self) {
        if !self.cleanup.begun && self.adopted && self.provisional.all_ready(&self.desired) {
            self.cleanup.begun = true;
            self.cleanup.pulls_are_stale = true;
            let executor = Arc::clone(&self.context.executor);
            self.cleanup.jobs.spawn(async move { Cleaned::Found(executor.pods_with_traces().await) });
        }
        if self.cleanup.searched && self.cleanup.pulls_are_stale && !self.cleanup.forgetting {
            (self.cleanup.pulls_are_stale, self.cleanup.forgetting) = (false, true);
            let wanted: HashSet<String> =
                self.desired.pods.values().flat_map(|record| normalized_images(record)).collect();
            let executor = Arc::clone(&self.context.executor);
            self.cleanup.jobs.spawn(async move { Cleaned::PullsForgotten(executor.forget_pulls(wanted).await) });
        }
    }

    /// Applies the result of a job.
    pub(super) fn cleaned(&mut self, done: Result<Cleaned, JoinError>) {
        match done {
            Ok(Cleaned::Found(uids)) => {
                self.cleanup.searched = true;
                self.remove_orphans(uids);
            }
            Ok(Cleaned::Due) => {
                let failed = std::mem::take(&mut self.cleanup.failed);
                self.remove_orphans(failed);
            }
            Ok(Cleaned::Removed(uid, all)) => {
                self.cleanup.orphans.retain(|orphan| *orphan != uid);
                if !all {
                    self.cleanup.failed.push(uid);
                }
                self.remove_next_orphan();
                // A pod with this UID may have been waiting.
                self.start_waiting();
            }
            Ok(Cleaned::PullsForgotten(all)) => {
                self.cleanup.forgetting = false;
                // Retried when pods change or end.
                self.cleanup.not_forgotten = !all;
            }
            Err(error) => {
                tracing::error!(%error, "a clean-up job panicked; orphans stay until the next start of the agent");
                // No pod waits for a job that is gone.
                self.cleanup.orphans.clear();
                self.cleanup.forgetting = false;
                self.start_waiting();
            }
        }
    }

    fn remove_orphans(&mut self, uids: impl IntoIterator<Item = PodUid>) {
        // A pod that is being deleted and has no worker ended while the agent was away.
        let wanted = self.desired.pods.values().filter(|record| !record.is_deleting());
        let desired: HashSet<&PodUid> = wanted.map(|record| &record.uid).collect();
        let is_orphan =
            |uid: &PodUid| !desired.contains(uid) && !self.routes.contains_key(&ContainerId::pod_digits(uid));
        let mut orphans: Vec<PodUid> = uids.into_iter().filter(is_orphan).collect();
        orphans.sort();
        self.cleanup.orphans = orphans;
        self.remove_next_orphan();
    }

    /// Removes one orphan at a time: a CNI plugin that hangs delays other orphans, but no pod. Failed ones are
    /// retried after a pause.
    fn remove_next_orphan(&mut self) {
        let Some(uid) = self.cleanup.orphans.first().cloned() else { return self.try_failed_later() };
        let executor = Arc::clone(&self.context.executor);
        self.cleanup.jobs.spawn(async move {
            let all = executor.remove_orphan(uid.clone()).await;
            Cleaned::Removed(uid, all)
        });
    }

    fn try_failed_later(&mut self) {
        if self.cleanup.failed.is_empty() {
            return;
        }
        self.cleanup.pause = backoff::next(self.cleanup.pause);
        let pause = self.cleanup.pause;
        self.cleanup.jobs.spawn(async move {
            tokio::time::sleep(pause).await;
            Cleaned::Due
        });
    }
}
