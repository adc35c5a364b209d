//! Resizes of pods that run: one whose requests do not fit beside those of the other pods waits until they do, as under
//! kubelet. Part of [`super`].

use std::sync::{Arc, MutexGuard, PoisonError};

use limpet_core::admission::{self, PendingResize, Refusal};
use limpet_model::pod::requests::Requests;

use super::claim::Claim;
use super::hold::{Hold, uses_node};
use super::{BTreeMap, NodeClaims, PodKey, PodRecord, Purpose};
use limpet_core::state::PodState;

/// A resize for which the node has no room now.
#[derive(Debug)]
pub struct NoRoom {
    /// What is not there.
    pub refusal: Refusal,
    /// The pods that have to end now to make room for it.
    pub victims: Vec<Arc<PodRecord>>,
}

impl NodeClaims {
    fn resizes(&self) -> MutexGuard<'_, (BTreeMap<PodKey, PendingResize>, u64)> {
        self.resizes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pod waits for no room any more. What it was to get is free for those after it.
    pub(super) fn forget_resize(&self, key: &PodKey) {
        let had_reserved = self.given().forget_reserved(key, Purpose::Growth);
        if self.resizes().0.remove(key).is_some() || had_reserved {
            self.wake_all();
        }
    }

    /// Gives the pod the requests of `desired`, if they fit beside those of the others and of the resizes before it. What
    /// others end for is kept for it: they would take it again at once.
    fn resize(&self, key: &PodKey, desired: &Arc<PodRecord>) -> Result<(), NoRoom> {
        let wanted = self.wanted(desired);
        let mut given = self.given();
        let grows = given.claims.get(key).is_none_or(|has| wanted.requests_more(has));
        if let Some(allocatable) = self.offer.allocatable.as_ref().filter(|_| grows) {
            let owned = |(key, requests): (&PodKey, &Requests)| (key.clone(), requests.clone());
            let claims = given.claims.iter().map(|(key, claims)| (key, &claims.requests));
            let claimed: BTreeMap<PodKey, Requests> = claims.chain(given.reserved_over(desired)).map(owned).collect();
            let mut resizes = self.resizes();
            let (pending, begun) = &mut *resizes;
            *begun += u64::from(!pending.contains_key(key));
            let since = pending.get(key).map_or(*begun, |resize| resize.since);
            pending.insert(key.clone(), PendingResize { desired: Arc::clone(desired), since });
            if let Err(refusal) = admission::resize_fits(key, pending, claimed, allocatable) {
                let used = given.used(key);
                let victims = given.victims(desired, &wanted.requests, used, allocatable);
                let keeps_other = match &victims {
                    Some(victims) => {
                        let had = given.claims.get(key).map(|has| has.requests.clone()).unwrap_or_default();
                        given.order(victims);
                        given.reserve(desired, wanted.requests.without(&had), Purpose::Growth)
                    }
                    // It would not fit whichever pods end.
                    None => given.forget_reserved(key, Purpose::Growth),
                };
                if keeps_other {
                    self.wake_all();
                }
                return Err(NoRoom { refusal, victims: victims.unwrap_or_default() });
            }
        }
        if let Some(has) = given.claims.get_mut(key) {
            (has.requests, has.record) = (wanted.requests, wanted.record);
        }
        Ok(())
    }
}

impl Hold {
    /// Whether a pod that the node has taken may have the requests of `desired` now; it has them then. Otherwise it
    /// waits for them: see [`Hold::freed`]. A pod that waits to begin waits with all it needs.
    ///
    /// # Errors
    /// They do not fit.
    pub fn resize(&mut self, node: &Arc<NodeClaims>, pod: &PodState, desired: &Arc<PodRecord>) -> Result<(), NoRoom> {
        if !uses_node(pod) && self.settled.is_none() {
            return Ok(());
        }
        let key = &pod.record.key;
        // Before the look: a change after it is not missed.
        let room = node.wait(key);
        let result = node.resize(key, desired);
        match &result {
            Ok(()) => {
                self.room = None;
                node.forget_resize(key);
            }
            Err(_) => {
                self.room = Some(room);
                self.claim.get_or_insert_with(|| Claim { of: Arc::clone(node), key: key.clone() });
            }
        }
        result
    }

    /// The pod waits for no room any more.
    pub fn forget_resize(&mut self) {
        if self.room.take().is_some()
            && let Some(claim) = &self.claim
        {
            claim.of.forget_resize(&claim.key);
        }
    }
}
