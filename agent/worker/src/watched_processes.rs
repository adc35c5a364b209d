//! The init processes of running containers. BPF programs follow them, and their additions and removals show when a
//! burst of starts or exits has ended.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use limpet_model::container::ContainerId;

/// A burst ends after this time without a change.
const BURST_END: Duration = Duration::from_secs(3);
/// A burst ends at the latest after this time: a container in CrashLoopBackOff must not prolong it forever.
const MAX_BURST: Duration = Duration::from_secs(60);
/// A node is idle after this time without a change: work that follows a start or an exit, such as status, events and
/// volumes, has ended too.
const IDLE_AFTER: Duration = Duration::from_secs(60);
/// It counts as idle at the latest after this time.
const MAX_IDLE: Duration = Duration::from_secs(600);

/// The init processes of containers, by pid.
#[derive(Debug, Default)]
pub struct WatchedProcesses {
    processes: Mutex<HashMap<u32, ContainerId>>,
    changed: watch::Sender<()>,
}

impl WatchedProcesses {
    /// Follows a container's init process.
    pub fn add(&self, pid: u32, id: ContainerId) {
        self.lock().insert(pid, id);
        self.changed.send_replace(());
    }

    /// Stops following it.
    pub fn remove(&self, pid: u32) {
        self.lock().remove(&pid);
        self.changed.send_replace(());
    }

    /// The processes that are followed.
    pub fn processes(&self) -> HashMap<u32, ContainerId> {
        self.lock().clone()
    }

    /// Whether no process is followed.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Reports every change from now on, and one immediately, because an earlier one may have been missed.
    pub fn changes(&self) -> Changes {
        let mut changed = self.changed.subscribe();
        changed.mark_changed();
        Changes(changed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u32, ContainerId>> {
        self.processes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notifications of added or removed processes.
#[derive(Debug)]
pub struct Changes(watch::Receiver<()>);

impl Changes {
    /// Resolves at the next change; never, once the [`WatchedProcesses`] is gone. Cancel safe.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Resolves when the next burst of changes has ended. Cancel safe, except for a burst that has begun.
    pub async fn settled(&mut self) {
        self.burst(BURST_END, MAX_BURST).await;
    }

    /// Resolves a minute after the last change or, if changes do not end, after ten minutes of them. Cancel safe,
    /// except for a burst that has begun.
    pub async fn idle(&mut self) {
        self.burst(IDLE_AFTER, MAX_IDLE).await;
    }

    async fn burst(&mut self, quiet: Duration, max: Duration) {
        self.next().await;
        let latest = Instant::now() + max;
        while timeout_at(latest.min(Instant::now() + quiet), self.next()).await.is_ok() {}
    }
}

#[cfg(test)]
mod tests {
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn a_burst_is_over_after_a_quiet_period() {
        let followed = WatchedProcesses::default();
        let mut changes = followed.changes();
        changes.next().await;
        let mut burst = std::pin::pin!(changes.burst(Duration::from_millis(1), MAX_BURST));
        assert!(poll!(burst.as_mut()).is_pending(), "without a change there is none");
        followed.add(7, ContainerId::new("c"));
        assert!(poll!(burst.as_mut()).is_pending(), "the next may follow");
        burst.await;
    }

    #[tokio::test]
    async fn a_container_that_restarts_repeatedly_does_not_prolong_the_burst_forever() {
        let followed = WatchedProcesses::default();
        let mut changes = followed.changes();
        let starts = async {
            loop {
                followed.add(7, ContainerId::new("c"));
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            () = changes.burst(MAX_BURST, Duration::from_millis(20)) => {}
            () = starts => {}
        }
    }
}
