//! Limits corrections of statuses that another client overwrites: the first is immediate, further ones are as
//! frequent as kubelet's. Otherwise a writer that reacts immediately, such as kube-controller-manager while it
//! considers the node lost, would be answered endlessly.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use limpet_core::reported_pod::ReportStep;
use limpet_model::pod::PodKey;

/// The shortest time between two corrections of a pod, equal to kubelet's sync interval.
const MIN_CORRECTION_INTERVAL: Duration = Duration::from_secs(10);

/// Recent corrections.
#[derive(Debug, Default)]
pub(super) struct Corrections {
    made: BTreeMap<PodKey, Instant>,
    /// When the first correction that is held back is due.
    next: Option<Instant>,
}

impl Corrections {
    /// Begins a comparison of all pods at `now`.
    pub(super) fn begin(&mut self, now: Instant) {
        self.made.retain(|_, at| now < *at + MIN_CORRECTION_INTERVAL);
        self.next = None;
    }

    /// Whether the pod's step has to wait.
    pub(super) fn holds(&mut self, key: &PodKey, step: &ReportStep) -> bool {
        let Some(at) = self.made.get(key).filter(|_| matches!(step, ReportStep::Correct { .. })) else { return false };
        let due = *at + MIN_CORRECTION_INTERVAL;
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
        true
    }

    /// Records that the pod's step was done at `now`.
    pub(super) fn done(&mut self, key: &PodKey, step: &ReportStep, now: Instant) {
        if matches!(step, ReportStep::Correct { .. }) {
            tracing::debug!(pod = %key, "corrected a pod status that another client had changed");
            self.made.insert(key.clone(), now);
        }
    }

    /// When the first correction held back in this comparison is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pod_is_corrected_at_once_and_then_every_ten_seconds() {
        let (mut corrections, begun) = (Corrections::default(), Instant::now());
        let (key, other) = (PodKey::new("lab", "a"), PodKey::new("lab", "b"));
        let (correct, report) = (ReportStep::Correct { uid: String::new() }, ReportStep::Report { uid: String::new() });
        corrections.begin(begun);
        assert!(!corrections.holds(&key, &correct));
        corrections.done(&key, &correct, begun);
        corrections.done(&other, &report, begun);
        corrections.begin(begun + Duration::from_secs(1));
        assert!(corrections.holds(&key, &correct) && !corrections.holds(&key, &report));
        assert!(!corrections.holds(&other, &correct));
        let due = begun + MIN_CORRECTION_INTERVAL;
        assert_eq!(corrections.next(), Some(due));
        corrections.begin(due);
        assert!(!corrections.holds(&key, &correct));
        assert_eq!(corrections.next(), None);
    }
}
