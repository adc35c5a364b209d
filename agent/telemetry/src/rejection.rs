//! Publishes a rejected manifest of any source as event and metric.

use super::metrics::{Metrics, RejectionReason};
use crate::event::{EventType, Events};
use limpet_model::pod::{Fault, PodRecord, Severity};
use limpet_model::source::SourceKind;

#[derive(Debug)]
pub struct RejectedManifest<'a> {
    pub source: SourceKind,
    /// The faults; each error is counted once, even if it is not shown.
    pub faults: &'a [Fault],
    /// The faults in one sentence.
    pub message: &'a str,
}

/// Counts the faults, and emits an event for each pod whose last good version keeps running, or for the node if there
/// is none.
pub fn report<'a>(
    events: &Events,
    metrics: &Metrics,
    rejected: &RejectedManifest<'_>,
    kept: impl IntoIterator<Item = &'a PodRecord>,
) {
    for fault in rejected.faults.iter().filter(|fault| fault.severity == Severity::Error) {
        metrics.manifest_rejected(rejected.source, RejectionReason::fault(fault), fault.count());
    }
    let mut of_pods = kept.into_iter().peekable();
    if of_pods.peek().is_none() {
        events.emit(None, None, EventType::Warning, "FailedValidation", rejected.message.to_owned());
    }
    for record in of_pods {
        let pod = Some((record.key.clone(), record.uid.clone()));
        let message = format!("manifest rejected, the last good version runs on: {}", rejected.message);
        events.emit(pod, None, EventType::Warning, "FailedValidation", message);
    }
}
