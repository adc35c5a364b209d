//! Removing orphans and forgetting pulls, beside the supervisor's loop.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use limpet_core::backoff;
use limpet_model::container::ContainerId;
use limpet_model::pod::PodUid;
use limpet_model::pod::images::normalized_images;
use tokio::task::{JoinError, JoinSet};

use super::Supervisor;

/// A job that has ended.
#[derive(Debug)]
pub(super) enum Cleaned {
    /// The pods that have something on disk or in the kernel.
    Found(HashSet<PodUid>),
    /// What that pod left is removed, as far as it could be; whether that is all.
    Removed(PodUid, bool),
    /// Those that were not removed are due again.
    Due,
    /// Whether all that broken-off pulls left is released.
    PullsForgotten(bool),
}

/// The clean-up of one start of the agent.
#[derive(Debug, Default)]
pub(super) struct Cleanup {
    jobs: JoinSet<Cleaned>,
    /// The search for orphans was begun: once a start.
    begun: bool,
    /// The search has ended, and orphans are known.
    searched: bool,
    /// Pods whose orphans are still to be removed, or are being removed: none of that UID may start.
    orphans: Vec<PodUid>,
    /// Pods whose orphans were not removed: a driver or a plugin failed.
    failed: Vec<PodUid>,
    /// The pause before they are tried again.
    pause: Duration,
    /// Pulls may have been interrupted for images that no pod needs any more.
    pulls_are_stale: bool,
    /// Something of them was not released at the last try.
    not_forgotten: bool,
    forgetting: bool,
}

impl Cleanup {
    /// The next job that has ended; never while there is none. Cancel safe.
    pub(super) async fn next(&mut self) -> Result<Cleaned, JoinError> {
        match self.jobs.join_next().await {
            Some(done) => done,
            None => std::future::pending().await,
        }
    }

    /// Pods changed or ended: `unfinished` pulls may have been for images that no pod needs any more.
    pub(super) fn pods_changed(&mut self, unfinished: bool) {
        self.pulls_are_stale |= unfinished || self.not_forgotten;
    }

    /// Whether what a pod of that UID left is being removed.
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

    /// Takes in what a job has done.
    pub(super) fn cleaned(&mut self, done: Result<Cleaned, JoinError>) {
        match done {
            Ok(Cleaned::Found(found)) => {
                self.cleanup.searched = true;
                self.remove_orphans(found);
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
                // A pod of that UID may have been waiting.
                self.start_waiting();
            }
            Ok(Cleaned::PullsForgotten(all)) => {
                self.cleanup.forgetting = false;
                // Tried again when pods change or end.
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

    fn remove_orphans(&mut self, found: impl IntoIterator<Item = PodUid>) {
        // One that is being deleted and has no worker ended while the agent was away.
        let wanted = self.desired.pods.values().filter(|record| !record.is_deleting());
        let desired: HashSet<&PodUid> = wanted.map(|record| &record.uid).collect();
        let is_orphan =
            |uid: &PodUid| !desired.contains(uid) && !self.routes.contains_key(&ContainerId::pod_digits(uid));
        let mut orphans: Vec<PodUid> = found.into_iter().filter(is_orphan).collect();
        orphans.sort();
        self.cleanup.orphans = orphans;
        self.remove_next_orphan();
    }

    /// One at a time: a CNI plugin that hangs delays other orphans, and no pod. Those that failed follow after a pause.
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
