//! Logs changes in the words of kubelet's sync loop.

use std::sync::Arc;

use limpet_core::merge::PodChange;
use limpet_model::pod::{PodDiff, PodRecord};
use limpet_model::source::SourceKind;

/// Logs one line per verb and source, as kubelet's sync loop does, and one per pod with details of its change.
pub(super) fn log(changes: &[PodChange]) {
    let mut lines: Vec<(&'static str, SourceKind, Vec<&Arc<PodRecord>>)> = Vec::new();
    for change in changes {
        let (record, verb) = (change.record(), change.verb());
        if let Some(diff) = change.diff().or_else(|| successor(change, changes)) {
            let PodRecord { key, uid, source, origin, .. } = &**record;
            tracing::info!(%source, pod = %key, %uid, file = %origin, changed = %diff, "SyncLoop {verb}");
            continue;
        }
        match lines.iter_mut().find(|(known, source, _)| *known == verb && *source == record.source) {
            Some((_, _, records)) => records.push(record),
            None => lines.push((verb, record.source, vec![record])),
        }
    }
    for (verb, source, records) in lines {
        let pods: Vec<String> = records.iter().map(|record| record.key.to_string()).collect();
        let uids: Vec<&str> = records.iter().map(|record| record.uid.as_str()).collect();
        let origins: Vec<&str> = records.iter().map(|record| &*record.origin).collect();
        tracing::info!(%source, ?pods, ?uids, files = ?origins, "SyncLoop {verb}");
    }
}

/// Why a pod that is removed and added at once is recreated; logged with its addition.
fn successor<'a>(change: &'a PodChange, changes: &'a [PodChange]) -> Option<PodDiff<'a>> {
    let PodChange::Added(new) = change else { return None };
    let removed = changes.iter().take_while(|change| matches!(change, PodChange::Removed(_)));
    let old = removed.map(PodChange::record).find(|old| old.key == new.key)?;
    Some(PodDiff::between(old, new))
}
