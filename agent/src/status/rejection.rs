//! A manifest that was refused, told to whoever looks at events and metrics, whatever source it came by.

use super::metrics::{Metrics, RejectionReason};
use crate::status::event::{EventType, Events};
use limpet_model::pod::{Fault, PodRecord, Severity};
use limpet_model::source::SourceKind;

/// What is told.
#[derive(Debug)]
pub struct Told<'a> {
    /// Whose manifest it was.
    pub source: SourceKind,
    /// Why, each error counted once.
    pub faults: &'a [Fault],
    /// The same in a sentence.
    pub message: &'a str,
}

/// Counts the faults, and makes an event on each pod whose last good version runs on; on the node when there is none.
pub fn tell<'a>(events: &Events, metrics: &Metrics, told: &Told<'_>, kept: impl IntoIterator<Item = &'a PodRecord>) {
    for fault in told.faults.iter().filter(|fault| fault.severity == Severity::Error) {
        metrics.manifest_rejected(told.source, RejectionReason::of(fault));
    }
    let mut of_pods = kept.into_iter().peekable();
    if of_pods.peek().is_none() {
        events.emit(None, None, EventType::Warning, "FailedValidation", told.message.to_owned());
    }
    for record in of_pods {
        let pod = Some((record.key.clone(), record.uid.clone()));
        let message = format!("manifest rejected, the last good version runs on: {}", told.message);
        events.emit(pod, None, EventType::Warning, "FailedValidation", message);
    }
}
