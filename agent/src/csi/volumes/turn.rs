//! One volume's calls come one after the other.

use std::sync::{Arc, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{CsiVolumes, VolumeKey, key};
use crate::csi::files::VolumeData;

/// The right to have a driver called about a volume.
pub(super) struct Turn<'a> {
    of: &'a CsiVolumes,
    key: VolumeKey,
    permit: Option<OwnedSemaphorePermit>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        drop(self.permit.take());
        let mut gates = self.of.gates.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever waits has the gate as well.
        if gates.get(&self.key).is_some_and(|gate| Arc::strong_count(gate) == 1) {
            gates.remove(&self.key);
        }
    }
}

impl CsiVolumes {
    /// Waits until no other call of a driver about the volume is under way.
    pub(super) async fn turn(&self, data: &VolumeData) -> Turn<'_> {
        let gate = {
            let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(gates.entry(key(data)).or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        // It is never closed.
        let permit = gate.acquire_owned().await.ok();
        Turn { of: self, key: key(data), permit }
    }
}
