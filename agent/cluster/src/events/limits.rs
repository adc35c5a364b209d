//! Limits the events for the apiserver by client-go's rules (`EventCorrelator` in `tools/record`). Pure: time is an
//! argument.
//!
//! For each object and type, [`SPAM_BURST`] events may be sent at once and then one every [`SPAM_REFILL_INTERVAL`];
//! further events are dropped. For each object, type and reason there are at most [`MAX_DISTINCT_MESSAGES`] messages
//! within [`AGGREGATION_WINDOW`]; further ones are combined into one event.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use limpet_model::pod::PodUid;
use limpet_telemetry::event::{Event, EventType};

/// client-go's `defaultSpamBurst`.
const SPAM_BURST: u32 = 25;
/// The inverse of client-go's `defaultSpamQPS`.
const SPAM_REFILL_INTERVAL: SignedDuration = SignedDuration::from_secs(300);
/// client-go's `defaultAggregateMaxEvents`: the first message that is combined with others.
const MAX_DISTINCT_MESSAGES: usize = 10;
/// client-go's `defaultAggregateIntervalInSeconds`.
const AGGREGATION_WINDOW: SignedDuration = SignedDuration::from_secs(600);
const COMBINED: &str = "(combined from similar events): ";

/// The object that an event is about: a pod, or the node.
type Object = Option<PodUid>;
/// Events with a common burst: object, and whether they are warnings.
type Flow = (Object, bool);
/// Events that are combined.
type Kind = (Object, bool, String);

/// Recently sent events.
#[derive(Debug, Default)]
pub(super) struct EventLimits {
    flows: BTreeMap<Flow, Bucket>,
    kinds: BTreeMap<Kind, Similar>,
}

/// The events left of a burst.
#[derive(Debug, Clone, Copy)]
struct Bucket {
    left: u32,
    /// The time from which the refill is counted.
    since: Timestamp,
}

#[derive(Debug, Clone)]
struct Similar {
    messages: BTreeSet<String>,
    last: Timestamp,
    /// The start and the count of the combined event.
    combined: Option<(Timestamp, u32)>,
}

/// What to do with an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Decision {
    /// Send it unchanged.
    Own,
    /// Send this event instead, which represents several.
    Combined(Box<Event>),
    Dropped,
}

impl EventLimits {
    /// Forgets objects that no event refers to.
    pub(super) fn retain(&mut self, events: &[Event]) {
        let objects: BTreeSet<Object> = events.iter().map(object).collect();
        self.flows.retain(|(object, _), _| objects.contains(object));
        self.kinds.retain(|(object, ..), _| objects.contains(object));
    }

    /// Decides about an event that the server lacks, or has with an older count.
    pub(super) fn decide(&self, event: &Event, now: Timestamp) -> Decision {
        let bucket = self.flows.get(&flow(event)).map_or(Bucket::full(now), |bucket| bucket.refilled(now));
        if bucket.left == 0 {
            return Decision::Dropped;
        }
        let similar = self.similar(event, now);
        if similar.messages.len() < MAX_DISTINCT_MESSAGES {
            return Decision::Own;
        }
        let (first_seen, count) = similar.combined.unwrap_or((now, 0));
        let message = format!("{COMBINED}{}", event.message);
        Decision::Combined(Box::new(Event { message, count: count + 1, first_seen, last_seen: now, ..event.clone() }))
    }

    /// Records that the decision was carried out.
    pub(super) fn done(&mut self, event: &Event, decision: &Decision, now: Timestamp) {
        let mut similar = self.similar(event, now);
        if similar.messages.len() >= MAX_DISTINCT_MESSAGES {
            similar.messages.pop_first();
        }
        let bucket = self.flows.entry(flow(event)).or_insert(Bucket::full(now));
        *bucket = bucket.refilled(now);
        if *decision != Decision::Dropped {
            bucket.left = bucket.left.saturating_sub(1);
        }
        if let Decision::Combined(event) = decision {
            similar.combined = Some((event.first_seen, event.count));
        }
        self.kinds.insert(kind(event), similar);
    }

    /// The messages of the event's kind, its own included.
    fn similar(&self, event: &Event, now: Timestamp) -> Similar {
        let none = || Similar { messages: BTreeSet::new(), last: now, combined: None };
        let mut similar = self.kinds.get(&kind(event)).cloned().unwrap_or_else(none);
        if now.duration_since(similar.last) > AGGREGATION_WINDOW {
            similar.messages.clear();
        }
        similar.messages.insert(event.message.clone());
        similar.last = now;
        similar
    }
}

