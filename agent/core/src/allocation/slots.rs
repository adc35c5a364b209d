//! How many pods the node may have at a time: `maxPods`. A pod has its slot until it has ended, as with kubelet, where
//! pods that have finished are not counted. For a critical pod beyond the number a lesser one ends.

use std::sync::Arc;

use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::{PodKey, PodRecord};

use super::{Allocations, Assignment, Check, Purpose, Refused, one_slot};
use crate::admission::{self, Refusal, may_preempt, preempts};
use crate::device_plugins::Inventory;

/// What a pod gets when its worker begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotGrant {
    /// It has a slot.
    Slot,
    /// The next slot that becomes free is kept for it, and its worker has lesser pods end.
    Promise,
}

impl Allocations {
    /// Gives a pod a slot, or the promise of one. A pod that may have others end for its slot is checked for all else
    /// before one does.
    ///
    /// # Errors
    /// All slots are taken, and no pod may end for this one, or that would not be enough.
    pub fn enter(&mut self, record: &Arc<PodRecord>, plugins: &Inventory) -> Result<SlotGrant, Refused> {
        let key = &record.key;
        let Err(refusal) = self.has_slot(record) else {
            self.slots.insert(key.clone(), Arc::clone(record));
            return Ok(SlotGrant::Slot);
        };
        if !self.outranks_any(record) {
            return Err(Refused::new(refusal, record));
        }
        let wanted = Assignment::wanted(record, &self.offer, plugins);
        let check = Check { slot: true, node: true, exclusive: true, requests: true, devices: true };
        let Err(Refused { victims: Some(_), .. }) = self.check(key, &wanted, check, plugins) else {
            return Err(Refused::new(refusal, record));
        };
        self.reservations.reserve(record, self.counted(&wanted, check), Purpose::Start);
        Ok(SlotGrant::Promise)
    }

    /// Gives a pod that was found running its slot, even beyond the number.
    pub fn enter_running(&mut self, record: &Arc<PodRecord>) {
        self.slots.insert(record.key.clone(), Arc::clone(record));
    }

    /// What a slot counts as a resource: nothing if the number of pods is not limited.
    pub(super) fn slot(&self) -> Requests {
        self.offer.max_pods.map(|_| one_slot()).unwrap_or_default()
    }

    /// Records the newest version of a pod that has a slot, because another pod may be allowed to end this version.
    pub(super) fn renew_slot(&mut self, record: &Arc<PodRecord>) {
        if let Some(before) = self.slots.get_mut(&record.key).filter(|before| !Arc::ptr_eq(before, record)) {
            *before = Arc::clone(record);
            self.freed = true;
        }
    }

    /// Whether a slot is free for a pod that has nothing yet. This is asked for each pod that waits for one, of which
    /// there may be ten thousand.
    fn has_slot(&self, record: &PodRecord) -> Result<(), Refusal> {
        let mut taken = Requests::default();
        taken[Resource::Pods] = Amount::from_units(self.slots.len() as u64);
        admission::fits(&self.slot(), &taken.plus(&self.reservations.promised(record)), &self.capacity)
    }

    /// Whether some pod with a slot may end for this one.
    fn outranks_any(&self, record: &PodRecord) -> bool {
        may_preempt(record) && self.slots.values().any(|other| preempts(record, other))
    }

    /// Whether the pod has a slot.
    pub(super) fn is_in_slot(&self, key: &PodKey) -> bool {
        self.slots.contains_key(key)
    }
}
