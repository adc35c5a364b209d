//! What the node has given to pods, what it keeps for critical ones while others end for them, and whether there is
//! room for one more. Part of [`super`].

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_core::admission::{self, Candidate, Refusal, may_preempt, preempts};
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::{Fingerprint, PodKey, PodRecord, PodUid};

use super::Claims;

/// What the node has given, and to whom what becomes free goes.
#[derive(Debug, Default)]
pub(super) struct Allocations {
    pub(super) claims: BTreeMap<PodKey, Claims>,
    /// The pods that have a place, each in its newest version.
    pub(super) places: BTreeMap<PodKey, Arc<PodRecord>>,
    /// What critical pods wait for while others end for them.
    reserved: BTreeMap<PodKey, Reservation>,
    /// How many reservations there were.
    reservations: u64,
    /// The versions that were ordered to end for a critical pod and still have what they had.
    leaving: BTreeMap<PodKey, (PodUid, Fingerprint)>,
}

/// What for something is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The pod is to start with it.
    Start,
    /// The pod runs, and a resize adds it to what the pod has.
    Growth,
}

/// What one critical pod waits for.
#[derive(Debug)]
struct Reservation {
    record: Arc<PodRecord>,
    requests: Requests,
    purpose: Purpose,
    /// Its place among the reservations: the lowest first.
    since: u64,
}

/// Whether there is room for a pod.
#[derive(Debug)]
pub(super) enum Room {
    /// There is.
    Free,
    /// There will be, once `victims` and those that end already are gone.
    Soon { refusal: Refusal, victims: Vec<Arc<PodRecord>> },
    /// There is not.
    Short(Refusal),
}

impl Allocations {
    /// Whether a place is free for a pod that has nothing yet. Asked for each of the pods that wait for one, which may be
    /// ten thousand.
    pub(super) fn has_place(&self, record: &PodRecord, place: &Requests, capacity: &Requests) -> Result<(), Refusal> {
        let mut taken = Requests::default();
        taken[Resource::Pods] = Amount::from_units(self.places.len() as u64);
        admission::fits(place, &taken.plus(&self.promised(record)), capacity)
    }

    /// Whether some pod with a place may end for this one.
    pub(super) fn outranks_any(&self, record: &PodRecord) -> bool {
        may_preempt(record) && self.places.values().any(|other| preempts(record, other))
    }

    /// Whether there is room for `requested` beside what the other pods have, and what those that come before this one
    /// wait for.
    pub(super) fn room(&self, record: &PodRecord, requested: &Requests, capacity: &Requests) -> Room {
        let used = self.used(&record.key);
        let promised = used.clone().plus(&self.promised(record));
        let Err(refusal) = admission::fits(requested, &promised, capacity) else { return Room::Free };
        // What runs is what explains it, as far as it does.
        let refusal = admission::fits(requested, &used, capacity).err().unwrap_or(refusal);
        match self.victims(record, requested, promised, capacity) {
            Some(victims) => Room::Soon { refusal, victims },
            None => Room::Short(refusal),
        }
    }

    /// The pods that have to end, beside those that end already, so that `requested` fits beside `used`. `None`: it
    /// does not fit whichever pods end.
    pub(super) fn victims(
        &self,
        record: &PodRecord,
        requested: &Requests,
        used: Requests,
        capacity: &Requests,
    ) -> Option<Vec<Arc<PodRecord>>> {
        if !may_preempt(record) {
            return None;
        }
        let (leaving, staying): (Vec<Candidate>, Vec<Candidate>) =
            self.others(&record.key).partition(|(other, _)| self.is_leaving(other));
        let left = leaving.iter().fold(used, |left, (_, requests)| left.without(requests));
        if admission::fits(requested, &left, capacity).is_ok() {
            return Some(Vec::new());
        }
        let victims = admission::victims(record, requested, staying.into_iter(), &left, capacity);
        (!victims.is_empty()).then_some(victims)
    }

