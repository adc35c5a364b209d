//! The record of the bundle that the node has, for the store to save it again after damage.

use std::sync::{Arc, Mutex, PoisonError};

use super::RECORD;
use limpet_core::last_good::LastGood;
use limpet_store::{Changes, SavedCopy};

/// The record as it was saved; `None`: the node has no bundle.
#[derive(Debug, Default)]
pub(super) struct Saved(Mutex<Option<LastGood>>);

impl Saved {
    pub(super) fn set(&self, record: LastGood) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(record);
    }

    pub(super) fn get(&self) -> Option<LastGood> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl SavedCopy for Saved {
    fn everything(&self) -> Changes {
        let mut changes = Changes::default();
        if let Some(record) = self.get() {
            changes.put(Arc::from(RECORD), Some(record));
        }
        changes
    }
}
