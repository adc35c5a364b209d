//! The snapshot of one source with the pods of its workloads. It is kept from one merge to the next, so that only
//! what differs is touched.

use std::collections::BTreeSet;
use std::sync::Arc;

use limpet_core::source::SourceSnapshot;
use limpet_core::source::delta::{self, Edits};
use limpet_model::object::{ObjectKey, ObjectRecord};
use limpet_model::pod::{PodKey, PodRecord};

/// A source's snapshot, and the same with pods.
#[derive(Debug, Default)]
pub(crate) struct Effective {
    /// As the source published it.
    raw: Arc<SourceSnapshot>,
    /// With the pods of workloads.
    expanded: Arc<SourceSnapshot>,
    edits: Edits,
}

impl Effective {
    /// The snapshot of a source that publishes `raw`. The pods of workloads have changed for the keys in `touched`,
    /// and `pod` returns them; the claims of `claims.0` for the keys in `claims.1`. The source's own pods and objects
    /// take precedence. `is_settled`: no workload waits to learn which of its pods run.
    pub(crate) fn expand(
        &mut self,
        raw: &Arc<SourceSnapshot>,
        touched: &BTreeSet<PodKey>,
        claims: (&[Arc<ObjectRecord>], &BTreeSet<ObjectKey>),
        is_settled: bool,
        pod: impl Fn(&PodKey) -> Option<Arc<PodRecord>>,
    ) -> Arc<SourceSnapshot> {
        let ready = raw.ready && is_settled;
        if Arc::ptr_eq(&self.raw, raw) && touched.is_empty() && claims.1.is_empty() && self.expanded.ready == ready {
            return Arc::clone(&self.expanded);
        }
        let delta = delta::between(&self.raw, raw).into_owned();
        let mut pods = self.expanded.pods.clone();
        for key in delta.pods.iter().chain(touched) {
            match raw.pods.get(key).cloned().or_else(|| pod(key)) {
                Some(record) => drop(pods.insert(key.clone(), record)),
                None => drop(pods.remove(key)),
            }
            self.edits.pod(key.clone());
        }
        let mut objects = raw.objects.clone();
        for record in claims.0 {
            objects.entry(record.key.clone()).or_insert_with(|| Arc::clone(record));
        }
        claims.1.iter().for_each(|key| self.edits.object(key.clone()));
        delta.objects.into_iter().for_each(|key| self.edits.object(key));
        delta.rejected.into_iter().for_each(|origin| self.edits.rejection(origin));
        let revision = self.edits.next_revision();
        self.expanded = Arc::new(SourceSnapshot { pods, objects, ready, revision, ..SourceSnapshot::clone(raw) });
        self.raw = Arc::clone(raw);
        Arc::clone(&self.expanded)
    }
}
