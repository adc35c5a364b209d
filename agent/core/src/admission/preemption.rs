//! Which pods end so that a critical one can start, as kubelet chooses them (`pkg/kubelet/preemption`). Part of
//! [`super`].

use std::cmp::Ordering;
use std::sync::Arc;

use limpet_model::pod::PodRecord;
use limpet_model::pod::qos::QosClass;
use limpet_model::pod::requests::{Requests, Resource};

use crate::eviction::rank::is_static;
use crate::priority::{is_critical, known_priority};

/// A pod that may end, and what its end frees.
pub type Candidate = (Arc<PodRecord>, Requests);

/// How much of each requested resource is missing.
pub(super) fn missing(requested: &Requests, used: &Requests, allocatable: &Requests) -> Requests {
    let mut missing = used.clone().plus(requested).without(allocatable);
    for resource in missing.resources().filter(|resource| requested[*resource].is_zero()) {
        missing[resource] = requested[resource];
    }
    missing
}

/// Whether `pod` may end `other` in order to start, whatever their sources (kubelet's `Preemptable`). A critical pod
/// may end one that is not critical, and of two critical pods whose priorities are known, the one with the higher
/// priority may.
pub fn preempts(pod: &PodRecord, other: &PodRecord) -> bool {
    let outranks = || known_priority(pod).zip(known_priority(other)).is_some_and(|(priority, other)| priority > other);
    may_preempt(pod) && (!may_preempt(other) || outranks())
}

/// Whether others may be ended for the pod at all: it comes from a manifest, or its priority makes it critical.
pub fn may_preempt(pod: &PodRecord) -> bool {
    is_static(pod) || is_critical(pod)
}

/// The pods to end so that `pod` fits: as few as possible, those without guaranteed resources first, and of two
/// equally good ones the one that requests less. Empty if their end would not suffice, or if nothing is short.
/// `others` is what each pod has, including its place among the node's pods, which counts like any other resource.
pub fn victims(
    pod: &PodRecord,
    requested: &Requests,
    others: impl Iterator<Item = Candidate>,
    used: &Requests,
    allocatable: &Requests,
) -> Vec<Arc<PodRecord>> {
    let missing = missing(requested, used, allocatable);
    let (mut best_effort, mut burstable, mut guaranteed) = (Vec::new(), Vec::new(), Vec::new());
    for other in others.filter(|(other, _)| preempts(pod, other)) {
        let list = match other.0.qos_class {
            QosClass::BestEffort => &mut best_effort,
            QosClass::Burstable => &mut burstable,
            QosClass::Guaranteed => &mut guaranteed,
        };
        list.push(other);
    }
    let without = |lists: [&[Candidate]; 2]| missing.clone().without(&freed(lists.into_iter().flatten()));
    let lesser = without([&best_effort, &burstable]);
    if missing.is_zero() || !lesser.clone().without(&freed(&guaranteed)).is_zero() {
        return Vec::new();
    }
    let guaranteed = nearest(guaranteed, lesser);
    let burstable = nearest(burstable, without([&best_effort, &guaranteed]));
    let best_effort = nearest(best_effort, without([&burstable, &guaranteed]));
    best_effort.into_iter().chain(burstable).chain(guaranteed).map(|(other, _)| other).collect()
}

fn freed<'a>(candidates: impl IntoIterator<Item = &'a Candidate>) -> Requests {
    candidates.into_iter().fold(Requests::default(), |sum, (_, requests)| sum.plus(requests))
}

/// Candidates whose end frees what is `missing`. Each is the one that comes closest to what is still missing.
fn nearest(mut candidates: Vec<Candidate>, mut missing: Requests) -> Vec<Candidate> {
    let mut chosen = Vec::new();
    while !missing.is_zero() {
        let best =
            (0..candidates.len()).min_by(|index, other| compare(&candidates[*index], &candidates[*other], &missing));
        let Some(best) = best else { break };
        let candidate = candidates.remove(best);
        missing = missing.without(&candidate.1);
        chosen.push(candidate);
    }
    chosen
}

/// The closer candidate comes first, then the smaller one; of equal ones the apiserver's, whose controller makes
/// another.
fn compare(candidate: &Candidate, other: &Candidate, missing: &Requests) -> Ordering {
    let rest = |(pod, requests): &Candidate| {
        (requests[Resource::Memory], requests[Resource::Cpu], !pod.source.traits().is_replaced, pod.key.clone())
    };
    distance(missing, &candidate.1)
        .total_cmp(&distance(missing, &other.1))
        .then_with(|| rest(candidate).cmp(&rest(other)))
}

/// How much of what is missing would remain after the end of a pod: for each resource the remaining fraction,
/// squared, and added up.
fn distance(missing: &Requests, requests: &Requests) -> f64 {
    let part = |resource: Resource| {
        let number = |amount| resource.number(amount) as f64;
        let left = number(missing[resource]) - number(requests[resource]);
        if left > 0.0 { (left / number(missing[resource])).powi(2) } else { 0.0 }
    };
    missing.resources().map(part).sum()
}
