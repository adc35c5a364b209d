//! The first processes of the containers that run: whom the kernel's programs follow, and by whose coming and going one
//! sees when a burst of starts or ends is over.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use limpet_model::container::ContainerId;

/// A burst is over when nothing further has come for so long.
const QUIET: Duration = Duration::from_secs(3);
/// And at the latest after so long: one container that fails again and again does not draw it out for ever.
const BURST_AT_MOST: Duration = Duration::from_secs(60);

/// The first processes of containers, by number.
#[derive(Debug, Default)]
pub struct Followed {
    processes: Mutex<HashMap<u32, ContainerId>>,
    changed: watch::Sender<()>,
}

impl Followed {
    /// Follows a container's first process.
    pub fn add(&self, pid: u32, id: ContainerId) {
        self.lock().insert(pid, id);
        self.changed.send_replace(());
    }

    /// Does not any more.
    pub fn remove(&self, pid: u32) {
        self.lock().remove(&pid);
        self.changed.send_replace(());
    }

    /// Those there are now.
    pub fn processes(&self) -> HashMap<u32, ContainerId> {
        self.lock().clone()
    }

    /// There is none.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Tells of every change from now on, and of one before, which may have been missed.
    pub fn changes(&self) -> Changes {
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        Changes(changed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, ContainerId>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When processes came or went.
#[derive(Debug)]
pub struct Changes(watch::Receiver<()>);

impl Changes {
    /// Resolves at the next change; never, once nobody is left to make one. Cancel safe.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Resolves when the next burst of changes is over. Cancel safe but for the burst that has begun.
    pub async fn settled(&mut self) {
        self.burst(QUIET, BURST_AT_MOST).await;
    }

    async fn burst(&mut self, quiet: Duration, at_most: Duration) {
        self.next().await;
        let latest = Instant::now() + at_most;
        while timeout_at(latest.min(Instant::now() + quiet), self.next()).await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_burst_is_over_when_nothing_came_for_a_while() {
        let followed = Followed::default();
        let mut changes = followed.changes();
        changes.next().await;
        let mut burst = std::pin::pin!(changes.burst(Duration::from_millis(1), BURST_AT_MOST));
        assert!(poll!(burst.as_mut()).is_pending(), "without a change there is none");
        followed.add(7, ContainerId::new("c"));
        assert!(poll!(burst.as_mut()).is_pending(), "the next may follow");
        burst.await;
    }

    #[tokio::test]
    async fn one_that_starts_again_and_again_does_not_draw_it_out_for_ever() {
        let followed = Followed::default();
        let mut changes = followed.changes();
        let starts = async {
            loop {
                followed.add(7, ContainerId::new("c"));
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = changes.burst(BURST_AT_MOST, Duration::from_millis(20)) => {}
            () = starts => {}
        }
    }
}
