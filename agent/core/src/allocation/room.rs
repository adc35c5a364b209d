//! Whether there is room for one pod more, and what the node keeps for critical pods while others end for them. Part of
//! [`super`].

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::{Requests, Resource};
use limpet_model::pod::{PodKey, PodRecord};

use super::Allocations;
use crate::admission::{self, Candidate, Refusal, may_preempt, preempts};

/// For what something is kept.
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

/// What critical pods wait for while others end for them.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    by_pod: BTreeMap<PodKey, Reservation>,
    /// How many there were.
    count: u64,
}

/// Whether there is room for a pod.
#[derive(Debug)]
pub(super) enum Room {
    Free,
    /// There will be, once `victims` and those that end already are gone.
    Soon {
        refusal: Refusal,
        victims: Vec<Arc<PodRecord>>,
    },
    Short(Refusal),
}

impl Reservations {
    /// What the pods that come before this one wait for: those that may have it end, and of those that may not, and
    /// that it may not have end either, those that began to wait before it.
    pub(super) fn promised(&self, record: &PodRecord) -> Requests {
        let since = self.by_pod.get(&record.key).map_or(u64::MAX, |reservation| reservation.since);
        let is_before = |theirs: &Reservation| {
            preempts(&theirs.record, record) || (theirs.since < since && !preempts(record, &theirs.record))
        };
        let before = self.by_pod.iter().filter(|(key, theirs)| **key != record.key && is_before(theirs));
        before.fold(Requests::default(), |sum, (_, theirs)| sum.plus(&theirs.requests))
    }

    /// What each pod waits to start with that may have this one end. Resizes have an order of their own.
    pub(super) fn over<'a>(&'a self, record: &'a PodRecord) -> impl Iterator<Item = (&'a PodKey, &'a Requests)> {
        let is_over = |theirs: &Reservation| theirs.purpose == Purpose::Start && preempts(&theirs.record, record);
        let over = self.by_pod.iter().filter(move |(_, theirs)| is_over(theirs));
        over.map(|(key, theirs)| (key, &theirs.requests))
    }

    /// Keeps `requests` for the pod once they are free. It keeps its turn. Returns whether something else was kept
    /// before.
    pub(super) fn reserve(&mut self, record: &Arc<PodRecord>, requests: Requests, purpose: Purpose) -> bool {
        self.count += 1;
        let before = self.by_pod.get(&record.key);
        let since = before.map_or(self.count, |reservation| reservation.since);
        let kept_other = before.is_some_and(|reservation| reservation.requests != requests);
        self.by_pod.insert(record.key.clone(), Reservation { record: Arc::clone(record), requests, purpose, since });
        kept_other
    }
}

impl Allocations {
    /// Whether there is room for `requested` beside what the other pods have, and what those that come before this one
    /// wait for.
    pub(super) fn room(&self, record: &PodRecord, requested: &Requests) -> Room {
        let used = self.used(&record.key);
        let promised = used.clone().plus(&self.reservations.promised(record));
        let Err(refusal) = admission::fits(requested, &promised, &self.capacity) else { return Room::Free };
        // What runs is what explains it, as far as it does.
        let refusal = admission::fits(requested, &used, &self.capacity).err().unwrap_or(refusal);
        match self.victims(record, requested, promised, &self.capacity) {
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
        let assigned = self.assigned.iter().map(|(other, assigned)| match self.slots.get(other) {
            Some(record) => (other, record, assigned.requests.clone().plus(&one_slot())),
            None => (other, &assigned.record, assigned.requests.clone()),
        });
        let slots_alone = self.slots.iter().filter(|(other, _)| !self.assigned.contains_key(*other));
        let all = assigned.chain(slots_alone.map(|(other, record)| (other, record, one_slot())));
        all.filter(move |(other, ..)| *other != key).map(|(_, record, requests)| (Arc::clone(record), requests))
    }

    /// Nothing is kept for the pod any more for this purpose.
    pub(super) fn forget_reserved(&mut self, key: &PodKey, purpose: Purpose) {
        let reserved = &mut self.reservations.by_pod;
        if reserved.get(key).is_some_and(|reservation| reservation.purpose == purpose) {
            reserved.remove(key);
            self.freed = true;
        }
    }

    /// These pods are ordered to end.
    pub(super) fn order(&mut self, victims: &[Arc<PodRecord>]) {
        let version = |victim: &Arc<PodRecord>| (victim.key.clone(), (victim.uid.clone(), victim.fingerprint));
        self.leaving.extend(victims.iter().map(version));
    }

    fn is_leaving(&self, record: &PodRecord) -> bool {
        self.leaving.get(&record.key).is_some_and(|(uid, version)| (uid, version) == (&record.uid, &record.fingerprint))
    }
}

/// A slot among the node's pods.
pub(super) fn one_slot() -> Requests {
    let mut slot = Requests::default();
    slot[Resource::Pods] = Amount::from_units(1);
    slot
}
