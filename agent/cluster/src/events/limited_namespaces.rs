//! Namespaces whose events the apiserver limits, as the admission plugin EventRateLimit does: their events wait while
//! those of other namespaces continue.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use limpet_core::connectivity;
use limpet_telemetry::event::Event;

#[derive(Debug, Default)]
pub(super) struct LimitedNamespaces {
    /// How often in a row each namespace was refused, and until when its events wait. `None` stands for events of the
    /// node.
    refused: BTreeMap<Option<String>, (u32, Instant)>,
}

impl LimitedNamespaces {
    fn namespace(event: &Event) -> Option<String> {
        event.pod().map(|(key, _)| key.namespace().to_owned())
    }

    /// Whether the event has to wait. If so, moves `next` to the end of its wait unless it is earlier.
    pub(super) fn holds(&self, event: &Event, now: Instant, next: &mut Option<Instant>) -> bool {
        if self.refused.is_empty() {
            return false;
        }
        let until = self.refused.get(&Self::namespace(event)).map(|(_, until)| *until).filter(|until| *until > now);
        *next = next.iter().copied().chain(until).min();
        until.is_some()
    }

    /// Records that the apiserver answered 429; `dice` is a random number.
    pub(super) fn refused(&mut self, event: &Event, retry_after: Option<Duration>, now: Instant, dice: u64) {
        let (failures, until) = self.refused.entry(Self::namespace(event)).or_insert((0, now));
        *failures = failures.saturating_add(1);
        *until = now + connectivity::pause(*failures, retry_after, connectivity::MAX_RECONNECT_DELAY, dice);
    }

    /// Records that the apiserver has stored the event.
    pub(super) fn posted(&mut self, event: &Event) {
        if !self.refused.is_empty() {
            self.refused.remove(&Self::namespace(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use limpet_model::pod::{PodKey, PodUid};

    use super::*;
    use limpet_telemetry::event::{EventType, InvolvedObject};

    fn event(namespace: &str) -> Event {
        Event {
            involved: InvolvedObject::Pod(PodKey::new(namespace, "web"), PodUid::new("1")),
            field_path: None,
            event_type: EventType::Normal,
            reason: "Started".into(),
            message: String::new(),
            count: 1,
            first_seen: jiff::Timestamp::UNIX_EPOCH,
            last_seen: jiff::Timestamp::UNIX_EPOCH,
        }
    }

    #[test]
    fn a_refused_namespace_waits_longer_each_time_and_no_other_does() {
        let (mut limited, now) = (LimitedNamespaces::default(), Instant::now());
        let wait = |limited: &LimitedNamespaces, namespace, now| {
            let mut next = None;
            assert_eq!(limited.holds(&event(namespace), now, &mut next), next.is_some());
            next.map(|until| until - now)
        };
        assert_eq!(wait(&limited, "noisy", now), None);
        limited.refused(&event("noisy"), None, now, 0);
        let first = wait(&limited, "noisy", now);
        assert!(first.is_some() && wait(&limited, "calm", now).is_none());
        limited.refused(&event("noisy"), None, now, 0);
        assert!(wait(&limited, "noisy", now) > first);
        limited.refused(&event("noisy"), Some(Duration::from_secs(60)), now, 0);
        assert!(wait(&limited, "noisy", now + Duration::from_secs(59)).is_some());
        let mut next = Some(now);
        assert!(limited.holds(&event("noisy"), now, &mut next) && next == Some(now), "the first counts");
        limited.posted(&event("noisy"));
        assert_eq!(wait(&limited, "noisy", now), None);
    }
}
