//! `volumesInUse` in the Node's status: the volumes that a controller must not detach from the node.
//!
//! As in kubelet, a volume is listed there before the node checks whether it is attached, and until it is unstaged or
//! detached, because a controller waits for this before it detaches the volume.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

/// The number of uses of each volume, by its name in the Node's status.
#[derive(Debug, Clone, Default)]
pub struct VolumesInUse(Arc<watch::Sender<BTreeMap<String, usize>>>);

/// A use, which ends when it is dropped.
#[derive(Debug)]
pub struct InUse {
    uses: VolumesInUse,
    name: String,
}

impl VolumesInUse {
    /// Marks the volume as in use.
    pub fn begin(&self, name: String) -> InUse {
        self.0.send_modify(|uses| *uses.entry(name.clone()).or_default() += 1);
        InUse { uses: self.clone(), name }
    }

    /// The names of the volumes in use.
    pub fn names(&self) -> BTreeSet<String> {
        self.0.borrow().keys().cloned().collect()
    }

    /// Reports changes of the volumes in use.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, usize>> {
        self.0.subscribe()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.uses.0.send_modify(|uses| {
            if let Some(count) = uses.get_mut(&self.name) {
                *count -= 1;
                if *count == 0 {
                    uses.remove(&self.name);
                }
            }
        });
    }
}
