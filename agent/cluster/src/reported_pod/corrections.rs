//! Limits the rate of corrections of statuses that another client overwrites: at once, and then as often as kubelet.
//! Otherwise a writer that writes again at once, as kube-controller-manager does while it takes the node for lost,
//! would be answered without end.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use limpet_core::reported_pod::Step;
use limpet_model::pod::PodKey;

/// Between two of one pod: as often as kubelet compares.
const MIN_CORRECTION_INTERVAL: Duration = Duration::from_secs(10);

/// The corrections of late.
#[derive(Debug, Default)]
pub(super) struct Corrections {
    made: BTreeMap<PodKey, Instant>,
    /// When the first is due of those that are held back.
    next: Option<Instant>,
}

impl Corrections {
    /// A comparison of all pods begins at `now`.
    pub(super) fn begin(&mut self, now: Instant) {
        self.made.retain(|_, at| now < *at + MIN_CORRECTION_INTERVAL);
        self.next = None;
    }

    /// Whether the step of that pod has to wait.
    pub(super) fn holds(&mut self, key: &PodKey, step: &Step) -> bool {
        let Some(at) = self.made.get(key).filter(|_| matches!(step, Step::Correct { .. })) else { return false };
        let due = *at + MIN_CORRECTION_INTERVAL;
        self.next = Some(self.next.map_or(due, |next| next.min(due)));
        true
    }

    /// The step of that pod was done at `now`.
    pub(super) fn done(&mut self, key: &PodKey, step: &Step, now: Instant) {
        if matches!(step, Step::Correct { .. }) {
            tracing::debug!(pod = %key, "corrected a pod status that another client had changed");
            self.made.insert(key.clone(), now);
        }
    }

    /// When the first is due of those that were held back since the comparison began.
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
        let (correct, report) = (Step::Correct { uid: String::new() }, Step::Report { uid: String::new() });
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
