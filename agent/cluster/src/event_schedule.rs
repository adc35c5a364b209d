//! Which events the apiserver is to have: those that it lacks and would not drop for their age.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use limpet_telemetry::event::Event;

/// An apiserver keeps events for an hour.
const EVENT_LIFETIME: SignedDuration = SignedDuration::from_hours(1);

/// The events that the server does not have, or not with their count.
pub(super) fn due<'a>(all: &'a [Event], posted: &BTreeMap<String, u32>, node: &str, now: Timestamp) -> Vec<&'a Event> {
    let is_due = |event: &&Event| {
        // No apiserver has the workloads of the node's own.
        event.workload.is_none()
            && now.duration_since(event.last_seen) < EVENT_LIFETIME
            && posted.get(&event.name(node)).is_none_or(|count| *count < event.count)
    };
    all.iter().filter(is_due).collect()
}
