//! The snapshot of one source with its claims as pods have them: kept from one merge to the next, so that only what differs
//! is touched.

use std::collections::BTreeMap;
use std::sync::Arc;

use limpet_core::source::SourceSnapshot;
use limpet_core::source::delta::{self, Edits};
use limpet_model::object::{ObjectKey, ObjectRecord};

/// A source's snapshot, and the same with claims.
#[derive(Debug, Default)]
pub(crate) struct ClaimSnapshot {
    /// As it was given.
    raw: Arc<SourceSnapshot>,
    expanded: Arc<SourceSnapshot>,
    /// Those that are in place of its own.
    pub(crate) claims: BTreeMap<ObjectKey, Arc<ObjectRecord>>,
    edits: Edits,
}

impl ClaimSnapshot {
    /// The snapshot `raw` with these claims in place of its own. Without any it is `raw` itself.
    pub(crate) fn expand<'a>(
        &mut self,
        raw: &Arc<SourceSnapshot>,
        claims: impl Iterator<Item = &'a Arc<ObjectRecord>>,
    ) -> Arc<SourceSnapshot> {
        let claims: BTreeMap<ObjectKey, Arc<ObjectRecord>> =
            claims.map(|record| (record.key.clone(), Arc::clone(record))).collect();
        if claims.is_empty() && self.claims.is_empty() && super::claims(raw).next().is_none() {
            (self.raw, self.expanded) = (Arc::clone(raw), Arc::clone(raw));
            return Arc::clone(raw);
        }
        let is_same = |a: &Arc<ObjectRecord>, b: Option<&Arc<ObjectRecord>>| b.is_some_and(|b| Arc::ptr_eq(a, b));
        let changed = claims.iter().filter(|(key, record)| !is_same(record, self.claims.get(*key)));
        let gone = self.claims.keys().filter(|key| !claims.contains_key(*key));
        let mut touched: Vec<ObjectKey> = changed.map(|(key, _)| key).chain(gone).cloned().collect();
        if Arc::ptr_eq(&self.raw, raw) && touched.is_empty() {
            return Arc::clone(&self.expanded);
        }
        let delta = delta::between(&self.raw, raw).into_owned();
        touched.extend(delta.objects.iter().cloned());
        let mut objects = raw.objects.clone();
        let given: Vec<ObjectKey> = super::claims(raw).map(|(key, _)| key.clone()).collect();
        given.iter().for_each(|key| drop(objects.remove(key)));
        objects.extend(claims.iter().map(|(key, record)| (key.clone(), Arc::clone(record))));
        delta.pods.into_iter().for_each(|key| self.edits.pod(key));
        touched.into_iter().for_each(|key| self.edits.object(key));
        delta.rejected.into_iter().for_each(|origin| self.edits.rejection(origin));
        let revision = self.edits.next_revision();
        self.expanded = Arc::new(SourceSnapshot { objects, revision, ..SourceSnapshot::clone(raw) });
        (self.raw, self.claims) = (Arc::clone(raw), claims);
        Arc::clone(&self.expanded)
    }
}
