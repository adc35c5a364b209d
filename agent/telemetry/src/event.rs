//! Kubernetes Events, in memory and limited in number: what happened to which pod or workload and why, with kubelet's
//! reasons where it has them.

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event as KubeEvent, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};

use limpet_model::object::{ObjectKey, ObjectKind};
use limpet_model::pod::{PodKey, PodUid, fault};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// The component in events.
const COMPONENT: &str = "limpet";

/// The most distinct events that are stored; the oldest is dropped first.
pub const MAX_EVENTS: usize = 1_000;
/// An apiserver's limit for an event's message in bytes; longer messages are truncated.
pub const MAX_MESSAGE: usize = 1_024;

/// Normal or Warning, as Kubernetes has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    /// Expected.
    Normal,
    /// Needs attention.
    Warning,
}

/// What an event is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum InvolvedObject {
    /// The node itself.
    Node,
    Pod(PodKey, PodUid),
    /// A workload, with its UID.
    Workload(ObjectKey, String),
}

impl From<Option<(PodKey, PodUid)>> for InvolvedObject {
    /// The pod, or the node if there is none.
    fn from(pod: Option<(PodKey, PodUid)>) -> Self {
        pod.map_or(Self::Node, |(key, uid)| Self::Pod(key, uid))
    }
}

/// An event; repeats raise `count` and `last_seen`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// What it is about.
    pub involved: InvolvedObject,
    /// The path of the container in the Pod, if it is about one: `spec.containers{web}`
    /// ([`limpet_model::pod::Role::field_path`]).
    pub field_path: Option<String>,
    pub event_type: EventType,
    /// kubelet's reason: `Pulling`, `Started`, `BackOff`, `FailedValidation`…
    pub reason: Cow<'static, str>,
    pub message: String,
    /// How often it happened.
    pub count: u32,
    /// When it first happened.
    pub first_seen: Timestamp,
    /// When it last happened.
    pub last_seen: Timestamp,
}

impl Event {
    /// The pod that it is about; `None` for the node or a workload.
    pub fn pod(&self) -> Option<(&PodKey, &PodUid)> {
        match &self.involved {
            InvolvedObject::Pod(key, uid) => Some((key, uid)),
            InvolvedObject::Node | InvolvedObject::Workload(..) => None,
        }
    }

    /// The event's object name on the node `node`.
    pub fn name(&self, node: &str) -> String {
        let object = match &self.involved {
            InvolvedObject::Pod(key, _) => key.name(),
            InvolvedObject::Workload(key, _) => &*key.name,
            InvolvedObject::Node => node,
        };
        format!("{object}.{:x}", self.first_seen.as_nanosecond())
    }

    /// Converts it to Kubernetes' Event (core/v1).
    pub fn as_kubernetes(&self, node: &str) -> KubeEvent {
        let (involved_object, namespace) = match &self.involved {
            InvolvedObject::Pod(key, uid) => {
                let object = ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Pod".to_owned()),
                    namespace: Some(key.namespace().to_owned()),
                    name: Some(key.name().to_owned()),
                    uid: Some(uid.to_string()),
                    field_path: self.field_path.clone(),
                    ..ObjectReference::default()
                };
                (object, key.namespace().to_owned())
            }
            InvolvedObject::Workload(key, uid) => {
                let object = ObjectReference {
                    api_version: Some(key.kind.api_version().to_owned()),
                    kind: Some(key.kind.as_str().to_owned()),
                    namespace: Some(key.namespace.to_string()),
                    name: Some(key.name.to_string()),
                    uid: Some(uid.clone()),
                    ..ObjectReference::default()
                };
                (object, key.namespace.to_string())
            }
            InvolvedObject::Node => {
                let object = ObjectReference {
                    api_version: Some("v1".to_owned()),
                    kind: Some("Node".to_owned()),
                    name: Some(node.to_owned()),
                    uid: Some(node.to_owned()),
                    ..ObjectReference::default()
                };
                (object, "default".to_owned())
            }
        };
        let kind = match self.event_type {
            EventType::Normal => "Normal",
            EventType::Warning => "Warning",
        };
        KubeEvent {
            metadata: ObjectMeta {
                name: Some(self.name(node)),
                namespace: Some(namespace),
                creation_timestamp: Some(Time(self.first_seen)),
                ..ObjectMeta::default()
            },
            involved_object,
            type_: Some(kind.to_owned()),
            reason: Some(self.reason.clone().into_owned()),
            message: Some(self.message.clone()),
            count: i32::try_from(self.count).ok(),
            first_timestamp: Some(Time(self.first_seen)),
            last_timestamp: Some(Time(self.last_seen)),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: Some(node.to_owned()) }),
            // As in client-go since 1.27: `kubectl events` and field selectors read these fields.
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(node.to_owned()),
            ..KubeEvent::default()
        }
    }
}

