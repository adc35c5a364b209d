//! Volumes that no pod has any more: of pods that are gone, and those that agents before this one have left staged. They wait for their
//! driver, and go when it registers.

use std::io;
use std::path::PathBuf;
use std::sync::PoisonError;

use tokio_util::sync::CancellationToken;

use super::{CsiError, CsiVolumes, key};
use crate::csi::files::{self, VolumeData};
use limpet_host::blocking::{self, DEADLINE};
use limpet_model::object::csi::unique_name;
use limpet_model::pod::PodUid;

impl CsiVolumes {
    /// Tears down the volumes of a pod that is gone, once their drivers are there.
    pub fn tear_down_later(&self, uid: PodUid, directory: PathBuf) {
        self.later.lock().unwrap_or_else(PoisonError::into_inner).insert(uid, directory);
    }

    /// Does what waits for a driver, whenever one registers, until `stop`: volumes of pods that are gone, and volumes that agents
    /// before this one have left staged and no pod has. What pods have is named in the Node's status at once.
    pub async fn run(&self, stop: CancellationToken) {
        let mut changes = self.drivers.subscribe();
        let mut left = self.find_staged().await;
        loop {
            changes.borrow_and_update();
            let mut staged = Vec::new();
            for data in std::mem::take(&mut left) {
                match self.unstage_unused(&data).await {
                    Ok(()) => {}
                    Err(error) => {
                        tracing::warn!(%error, "a volume that no pod has stays staged until its driver registers");
                        staged.push(data);
                    }
                }
            }
            left = staged;
            let later = std::mem::take(&mut *self.later.lock().unwrap_or_else(PoisonError::into_inner));
            for (uid, directory) in later {
                if let Err(error) = self.tear_down(&uid, directory.clone()).await {
                    tracing::warn!(%uid, %error, "the volumes of a pod that is gone stay until their driver registers");
                    self.tear_down_later(uid, directory);
                }
            }
            tokio::select! {
                () = stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn unstage_unused(&self, data: &VolumeData) -> Result<(), CsiError> {
        let driver = self.drivers.get(&data.driver).map_err(CsiError::NoDriver)?;
        let _turn = self.turn(data).await;
        self.unstage(&driver, data).await
    }

    /// What is staged, by what is written down; those that no pod has. All are in use until they are unstaged.
    async fn find_staged(&self) -> Vec<VolumeData> {
        let (pods, staged) = (self.pods.clone(), self.staged.clone());
        let found = blocking::run(staged.clone(), DEADLINE, move |_| {
            let mut found = Vec::new();
            for driver in files::directories(&staged)? {
                for directory in files::directories(&driver)? {
                    if let Ok(Some(data)) = files::read(&directory) {
                        let used = files::is_used(&pods, &data).unwrap_or(true);
                        found.push((data, used));
                    }
                }
            }
            io::Result::Ok(found)
        });
        let found = found.await.and_then(|found| found).unwrap_or_else(|error| {
            tracing::warn!(%error, "volumes that were staged before are not looked for");
            Vec::new()
        });
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        for (data, _) in &found {
            let name = unique_name(&data.driver, &data.handle);
            held.entry(key(data)).or_insert_with(|| self.in_use.begin(name));
        }
        found.into_iter().filter(|(_, used)| !used).map(|(data, _)| data).collect()
    }
}
