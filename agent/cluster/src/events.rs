//! Posts the node's events to the apiserver: each event once, and its new count when it recurs.
//!
//! The agent itself merges and bounds its events. This module compares them with those already posted, within
//! client-go's [`limits`], and leaves out events that the server would drop for their age.

mod limited_namespaces;
mod limits;

use std::time::Duration;

use jiff::Timestamp;
use serde_json::json;
use tokio::time::{Instant, timeout};

use self::limited_namespaces::LimitedNamespaces;
use self::limits::{Decision, EventLimits};
use super::event_schedule::due;
use super::link::{BUSY, Link};
use super::unsent_events::UnsentEvents;
use limpet_apiserver_client::request::PatchType;
use limpet_apiserver_client::{Request, RequestError, Resource};
use limpet_host::clock::sleep_until_or_forever;
use limpet_telemetry::event::{Event, Events};

/// The most events that are posted without a pause, which spreads a burst.
const POST_BATCH_SIZE: usize = 25;
const POST_BATCH_INTERVAL: Duration = Duration::from_secs(1);
/// How long events wait after an outage for statuses and mirrors, some of which may be refused for long.
const STATUSES_FIRST: Duration = Duration::from_secs(10);

/// Posts events while the agent runs.
pub(super) async fn post(link: Link, node_name: String, events: Events, unsent: &UnsentEvents) {
    let (mut failures, mut limits) = (0, EventLimits::default());
    let mut limited = LimitedNamespaces::default();
    loop {
        if !link.is_online() {
            link.online().await;
            // After this time events are posted beside the remaining statuses.
            let _ = timeout(STATUSES_FIRST, link.outbox().nothing_differs()).await;
        }
        // Subscribed before the comparison, so that no change during the requests below is missed.
        let changed = events.changed();
        let all = events.snapshot();
        limits.retain(&all);
        // The time at which the first waiting event is due.
        let mut next = None;
        let news = {
            let mut posted = link.outbox().posted();
            posted.retain(|name, _| all.iter().any(|event| *name == event.name(&node_name)));
            let mut news = due(&all, &posted, &node_name, Timestamp::now());
            news.retain(|event| !limited.holds(event, Instant::now(), &mut next));
            news
        };
        let more = news.len() > POST_BATCH_SIZE;
        let mut failed = None;
        for event in news.into_iter().take(POST_BATCH_SIZE) {
            if limited.holds(event, Instant::now(), &mut next) {
                continue;
            }
            let name = event.name(&node_name);
            let (now, has_own) = (Timestamp::now(), link.outbox().posted().get(&name).is_some_and(|count| *count > 0));
            let decision = limits.decide(event, now);
            let posted = match &decision {
                Decision::Own => post_one(&link, &node_name, event, has_own).await,
                Decision::Combined(several) => post_one(&link, &node_name, several, several.count > 1).await,
                Decision::Dropped => Ok(()),
            };
            match posted {
                Ok(()) if matches!(decision, Decision::Dropped) => {}
                Ok(()) => limited.posted(event),
                // The server's rules refuse the event, or its namespace is missing. The local event remains.
                Err(error) if matches!(error.code(), Some(400 | 403 | 404 | 409 | 422)) => {
                    tracing::debug!(event = name, %error, "posting an event failed");
                }
                Err(error) if error.code() == Some(BUSY) => {
                    let now = Instant::now();
                    limited.refused(event, error.retry_after(), now, fastrand::u64(..));
                    limited.holds(event, now, &mut next);
                    continue;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
            limits.done(event, &decision, now);
            link.outbox().posted().insert(name, event.count);
        }
        match failed {
            Some(error) => {
                failures += 1;
                link.pause(failures, error.retry_after()).await;
            }
            None if more => tokio::time::sleep(POST_BATCH_INTERVAL).await,
            None => {
                failures = 0;
                if next.is_none() {
                    unsent.all_posted().await;
                }
                tokio::select! {
                    () = changed => {}
                    () = sleep_until_or_forever(next) => {}
                }
                // Events that happen together are posted together.
                tokio::time::sleep(POST_BATCH_INTERVAL).await;
            }
        }
    }
}

async fn post_one(link: &Link, node: &str, event: &Event, known: bool) -> Result<(), RequestError> {
    let document = event.as_kubernetes(node);
    let namespace = document.metadata.namespace.clone().unwrap_or_default();
    if known {
        // A progress event's message changes.
        let patch =
            json!({ "count": document.count, "lastTimestamp": document.last_timestamp, "message": document.message });
        let resource = Resource::Event(namespace.clone(), event.name(node));
        match link.send(Request::patch(resource, PatchType::Merge, patch).metadata_only()).await {
            // The server has dropped the event for its age.
            Err(error) if error.is_not_found() => {}
            result => return result.map(drop),
        }
    }
    link.send(Request::create(Resource::Events(namespace), json!(document)).metadata_only()).await.map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use limpet_model::pod::{PodKey, PodUid};
    use tokio::sync::mpsc;

    use std::collections::BTreeMap;

    use super::*;
    use crate::fake::{self, Asked};
    use limpet_telemetry::event::{EventType, InvolvedObject};

    #[tokio::test(start_paused = true)]
    async fn an_event_that_was_refused_is_sent_again_though_the_next_one_took_longer() {
        let (sent, mut received) = mpsc::unbounded_channel();
        let refuses = Arc::new(AtomicBool::new(true));
        let link = fake::link(move |asked: Asked| {
            let (sent, of_node) = (sent.clone(), asked.path.contains("/namespaces/default/"));
            let is_refused = of_node && refuses.swap(false, Ordering::Relaxed);
            async move {
                if is_refused {
                    return fake::refusal(BUSY);
                }
                if !of_node {
                    tokio::time::sleep(Duration::from_secs(3)).await;
                }
                sent.send(asked.path).unwrap();
                fake::whole(201, &json!({}))
            }
        });
        link.succeeded();
        let events = Events::default();
        events.emit(None, None, EventType::Normal, "Starting", String::new());
        let pod = (PodKey::new("lab", "web"), PodUid::new("1"));
        events.emit(Some(pod), None, EventType::Normal, "Started", String::new());
        let unsent = UnsentEvents::new(link.clone(), "edge1".to_owned(), events.clone(), None);
        let all = async {
            for namespace in ["lab", "default"] {
                assert_eq!(received.recv().await.unwrap(), format!("/api/v1/namespaces/{namespace}/events"));
            }
        };
        tokio::select! {
            () = post(link, "edge1".to_owned(), events, &unsent) => {}
            all = timeout(Duration::from_secs(60), all) => all.unwrap(),
        }
    }

    #[test]
    fn an_event_is_due_once_and_again_with_a_higher_count_and_never_when_old() {
        let event = |second, count| Event {
            involved: InvolvedObject::Node,
            field_path: None,
            event_type: EventType::Normal,
            reason: "Started".into(),
            message: String::new(),
            count,
            first_seen: Timestamp::constant(second, 0),
            last_seen: Timestamp::constant(second, 0),
        };
        let all = [event(0, 1), event(4_000, 1), event(4_001, 2)];
        let now = Timestamp::constant(4_100, 0);
        let counts = |posted: &BTreeMap<String, u32>| -> Vec<u32> {
            due(&all, posted, "edge1", now).into_iter().map(|event| event.count).collect()
        };
        let mut posted = BTreeMap::new();
        assert_eq!(counts(&posted), [1, 2], "the first is older than an hour");
        posted.insert(all[1].name("edge1"), 1);
        posted.insert(all[2].name("edge1"), 1);
        assert_eq!(counts(&posted), [2]);
        posted.insert(all[2].name("edge1"), 2);
        assert_eq!(counts(&posted), [0; 0]);
    }
}
