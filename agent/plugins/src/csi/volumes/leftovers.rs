//! Volumes that no pod uses any more: those of deleted pods, those that earlier agents have left staged, and those
//! that their driver failed to unstage. They are retried when a driver registers, and after a pause.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio_util::sync::CancellationToken;

use super::{CsiError, CsiVolumes, VolumeKey, key};
use crate::csi::files::VolumeData;
use crate::csi::layout::Layout;
use limpet_core::backoff;
use limpet_host::blocking::{self, DEADLINE};
use limpet_model::object::csi::unique_name;
use limpet_model::pod::PodUid;

/// Pending cleanup.
#[derive(Debug, Default)]
pub(super) struct Leftovers {
    /// The deleted pods that still have volumes.
    pods: BTreeSet<PodUid>,
    /// The staged volumes that no pod uses.
    staged: BTreeMap<VolumeKey, VolumeData>,
}

impl Leftovers {
    fn is_empty(&self) -> bool {
        self.pods.is_empty() && self.staged.is_empty()
    }
}

impl CsiVolumes {
    fn leftovers(&self) -> MutexGuard<'_, Leftovers> {
        self.leftovers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tears down the volumes of a deleted pod once their drivers are registered.
    pub fn tear_down_later(&self, uid: PodUid) {
        self.leftovers().pods.insert(uid);
        // Its driver may have registered since the last attempt.
        self.more.notify_one();
    }

    /// Unstages an unused volume later, because its driver has failed to.
    pub(super) fn unstage_later(&self, data: &VolumeData) {
        self.leftovers().staged.insert(key(data), data.clone());
        self.more.notify_one();
    }

    /// Cleans up whenever a driver registers and with kubelet's pauses, until `stop`. Volumes staged earlier are
    /// listed in the Node's status immediately.
    pub async fn run(&self, stop: CancellationToken) {
        let mut changes = self.drivers.subscribe();
        self.find_staged().await;
        let mut pause = Duration::ZERO;
        loop {
            changes.borrow_and_update();
            let left = std::mem::take(&mut *self.leftovers());
            self.clear(left).await;
            let waits = !self.leftovers().is_empty();
            pause = if waits { backoff::next(pause) } else { Duration::ZERO };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => match changed {
                    Ok(()) => pause = Duration::ZERO,
                    Err(_) => return,
                },
                () = self.more.notified() => {}
                () = tokio::time::sleep(pause), if waits => {}
            }
        }
    }

    /// Cleans up what is possible of `left`, concurrently; the rest stays.
    async fn clear(&self, left: Leftovers) {
        let staged = left.staged.into_iter().map(|(key, data)| async move {
            if let Err(error) = self.unstage_unused(&data).await {
                tracing::warn!(%error, "unstaging an unused volume failed; retried later");
                self.leftovers().staged.insert(key, data);
            }
        });
        let pods = left.pods.into_iter().map(|uid| async move {
            if let Err(error) = self.tear_down(&uid).await {
                tracing::warn!(%uid, %error, "unpublishing the volumes of a removed pod failed; retried later");
                self.leftovers().pods.insert(uid);
            }
        });
        tokio::join!(join_all(staged), join_all(pods));
    }

    async fn unstage_unused(&self, data: &VolumeData) -> Result<(), CsiError> {
        let driver = self.drivers.get(&data.driver).map_err(CsiError::NoDriver)?;
        let _guard = self.locks.lock(key(data)).await;
        self.unstage(&driver, data).await
    }

    /// Finds staged volumes by their records. All count as in use until they are unstaged; those that no pod uses are
    /// left to clean up.
    async fn find_staged(&self) {
        let layout = self.layout.clone();
        let search = blocking::run(self.layout.staged.clone(), DEADLINE, move |_| {
            let staged = layout.all_staged()?.into_iter();
            io::Result::Ok(staged.map(|data| (layout.is_used(&data).unwrap_or(true), data)).collect())
        });
        let staged: Vec<(bool, VolumeData)> = search.await.and_then(|staged| staged).unwrap_or_else(|error| {
            tracing::warn!(%error, "searching for volumes staged earlier failed");
            Vec::new()
        });
        join_all(staged.into_iter().map(|(used, data)| async move {
            // The pod that has it may have ended since, and its volume may have been unstaged.
            let _guard = self.locks.lock(key(&data)).await;
            if !self.on_files(&data, "look for", Layout::is_known).await.unwrap_or(true) {
                return;
            }
            let name = unique_name(&data.driver, &data.handle);
            let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
            held.entry(key(&data)).or_insert_with(|| self.in_use.begin(name));
            if !used {
                self.leftovers().staged.insert(key(&data), data.clone());
            }
        }))
        .await;
    }
}
