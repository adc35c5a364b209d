//! What must hold of the places among a node's pods once all is at rest: none is free while a pod waits for one, and no pod
//! waits that may have another end.

use std::collections::BTreeSet;
use std::sync::Arc;

use limpet_core::admission::{OUT_OF_PODS, preempts};
use limpet_core::status::observed::ObservedPod;
use limpet_model::pod::PodUid;

/// How many pods there may be, if a seed limits that: few enough that some wait.
pub(crate) fn limit(rng: &mut fastrand::Rng) -> Option<usize> {
    rng.bool().then(|| if rng.u32(0..3) == 0 { 2 } else { 1 })
}

/// The pods that wait for a place.
pub(crate) fn waiting<'a>(pods: impl Iterator<Item = &'a Arc<ObservedPod>>) -> BTreeSet<PodUid> {
    pods.filter(|pod| waits(pod)).map(|pod| pod.record.uid.clone()).collect()
}

/// How the places are wrongly taken.
pub(crate) fn contradictions<'a>(most: Option<usize>, pods: impl Iterator<Item = &'a Arc<ObservedPod>>) -> Vec<String> {
    let (waiting, others): (Vec<_>, Vec<_>) = pods.partition(|pod| waits(pod));
    let has_place = |pod: &&&Arc<ObservedPod>| matches!(pod.status.phase.as_deref(), Some("Pending" | "Running"));
    let taken: Vec<_> = others.iter().filter(has_place).collect();
    let mut violations = Vec::new();
    for pod in waiting {
        if most.is_none_or(|most| taken.len() < most) {
            violations.push(format!("{} waits for a place, and {} of {most:?} are taken", pod.record.key, taken.len()));
        }
        for other in taken.iter().filter(|other| preempts(&pod.record, &other.record)) {
            violations
                .push(format!("{} waits for a place, and {} does not end for it", pod.record.key, other.record.key));
        }
    }
    violations
}

fn waits(pod: &ObservedPod) -> bool {
    pod.status.reason.as_deref() == Some(OUT_OF_PODS)
}
