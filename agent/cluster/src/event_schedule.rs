//! Selects the events to post: those that the apiserver lacks and would not yet drop for their age.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use limpet_telemetry::event::{Event, InvolvedObject};

/// How long an apiserver keeps events.
const EVENT_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// The events that the server lacks, or has with an older count.
pub(super) fn due<'a>(all: &'a [Event], posted: &BTreeMap<String, u32>, node: &str, now: Timestamp) -> Vec<&'a Event> {
    let is_due = |event: &&Event| {
        // No apiserver has the workloads of the node's own sources.
        !matches!(event.involved, InvolvedObject::Workload(..))
            && now.duration_since(event.last_seen) < EVENT_LIFETIME
            && posted.get(&event.name(node)).is_none_or(|count| *count < event.count)
    };
    all.iter().filter(is_due).collect()
}