impl Bucket {
    fn full(now: Timestamp) -> Self {
        Self { left: SPAM_BURST, since: now }
    }

    /// The bucket after the refill up to `now`.
    fn refilled(self, now: Timestamp) -> Self {
        let passed = now.duration_since(self.since).as_secs();
        // A clock that was set back must not stop the refill.
        if passed < 0 {
            return Self { since: now, ..self };
        }
        let gained = u32::try_from(passed / SPAM_REFILL_INTERVAL.as_secs()).unwrap_or(u32::MAX);
        match self.left.saturating_add(gained) {
            left if left >= SPAM_BURST => Self::full(now),
            left => Self { left, since: self.since + SPAM_REFILL_INTERVAL * i32::try_from(gained).unwrap_or_default() },
        }
    }
}

fn object(event: &Event) -> Object {
    event.pod().map(|(_, uid)| uid.clone())
}

fn flow(event: &Event) -> Flow {
    (object(event), event.event_type == EventType::Warning)
}

fn kind(event: &Event) -> Kind {
    (object(event), event.event_type == EventType::Warning, event.reason.clone().into_owned())
}

#[cfg(test)]
mod tests {
    use limpet_model::pod::PodKey;
    use limpet_telemetry::event::InvolvedObject;

    use super::*;

    fn event(pod: &str, reason: &'static str, message: &str) -> Event {
        Event {
            involved: InvolvedObject::Pod(PodKey::new("default", pod), PodUid::new(pod)),
            field_path: None,
            event_type: EventType::Warning,
            reason: reason.into(),
            message: message.to_owned(),
            count: 1,
            first_seen: at(0),
            last_seen: at(0),
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::constant(1_000_000 + second, 0)
    }

    /// Decides about the event and carries the decision out.
    fn post(limits: &mut EventLimits, event: &Event, now: Timestamp) -> Decision {
        let decision = limits.decide(event, now);
        limits.done(event, &decision, now);
        decision
    }

    #[test]
    fn an_object_has_a_burst_of_25_and_then_one_every_5_minutes() {
        let mut limits = EventLimits::default();
        let backoff = |pod: &str| event(pod, "BackOff", "back-off");
        let sent = |limits: &mut EventLimits, pod: &str, second: i64| {
            post(limits, &backoff(pod), at(second)) != Decision::Dropped
        };
        assert_eq!((0..40).filter(|_| sent(&mut limits, "web", 0)).count(), 25);
        assert!(sent(&mut limits, "other", 0), "each object has its own");
        let normal = Event { event_type: EventType::Normal, ..backoff("web") };
        assert_eq!(post(&mut limits, &normal, at(0)), Decision::Own, "so has each type");
        let later: Vec<i64> = (0..1_000).filter(|second| sent(&mut limits, "web", *second)).collect();
        assert_eq!(later, [300, 600, 900]);
        assert_eq!((0..40).filter(|_| sent(&mut limits, "web", 100_000)).count(), 25);
        // The clock is set back; five minutes count from then on.
        assert_eq!((sent(&mut limits, "web", 10), sent(&mut limits, "web", 310)), (false, true));
    }

    #[test]
    fn the_tenth_message_of_a_kind_and_those_after_it_are_one_event() {
        let mut limits = EventLimits::default();
        let failed = |number: u32| event("web", "Failed", &format!("try {number}"));
        for number in 0..9 {
            assert_eq!(post(&mut limits, &failed(number), at(0)), Decision::Own, "{number}");
        }
        let combined = |number: u32, count: u32, second: i64| {
            let message = format!("(combined from similar events): try {number}");
            let seen = (at(10), at(second));
            let event = Event { message, count, first_seen: seen.0, last_seen: seen.1, ..failed(number) };
            Decision::Combined(Box::new(event))
        };
        // An event whose sending failed is decided again.
        assert_eq!(limits.decide(&failed(9), at(10)), combined(9, 1, 10));
        assert_eq!(post(&mut limits, &failed(9), at(10)), combined(9, 1, 10));
        assert_eq!(post(&mut limits, &failed(10), at(20)), combined(10, 2, 20));
        assert_eq!(post(&mut limits, &event("web", "Pulled", "a"), at(20)), Decision::Own, "another reason");
        assert_eq!(post(&mut limits, &failed(11), at(700)), Decision::Own, "after ten minutes without any");

        limits.retain(&[event("other", "Failed", "")]);
        assert!(limits.flows.is_empty() && limits.kinds.is_empty());
    }
}
