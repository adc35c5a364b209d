//! Pods that were found running before their source reported. They keep running until it has. Pure.

use std::collections::BTreeMap;

use crate::merge::DesiredPods;
use limpet_model::pod::{PodKey, PodRecord};
use limpet_model::source::SourceKind;

/// The pods that were found running and whose source has not reported, by key, and the sources of this node.
#[derive(Debug)]
pub struct Provisional {
    sources: Vec<SourceKind>,
    adopted: BTreeMap<PodKey, SourceKind>,
}

impl Provisional {
    /// Without any pods yet.
    pub fn new(sources: Vec<SourceKind>) -> Self {
        Self { sources, adopted: BTreeMap::new() }
    }

    /// Whether this node has a source of that kind.
    pub fn has_source(&self, source: SourceKind) -> bool {
        self.sources.contains(&source)
    }

    /// Whether every source of this node has reported.
    pub fn all_ready(&self, desired: &DesiredPods) -> bool {
        self.sources.iter().all(|source| desired.is_ready(*source))
    }

    /// Records a running pod of `source`. Returns false if the desired pod of its key takes over at once.
    pub fn add(&mut self, key: &PodKey, source: SourceKind, desired: &DesiredPods) -> bool {
        let waits = desired.pods.get(key).is_none_or(|wanted| self.may_claim(source, wanted.source, desired));
        if waits {
            self.adopted.insert(key.clone(), source);
        }
        waits
    }

    /// Whether `wanted` has to wait, because the pod that runs under its key is of a source with precedence that has
    /// not reported. If not, the pod is no longer provisional.
    pub fn holds_back(&mut self, wanted: &PodRecord, desired: &DesiredPods) -> bool {
        let running = self.adopted.get(&wanted.key).copied();
        let waits = running.is_some_and(|running| self.may_claim(running, wanted.source, desired));
        if !waits {
            self.adopted.remove(&wanted.key);
        }
        waits
    }

    /// Whether the pod is provisional.
    pub fn contains(&self, key: &PodKey) -> bool {
        self.adopted.contains_key(key)
    }

    /// Removes and returns the pods whose source has reported, so that they are no longer provisional.
    pub fn remove_resolved(&mut self, desired: &DesiredPods) -> Vec<PodKey> {
        let ready = SourceKind::ALL.map(|source| self.is_ready(source, desired));
        self.adopted.extract_if(.., |_, source| ready[source.index()]).map(|(key, _)| key).collect()
    }

    /// Whether `claiming` may still claim a key before `wanting`.
    fn may_claim(&self, claiming: SourceKind, wanting: SourceKind, desired: &DesiredPods) -> bool {
        claiming < wanting && self.sources.contains(&claiming) && !desired.is_ready(claiming)
    }

    /// Whether the source counts as reported. One that is no longer configured does once all others have. An agent
    /// without any source leaves running pods alone.
    fn is_ready(&self, source: SourceKind, desired: &DesiredPods) -> bool {
        if self.sources.contains(&source) {
            return desired.is_ready(source);
        }
        !self.sources.is_empty() && self.all_ready(desired)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use limpet_model::fixtures::record;

    use SourceKind::{File, Http, Push};

    fn desired(ready: &[SourceKind], wanted: Option<SourceKind>) -> DesiredPods {
        let mut desired = DesiredPods::default();
        ready.iter().for_each(|source| desired.ready[source.index()] = true);
        if let Some(source) = wanted {
            let record = Arc::new(PodRecord { source, ..(*record(json!({ "metadata": { "name": "web" } }))).clone() });
            desired.pods.insert(record.key.clone(), record);
        }
        desired
    }

    #[test]
    fn a_running_pod_is_terminated_only_after_its_own_source_has_reported() {
        let key = PodKey::new("default", "web");
        // Its source, the ready sources, the source that claims the key; whether it is provisional at first, and
        // still afterwards.
        type Case<'a> = (SourceKind, &'a [SourceKind], Option<SourceKind>, bool, bool);
        let cases: &[Case<'_>] = &[
            (File, &[], None, true, true),
            (File, &[Http], None, true, true),
            (File, &[File], None, true, false),
            (File, &[Http], Some(Http), true, true),
            (File, &[File, Http], Some(Http), false, false),
            (File, &[File], Some(File), false, false),
            // The wanting source has precedence, so the other one does not matter.
            (Http, &[File], Some(File), false, false),
            // The source is no longer configured.
            (Push, &[File], None, true, true),
            (Push, &[File, Http], None, true, false),
            (Push, &[Http], Some(Http), false, false),
        ];
        for (claiming, ready, wanted, first, afterwards) in cases {
            let case = format!("found of {claiming}, ready {ready:?}, wanted by {wanted:?}");
            let desired = desired(ready, *wanted);
            let mut provisional = Provisional::new(vec![File, Http]);
            assert_eq!(provisional.add(&key, *claiming, &desired), *first, "{case}");
            if let Some(record) = desired.pods.get(&key) {
                assert_eq!(provisional.holds_back(record, &desired), *first, "{case}");
            }
            provisional.remove_resolved(&desired);
            assert_eq!(provisional.contains(&key), *afterwards, "{case}");
        }
    }

    #[test]
    fn an_agent_without_sources_terminates_nothing() {
        let mut provisional = Provisional::new(Vec::new());
        provisional.add(&PodKey::new("default", "web"), File, &DesiredPods::default());
        assert!(provisional.remove_resolved(&DesiredPods::default()).is_empty());
    }
}
