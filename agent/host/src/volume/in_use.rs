//! `volumesInUse` of the Node's status: the volumes that a controller must not detach from the node.
//!
//! As with kubelet a volume is named there before the node looks whether it is attached, and until it is unstaged or detached:
//! a controller waits before it detaches it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::watch;

/// How often each volume is in use, by its name in the Node's status.
#[derive(Debug, Clone, Default)]
pub struct VolumesInUse(Arc<watch::Sender<BTreeMap<String, usize>>>);

/// One use, until it is dropped.
#[derive(Debug)]
pub struct InUse {
    of: VolumesInUse,
    name: String,
}

impl VolumesInUse {
    /// The volume is in use from now on.
    pub fn begin(&self, name: String) -> InUse {
        self.0.send_modify(|uses| *uses.entry(name.clone()).or_default() += 1);
        InUse { of: self.clone(), name }
    }

    /// Their names.
    pub fn names(&self) -> BTreeSet<String> {
        self.0.borrow().keys().cloned().collect()
    }

    /// Changes with them.
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<String, usize>> {
        self.0.subscribe()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.of.0.send_modify(|uses| {
            if let Some(count) = uses.get_mut(&self.name) {
                *count -= 1;
                if *count == 0 {
                    uses.remove(&self.name);
                }
            }
        });
    }
}
