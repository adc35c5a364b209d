//! How many pods the node may have at a time: `maxPods`. A pod has its place until it has ended, as with kubelet, where
//! pods that have finished are not counted. For a critical pod beyond the number a lesser one ends.

use std::sync::Arc;

use limpet_core::admission::Refusal;
use limpet_model::pod::requests::Requests;
use limpet_model::pod::{PodKey, PodRecord};

use super::claim::{Claim, Refused};
use super::{Check, NodeClaims, Purpose, one_place};

/// A pod's place, until this is dropped. More may be taken than there are: by pods that were found running.
#[derive(Debug)]
pub struct PodSlot {
    of: Arc<NodeClaims>,
    key: PodKey,
}

impl Drop for PodSlot {
    fn drop(&mut self) {
        // Before the wake-up: who is woken tries to take the place at once.
        let mut given = self.of.given();
        given.places.remove(&self.key);
        if !given.claims.contains_key(&self.key) {
            given.forget_order(&self.key);
        }
        drop(given);
        self.of.wake_all();
    }
}

/// With what a pod begins.
#[derive(Debug)]
pub enum Entry {
    /// It has a place.
    PodSlot(PodSlot),
    /// The next one that becomes free is kept for it: its worker has lesser pods end.
    Promise(Promise),
}

/// What is kept for a pod until this is dropped.
#[derive(Debug)]
pub struct Promise(pub(super) Claim);

impl NodeClaims {
    /// A place for a pod, or the promise of one.
    ///
    /// # Errors
    /// All places are taken, and no pod may end for this one, or that would not be enough.
    pub fn enter(self: &Arc<Self>, record: &Arc<PodRecord>) -> Result<Entry, Refusal> {
        let (key, place) = (&record.key, self.place());
        let mut given = self.given();
        let Err(refusal) = given.has_place(record, &place, &self.capacity) else {
            given.places.insert(key.clone(), Arc::clone(record));
            return Ok(Entry::PodSlot(self.place_of(key)));
        };
        let fits = || self.permits(record).is_ok() && self.selects(record).is_ok() && self.tolerates(record).is_ok();
        if !given.outranks_any(record) || !fits() {
            return Err(refusal);
        }
        let (wanted, check) =
            (self.wanted(record), Check { place: true, node: false, exclusive: true, requests: true, devices: true });
        let Err(Refused { victims: Some(_), .. }) = self.check(&given, key, &wanted, check) else {
            return Err(refusal);
        };
        given.reserve(record, self.counted(&wanted, check), Purpose::Start);
        Ok(Entry::Promise(Promise(Claim { of: Arc::clone(self), key: key.clone() })))
    }

    /// The place of a pod that was found running, also beyond the number.
    pub fn place_of_running(self: &Arc<Self>, record: &Arc<PodRecord>) -> Entry {
        self.given().places.insert(record.key.clone(), Arc::clone(record));
        Entry::PodSlot(self.place_of(&record.key))
    }

    /// What the pod has been entered with.
    pub(super) fn place_of(self: &Arc<Self>, key: &PodKey) -> PodSlot {
        PodSlot { of: Arc::clone(self), key: key.clone() }
    }

    /// What a place counts: nothing, where there is any number of them.
    pub(super) fn place(&self) -> Requests {
        self.offer.max_pods.map(|_| one_place()).unwrap_or_default()
    }

    /// The pod that has a place is of this version now. Another may be allowed to have it end.
    pub(super) fn renew_place(&self, record: &Arc<PodRecord>) {
        let mut given = self.given();
        let Some(before) = given.places.get_mut(&record.key).filter(|before| !Arc::ptr_eq(before, record)) else {
            return;
        };
        *before = Arc::clone(record);
        drop(given);
        self.wake_all();
    }

    /// Resolves once a place may be free, for one caller: one is free, or a critical pod may have another end now.
    /// Cancel safe.
    pub async fn place_freed(&self) {
        let mut devices = self.device_changes.lock().await;
        tokio::select! {
            biased;
            () = self.place_freed.notified() => {}
            Ok(()) = devices.changed() => {}
        }
    }
}
