//! What the push source has saved, so that the store can save it again after damage.

use std::sync::{Arc, Mutex, PoisonError};

use imbl::OrdMap;
use jiff::Timestamp;

use limpet_core::last_good::LastGood;
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{PodKey, PodRecord};
use limpet_store::{Changes, SavedCopy};

/// Every pod and object that is saved. A clone is cheap and shares the records.
#[derive(Debug, Clone, Default)]
pub(super) struct Records {
    /// A pod that is being deleted is not among them: it must not come back after a restart.
    pub(super) pods: OrdMap<PodKey, Arc<PodRecord>>,
    pub(super) objects: OrdMap<ObjectKey, Arc<ObjectRecord>>,
}

/// The newest [`Records`], shared with the store.
#[derive(Debug, Default)]
pub(super) struct Saved(Mutex<Records>);

impl Saved {
    pub(super) fn set(&self, records: Records) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = records;
    }
}

impl SavedCopy for Saved {
    fn everything(&self) -> Changes {
        let Records { pods, objects } = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let pods = pods.iter().map(|(key, pod)| (key.to_string(), Arc::clone(&pod.manifest)));
        let objects = objects.iter().map(|(key, object)| (key.to_string(), object.manifest()));
        let mut changes = Changes::default();
        for (name, manifest) in pods.chain(objects) {
            changes.put(Arc::from(name), Some(LastGood::new(vec![manifest], Timestamp::now())));
        }
        changes
    }
}
