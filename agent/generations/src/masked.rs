//! The snapshot in effect where the source wants another generation than the one that runs.

use std::sync::Arc;

use imbl::OrdMap;
use limpet_core::source::SourceSnapshot;
use limpet_core::source::incarnations::Incarnations;

use crate::content::{Content, same_object, same_pod};
use crate::settings::Policy;

/// The last such snapshot, kept for as long as neither the source nor the generation changes.
#[derive(Debug, Default)]
pub(crate) struct Masked {
    made: Option<Made>,
}

#[derive(Debug)]
struct Made {
    raw: Arc<SourceSnapshot>,
    number: u64,
    snapshot: Arc<SourceSnapshot>,
}

impl Masked {
    /// The generation `number` in place of what `raw` has, with the health, the rejections and the readiness of `raw`.
    pub(crate) fn snapshot(
        &mut self,
        raw: &Arc<SourceSnapshot>,
        number: u64,
        content: &Content,
        policy: Policy,
    ) -> Arc<SourceSnapshot> {
        if let Some(made) = self.made.as_ref().filter(|made| made.number == number && Arc::ptr_eq(&made.raw, raw)) {
            return Arc::clone(&made.snapshot);
        }
        let snapshot = in_effect(raw, content, policy);
        let made = Made { raw: Arc::clone(raw), number, snapshot: Arc::new(snapshot) };
        Arc::clone(&self.made.insert(made).snapshot)
    }

    /// Frees the snapshot where the source's own is in effect.
    pub(crate) fn clear(&mut self) {
        self.made = None;
    }
}

/// The content of a generation in place of what `raw` has of it.
pub(crate) fn in_effect(raw: &SourceSnapshot, content: &Content, policy: Policy) -> SourceSnapshot {
    let mut pods = OrdMap::new();
    for (key, record) in &content.pods {
        // The source's own record where it is of the same manifest: readers then see no change.
        let newest = raw.pods.get(key).filter(|newest| same_pod(newest, record) || newest.is_deleting());
        pods.insert(key.clone(), Arc::clone(newest.unwrap_or(record)));
    }
    let deleting = raw.pods.iter().filter(|(_, record)| record.is_deleting());
    deleting.for_each(|(key, record)| drop(pods.insert(key.clone(), Arc::clone(record))));
    let mut objects = OrdMap::new();
    for (key, object) in &content.objects {
        let newest = raw.objects.get(key).filter(|newest| same_object(newest, object));
        objects.insert(key.clone(), Arc::clone(newest.unwrap_or(object)));
    }
    if policy == Policy::Pods {
        let others = raw.objects.iter().filter(|(key, _)| !key.kind.is_workload());
        others.for_each(|(key, object)| drop(objects.insert(key.clone(), Arc::clone(object))));
    }
    let rivals = raw.rivals.iter().filter(|(key, _)| content.pods.contains_key(*key));
    let rivals = rivals.map(|(key, rivals)| (key.clone(), Arc::clone(rivals))).collect();
    // The numbers of `raw` are not those of the generation's workloads.
    let incarnations = Incarnations::default();
    SourceSnapshot { pods, objects, rivals, incarnations, revision: None, ..raw.clone() }
}
