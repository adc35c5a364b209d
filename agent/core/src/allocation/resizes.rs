//! Resizes of pods that run: one whose requests do not fit beside those of the other pods waits until they do, as under
//! kubelet. Part of [`super`].

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::pod::requests::Requests;
use limpet_model::pod::{PodKey, PodRecord};

use super::{Allocations, Assignment, Purpose};
use crate::admission::{self, PendingResize, Refusal};
use crate::device_plugins::Inventory;
use crate::state::ResizeRefusal;

/// A pod that runs does not get the resources of a newer version.
#[derive(Debug)]
pub struct NotResized {
    /// Whether it may get them later.
    pub refusal: ResizeRefusal,
    /// What is in the way.
    pub cause: Refusal,
    /// The pods that have to end now to make room for it.
    pub victims: Vec<Arc<PodRecord>>,
}

impl NotResized {
    fn for_now(cause: Refusal, victims: Vec<Arc<PodRecord>>) -> Self {
        Self { refusal: ResizeRefusal::Deferred, cause, victims }
    }

    /// Whatever becomes free on the node.
    pub(super) fn infeasible(message: &str) -> Self {
        let refusal = ResizeRefusal::Infeasible;
        let cause = Refusal { reason: refusal.reason().to_owned(), message: message.to_owned() };
        Self { refusal, cause, victims: Vec::new() }
    }
}

/// The resizes that wait for room.
#[derive(Debug, Default)]
pub(super) struct Resizes {
    pending: BTreeMap<PodKey, PendingResize>,
    /// How many have begun to wait.
    begun: u64,
}

impl Resizes {
    /// The resize of the pod waits from now on, or keeps its turn.
    fn add(&mut self, key: &PodKey, desired: &Arc<PodRecord>) {
        self.begun += u64::from(!self.pending.contains_key(key));
        let since = self.pending.get(key).map_or(self.begun, |resize| resize.since);
        self.pending.insert(key.clone(), PendingResize { desired: Arc::clone(desired), since });
    }
}

impl Allocations {
    /// The pod waits for no room any more. What it was to get is free for those after it.
    pub(super) fn forget_resize(&mut self, key: &PodKey) {
        self.forget_reserved(key, Purpose::Growth);
        self.freed |= self.resizes.pending.remove(key).is_some();
    }

    /// Gives the pod the requests of `desired`, if they fit beside those of the others and of the resizes before it.
    pub(super) fn resize(
        &mut self,
        key: &PodKey,
        desired: &Arc<PodRecord>,
        plugins: &Inventory,
    ) -> Result<(), NotResized> {
        let wanted = Assignment::wanted(desired, &self.offer, plugins);
        let grows = self.assigned.get(key).is_none_or(|has| wanted.requests_more(has));
        if let Some(allocatable) = self.offer.allocatable.clone().filter(|_| grows) {
            let owned = |(key, requests): (&PodKey, &Requests)| (key.clone(), requests.clone());
            let assigned = self.assigned.iter().map(|(key, assigned)| (key, &assigned.requests));
            let taken = assigned.chain(self.reservations.over(desired)).map(owned).collect();
            self.resizes.add(key, desired);
            admission::resize_fits(key, &self.resizes.pending, taken, &allocatable)
                .map_err(|cause| self.defer_resize(key, &wanted, &allocatable, cause))?;
        }
        if let Some(has) = self.assigned.get_mut(key) {
            (has.requests, has.record) = (wanted.requests, wanted.record);
        }
        Ok(())
    }

    /// The resize waits. What others end for is kept for it: they would take it again at once.
    fn defer_resize(
        &mut self,
        key: &PodKey,
        wanted: &Assignment,
        allocatable: &Requests,
        cause: Refusal,
    ) -> NotResized {
        match self.victims(&wanted.record, &wanted.requests, self.used(key), allocatable) {
            Some(victims) => {
                let had = self.assigned.get(key).map(|has| has.requests.clone()).unwrap_or_default();
                self.order(&victims);
                let added = wanted.requests.clone().without(&had);
                self.freed |= self.reservations.reserve(&wanted.record, added, Purpose::Growth);
                NotResized::for_now(cause, victims)
            }
            None => {
                // It would not fit whichever pods end.
                self.forget_reserved(key, Purpose::Growth);
                NotResized::for_now(cause, Vec::new())
            }
        }
    }
}