    /// What the other pods have.
    pub(super) fn used(&self, key: &PodKey) -> Requests {
        self.others(key).fold(Requests::default(), |sum, (_, requests)| sum.plus(&requests))
    }

    /// Every other pod that has something, in its newest version, and what it has.
    fn others(&self, key: &PodKey) -> impl Iterator<Item = Candidate> {
        let with_claims = self.claims.iter().map(|(other, claims)| match self.places.get(other) {
            Some(record) => (other, record, claims.requests.clone().plus(&one_place())),
            None => (other, &claims.record, claims.requests.clone()),
        });
        let without = self.places.iter().filter(|(other, _)| !self.claims.contains_key(*other));
        let all = with_claims.chain(without.map(|(other, record)| (other, record, one_place())));
        all.filter(move |(other, ..)| *other != key).map(|(_, record, requests)| (Arc::clone(record), requests))
    }

    /// What the pods that come before this one wait for: those that may have it end, and of those that may not, and
    /// that it may not have end either, those that began to wait before it.
    fn promised(&self, record: &PodRecord) -> Requests {
        let since = self.reserved.get(&record.key).map_or(u64::MAX, |own| own.since);
        let is_before = |theirs: &Reservation| {
            preempts(&theirs.record, record) || (theirs.since < since && !preempts(record, &theirs.record))
        };
        let before = self.reserved.iter().filter(|(key, theirs)| **key != record.key && is_before(theirs));
        before.fold(Requests::default(), |sum, (_, theirs)| sum.plus(&theirs.requests))
    }

    /// What each pod waits to start with that may have this one end. Resizes have an order of their own.
    pub(super) fn reserved_over<'a>(
        &'a self,
        record: &'a PodRecord,
    ) -> impl Iterator<Item = (&'a PodKey, &'a Requests)> {
        let is_over = |theirs: &Reservation| theirs.purpose == Purpose::Start && preempts(&theirs.record, record);
        let over = self.reserved.iter().filter(move |(_, theirs)| is_over(theirs));
        over.map(|(key, theirs)| (key, &theirs.requests))
    }

    /// Keeps `requests` for the pod once they are free. It keeps its turn. Returns whether something else was kept
    /// before.
    pub(super) fn reserve(&mut self, record: &Arc<PodRecord>, requests: Requests, purpose: Purpose) -> bool {
        self.reservations += 1;
        let before = self.reserved.get(&record.key);
        let since = before.map_or(self.reservations, |own| own.since);
        let kept_other = before.is_some_and(|own| own.requests != requests);
        self.reserved.insert(record.key.clone(), Reservation { record: Arc::clone(record), requests, purpose, since });
        kept_other
    }

    /// Nothing is kept for the pod any more for this purpose. Returns whether something was.
    pub(super) fn forget_reserved(&mut self, key: &PodKey, purpose: Purpose) -> bool {
        self.reserved.get(key).is_some_and(|own| own.purpose == purpose) && self.reserved.remove(key).is_some()
    }

    /// These pods are ordered to end.
    pub(super) fn order(&mut self, victims: &[Arc<PodRecord>]) {
        let version = |victim: &Arc<PodRecord>| (victim.key.clone(), (victim.uid.clone(), victim.fingerprint));
        self.leaving.extend(victims.iter().map(version));
    }

    /// The pod was not ordered to end after all, or has nothing any more. Whether it was ordered to.
    pub(super) fn forget_order(&mut self, key: &PodKey) -> bool {
        self.leaving.remove(key).is_some()
    }

    fn is_leaving(&self, record: &PodRecord) -> bool {
        self.leaving.get(&record.key).is_some_and(|(uid, version)| (uid, version) == (&record.uid, &record.fingerprint))
    }
}

/// A place among the node's pods.
pub(super) fn one_place() -> Requests {
    let mut place = Requests::default();
    place[Resource::Pods] = Amount::from_units(1);
    place
}
