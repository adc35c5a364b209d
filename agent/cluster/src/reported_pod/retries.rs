//! Decides when failed steps are due again. Each pod is retried by itself, except mirrors in a missing namespace: one
//! of them is retried for all, since a node may not watch namespaces and has to try.

use std::collections::{BTreeMap, BTreeSet};

use limpet_apiserver_client::RequestError;
use limpet_core::connectivity;
use limpet_core::reported_pod::ReportStep;
use limpet_model::pod::{Fingerprint, PodKey};
use tokio::time::Instant;

use super::DueStep;

/// A pod whose step failed.
#[derive(Debug)]
struct Retry {
    failures: u32,
    at: Instant,
    /// The version that failed: another version is tried immediately.
    version: Option<Fingerprint>,
}

/// A missing namespace.
#[derive(Debug)]
struct Missing {
    since: Instant,
    at: Instant,
    /// The pods whose mirrors were refused for it. Each is tried once, for its event.
    pods: BTreeSet<PodKey>,
}

#[derive(Debug, Default)]
pub(super) struct Retries {
    pods: BTreeMap<PodKey, Retry>,
    namespaces: BTreeMap<String, Missing>,
}

impl Retries {
    /// Keeps the steps that may run at `now`.
    pub(super) fn retain_due<S>(&self, steps: &mut Vec<DueStep<S>>, now: Instant) {
        let mut asked = BTreeSet::new();
        steps.retain(|DueStep { key, step, version, .. }| {
            if self.pods.get(key).is_some_and(|retry| retry.at > now && retry.version == *version) {
                return false;
            }
            let Some(missing) = self.namespaces.get(key.namespace()).filter(|_| *step == ReportStep::Create) else {
                return true;
            };
            !missing.pods.contains(key) || (missing.at <= now && asked.insert(key.namespace().to_owned()))
        });
    }

    /// When the first retry is due, among pods without a request in flight.
    pub(super) fn next(&self, in_flight: &BTreeSet<PodKey>) -> Option<Instant> {
        let is_of_missing =
            |key: &PodKey| self.namespaces.get(key.namespace()).is_some_and(|missing| missing.pods.contains(key));
        let pods = self.pods.iter().filter(|(key, _)| !in_flight.contains(key) && !is_of_missing(key));
        let is_asked_for = |namespace: &str| in_flight.iter().any(|key| key.namespace() == namespace);
        let namespaces = self.namespaces.iter().filter(|(name, _)| !is_asked_for(name));
        let due = |missing: &Missing| {
            // A pod in the namespace that is not held back by its own failure is tried immediately.
            let held_back = missing.pods.iter().map(|key| self.pods.get(key).map(|retry| retry.at)).min().flatten();
            held_back.map_or(missing.at, |until| missing.at.max(until))
        };
        pods.map(|(_, retry)| retry.at).chain(namespaces.map(|(_, missing)| due(missing))).min()
    }

    /// Forgets pods without a due step, for example when a mirror exists whose answer was lost.
    pub(super) fn retain<S>(&mut self, steps: &[DueStep<S>]) {
        self.pods.retain(|key, _| steps.iter().any(|due| due.key == *key));
        let creates = |key: &PodKey| steps.iter().any(|due| due.step == ReportStep::Create && due.key == *key);
        self.namespaces.retain(|_, missing| {
            missing.pods.retain(creates);
            !missing.pods.is_empty()
        });
    }

    /// Records that a step of the pod succeeded, so its namespace exists.
    pub(super) fn succeeded(&mut self, key: &PodKey) {
        self.pods.remove(key);
        self.namespaces.remove(key.namespace());
    }