impl Event {
    /// An event of the whole object at the current time.
    fn now(involved: InvolvedObject, event_type: EventType, reason: Cow<'static, str>, message: String) -> Self {
        let now = Timestamp::now();
        Self { involved, field_path: None, event_type, reason, message, count: 1, first_seen: now, last_seen: now }
    }

    /// Restores an event from [`Self::as_kubernetes`]; `None` for other events.
    pub fn from_kubernetes(event: KubeEvent) -> Option<Self> {
        let object = event.involved_object;
        let involved = match object.kind.as_deref()? {
            "Pod" => {
                let key = PodKey::parse(object.namespace?, object.name?).ok()?;
                InvolvedObject::Pod(key, PodUid::parse(object.uid?).ok()?)
            }
            kind => match ObjectKind::from_name(kind) {
                Some(kind) => {
                    InvolvedObject::Workload(ObjectKey::new(kind, object.namespace?, object.name?), object.uid?)
                }
                None => InvolvedObject::Node,
            },
        };
        // The object's name contains the time to the nanosecond, which distinguishes events of the same second.
        let (_, time) = event.metadata.name.as_deref()?.rsplit_once('.')?;
        let first_seen = Timestamp::from_nanosecond(i128::from_str_radix(time, 16).ok()?).ok()?;
        Some(Self {
            involved,
            field_path: object.field_path,
            event_type: if event.type_.as_deref() == Some("Warning") { EventType::Warning } else { EventType::Normal },
            reason: Cow::Owned(event.reason?),
            message: event.message.unwrap_or_default(),
            count: event.count.and_then(|count| u32::try_from(count).ok()).unwrap_or(1),
            first_seen,
            last_seen: event.last_timestamp?.0,
        })
    }
}

/// The node's events. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct Events {
    ring: Arc<Mutex<VecDeque<Event>>>,
    changed: Arc<Notify>,
}

impl Events {
    /// Records an event at the current time. A repeat of a stored event (equal except for times) raises its count.
    /// Returns the count.
    pub fn emit(
        &self,
        pod: Option<(PodKey, PodUid)>,
        field_path: Option<String>,
        event_type: EventType,
        reason: impl Into<Cow<'static, str>>,
        message: String,
    ) -> u32 {
        self.record(Event { field_path, ..Event::now(pod.into(), event_type, reason.into(), message) })
    }

    /// Records an event of the workload with this UID at the current time.
    pub fn emit_of_workload(
        &self,
        (key, uid): (ObjectKey, String),
        event_type: EventType,
        reason: Cow<'static, str>,
        message: String,
    ) {
        self.record(Event::now(InvolvedObject::Workload(key, uid), event_type, reason, message));
    }

    /// Records `event`, or adds its count to a stored event that is equal except for times. Returns the count.
    pub fn record(&self, mut event: Event) -> u32 {
        fault::cut(&mut event.message, MAX_MESSAGE);
        let message = event.message.clone();
        self.merge(event, |stored| *stored == message)
    }

    /// Records the progress of a long operation as a single event, which always has the newest message. `subject` is
    /// the common prefix of the messages.
    pub fn emit_progress(
        &self,
        (key, uid): &(PodKey, PodUid),
        field_path: String,
        reason: &'static str,
        subject: &str,
        at: &str,
    ) {
        let mut message = format!("{subject}{at}");
        fault::cut(&mut message, MAX_MESSAGE);
        let involved = InvolvedObject::Pod(key.clone(), uid.clone());
        let event = Event::now(involved, EventType::Normal, Cow::Borrowed(reason), message);
        let event = Event { field_path: Some(field_path), ..event };
        self.merge(event, |stored| stored.starts_with(subject));
    }

    /// Replaces a stored event with the same subject by `event`, and adds up both counts.
    fn merge(&self, event: Event, is_same: impl Fn(&String) -> bool) -> u32 {
        let mut ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        let known = ring.iter().position(|stored| {
            stored.involved == event.involved
                && stored.field_path == event.field_path
                && stored.reason == event.reason
                && is_same(&stored.message)
        });
        let event = match known.and_then(|index| ring.remove(index)) {
            Some(stored) => {
                Event { count: stored.count.saturating_add(event.count), first_seen: stored.first_seen, ..event }
            }
            None => event,
        };
        if ring.len() == MAX_EVENTS {
            ring.pop_front();
        }
        let count = event.count;
        ring.push_back(event);
        drop(ring);
        self.changed.notify_waiters();
        count
    }

    /// Whether an event of this pod with this message is stored.
    pub fn has(&self, pod: (&PodKey, &PodUid), message: &str) -> bool {
        let ring = self.ring.lock().unwrap_or_else(PoisonError::into_inner);
        ring.iter().any(|event| event.pod() == Some(pod) && event.message == message)
    }

    /// All stored events, oldest first.
    pub fn snapshot(&self) -> Vec<Event> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Resolves at the next event that is recorded after this call, whenever it is awaited.
    pub fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }
}

#[cfg(test)]
mod tests {
    use limpet_model::pod::Role;

    use super::*;

    fn emit(events: &Events, message: &str) -> u32 {
        events.emit(None, Some(Role::Main.field_path("web")), EventType::Normal, "Started", message.to_owned())
    }

    #[test]
    fn repeats_are_counted_and_moved_to_the_end() {
        let events = Events::default();
        assert_eq!((emit(&events, "a"), emit(&events, "b"), emit(&events, "a")), (1, 1, 2));
        let stored: Vec<(String, u32)> =
            events.snapshot().into_iter().map(|event| (event.message, event.count)).collect();
        assert_eq!(stored, [("b".to_owned(), 1), ("a".to_owned(), 2)]);
    }

    #[test]
    fn an_event_of_a_workload_names_it() {
        let events = Events::default();
        let job = (ObjectKey::new(ObjectKind::Job, "shop", "backup"), "1".to_owned());
        events.emit_of_workload(job, EventType::Normal, "Completed".into(), "Job completed".to_owned());
        let stored = events.snapshot().remove(0);
        let written = stored.as_kubernetes("edge1");
        let object = &written.involved_object;
        let named = [&object.api_version, &object.kind, &object.namespace, &object.name].map(|text| text.as_deref());
        assert_eq!(named, [Some("batch/v1"), Some("Job"), Some("shop"), Some("backup")]);
        assert_eq!(written.metadata.namespace.as_deref(), Some("shop"));
        assert_eq!(Event::from_kubernetes(written), Some(stored));
    }

    #[test]
    fn progress_is_one_event_with_the_newest_message() {
        let events = Events::default();
        let pod = (PodKey::new("default", "web"), PodUid::new("1"));
        let progress = |image: &str, at: &str| {
            events.emit_progress(
                &pod,
                Role::Main.field_path("main"),
                "Pulling",
                &format!("Pulling image \"{image}\": "),
                at,
            );
        };
        let begin = "Pulling image \"a\"".to_owned();
        events.emit(
            Some(pod.clone()),
            Some(Role::Main.field_path("main")),
            EventType::Normal,
            "Pulling",
            begin.clone(),
        );
        progress("a", "1 of 9 MiB");
        progress("ab", "2 of 5 MiB");
        progress("a", "5 of 9 MiB");
        let stored: Vec<(String, u32)> =
            events.snapshot().into_iter().map(|event| (event.message, event.count)).collect();
        let wanted =
            [(begin.as_str(), 1), ("Pulling image \"ab\": 2 of 5 MiB", 1), ("Pulling image \"a\": 5 of 9 MiB", 2)];
        assert_eq!(stored, wanted.map(|(message, count)| (message.to_owned(), count)));
    }

    #[test]
    fn a_message_has_an_apiservers_limit() {
        let events = Events::default();
        emit(&events, &"x".repeat(MAX_MESSAGE));
        assert_eq!((emit(&events, &"y".repeat(5_000)), emit(&events, &"y".repeat(6_000))), (1, 2));
        let lengths: Vec<usize> = events.snapshot().iter().map(|event| event.message.len()).collect();
        assert_eq!(lengths, [MAX_MESSAGE, MAX_MESSAGE]);
    }

    #[test]
    fn the_oldest_event_is_dropped_when_the_ring_is_full() {
        let events = Events::default();
        for number in 0..=MAX_EVENTS {
            emit(&events, &number.to_string());
        }
        let stored = events.snapshot();
        assert_eq!((stored.len(), stored[0].message.as_str()), (MAX_EVENTS, "1"));
    }
}