    /// Records a failure at `now`; `dice` is a random number. Returns how often the pod's own step has failed in a
    /// row.
    pub(super) fn failed<S>(&mut self, due: &DueStep<S>, error: &RequestError, now: Instant, dice: u64) -> u32 {
        let (key, version) = (&due.key, due.version);
        // A namespace that is being deleted may be recreated.
        if due.step == ReportStep::Create && (error.is_not_found() || error.is_of_terminating_namespace()) {
            let first = || Missing { since: now, at: now, pods: BTreeSet::new() };
            let missing = self.namespaces.entry(key.namespace().to_owned()).or_insert_with(first);
            missing.at = now + connectivity::namespace_pause(now - missing.since, dice);
            missing.pods.insert(key.clone());
            self.pods.remove(key);
            return 1;
        }
        let failures = self.pods.get(key).map_or(1, |retry| retry.failures.saturating_add(1));
        let refused = matches!(error.code(), Some(400 | 403 | 413 | 422));
        let pause = match refused {
            true => connectivity::refusal_pause(failures, dice),
            false => connectivity::pause(failures, error.retry_after(), connectivity::MAX_RECONNECT_DELAY, dice),
        };
        if let Some(missing) = self.namespaces.get_mut(key.namespace()) {
            if refused {
                // The failure has another cause than the namespace; the next pod tests the namespace.
                missing.pods.remove(key);
            } else {
                missing.at = missing.at.max(now + pause);
            }
        }
        self.pods.insert(key.clone(), Retry { failures, at: now + pause, version });
        failures
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn create(name: &str) -> DueStep<()> {
        let key = PodKey::new("lab", name);
        DueStep { key, step: ReportStep::Create, generation: None, version: None, subject: () }
    }

    fn not_found() -> RequestError {
        RequestError::Refused { code: 404, reason: "NotFound".to_owned(), message: String::new(), retry_after: None }
    }

    fn names(steps: &[DueStep<()>]) -> Vec<&str> {
        steps.iter().map(|due| due.key.name()).collect()
    }

    #[test]
    fn one_pod_of_a_missing_namespace_checks_for_all_of_them() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        let steps = || vec![create("a"), create("b")];
        let due = |retries: &Retries, steps: &[DueStep<()>], now| {
            let mut due = steps.to_vec();
            retries.retain_due(&mut due, now);
            names(&due).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(due(&retries, &steps(), now), ["a", "b"]);
        for step in steps() {
            retries.failed(&step, &not_found(), now, 100);
        }
        assert!(due(&retries, &steps(), now).is_empty());
        let next = retries.next(&BTreeSet::new()).unwrap();
        assert!(next - now <= Duration::from_millis(1_800), "{:?}", next - now);
        assert_eq!(due(&retries, &steps(), next), ["a"]);
        // A pod that came later is tried once, for its event.
        let three = [steps(), vec![create("c")]].concat();
        assert_eq!(due(&retries, &three, now), ["c"]);
        let message = "unable to create new content in namespace lab because it is being terminated".to_owned();
        let terminating =
            RequestError::Refused { code: 403, reason: "Forbidden".to_owned(), message, retry_after: None };
        retries.failed(&three[2], &terminating, now, 100);
        assert_eq!(due(&retries, &three, next), ["a"], "a namespace that is being deleted");
        // The namespace exists, so the others follow immediately.
        retries.succeeded(&PodKey::new("lab", "a"));
        assert_eq!(due(&retries, &steps(), now), ["a", "b"]);
        assert_eq!(retries.next(&BTreeSet::new()), None);
    }

    #[test]
    fn a_pod_that_is_refused_for_another_reason_stops_checking_its_namespace() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        let (a, b) = (create("a"), create("b"));
        for step in [&a, &b] {
            retries.failed(step, &not_found(), now, 100);
        }
        let next = retries.next(&BTreeSet::new()).unwrap();
        let forbidden =
            RequestError::Refused { code: 403, reason: String::new(), message: String::new(), retry_after: None };
        retries.failed(&a, &forbidden, next, 100);
        let due = |retries: &Retries, now| {
            let mut due = vec![a.clone(), b.clone()];
            retries.retain_due(&mut due, now);
            names(&due).into_iter().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(due(&retries, next), ["b"], "the other pod asks, and the first one waits");
        let wait = Some(Duration::from_secs(2));
        let busy =
            RequestError::Refused { code: 429, reason: String::new(), message: String::new(), retry_after: wait };
        retries.failed(&b, &busy, next, 100);
        assert!(due(&retries, next).is_empty(), "a server that is busy says nothing of the namespace");
        let next = next + Duration::from_secs(4);
        assert_eq!(due(&retries, next), ["b"]);
        retries.succeeded(&b.key);
        assert_eq!(due(&retries, next), ["b"]);
        assert_eq!(due(&retries, next + Duration::from_secs(6)), ["a", "b"]);
    }

    #[test]
    fn a_missing_namespace_without_pods_is_forgotten() {
        let (mut retries, now) = (Retries::default(), Instant::now());
        retries.failed(&create("a"), &not_found(), now, 100);
        retries.retain(&[create("a")]);
        assert!(retries.next(&BTreeSet::new()).is_some());
        retries.retain(&[create("b")]);
        assert_eq!(retries.next(&BTreeSet::new()), None);
    }
}
