//! CRI's events of containers and sandboxes, derived from the difference between two snapshots.
//!
//! A client's stream compares the newest snapshot with the last one it sent, so a slow reader costs nothing:
//! everything in between becomes one step.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use jiff::Timestamp;
use tonic::Status;

use super::container::Run;
use super::identity::nanoseconds;
use super::sandbox;
use limpet_core::status::observed::{Changes, Observed, ObservedPod, ObservedPods};
use limpet_node_api::runtime as cri;
use limpet_node_api::runtime::ContainerEventType as Kind;

/// The events from now on, until the client disconnects.
pub(super) fn events(observed: Observed) -> BoxStream<'static, Result<cri::ContainerEventResponse, Status>> {
    let changes = observed.changes();
    let last = observed.load();
    let batches = stream::unfold((observed, changes, last), next);
    batches.flat_map(|events| stream::iter(events.into_iter().map(Ok))).boxed()
}

type Follower = (Observed, Changes, Arc<ObservedPods>);

async fn next((observed, mut changes, last): Follower) -> Option<(Vec<cri::ContainerEventResponse>, Follower)> {
    changes.next().await.then_some(())?;
    let now = observed.load();
    let events = between(&last, &now, Timestamp::now());
    Some((events, (observed, changes, now)))
}

/// The events between two snapshots: in the order of pods, and per pod ends before starts.
fn between(before: &ObservedPods, now: &ObservedPods, at: Timestamp) -> Vec<cri::ContainerEventResponse> {
    let mut events = Vec::new();
    for (key, pod) in &before.pods {
        let same = now.pods.get(key).filter(|now| now.record.uid == pod.record.uid);
        match same {
            Some(same) if Arc::ptr_eq(same, pod) => {}
            Some(same) => compare(Some(pod), Some(same), at, &mut events),
            None => compare(Some(pod), None, at, &mut events),
        }
    }
    for (key, pod) in &now.pods {
        if before.pods.get(key).is_none_or(|before| before.record.uid != pod.record.uid) {
            compare(None, Some(pod), at, &mut events);
        }
    }
    events
}

/// What a pod's events are about: ids, each with whether it runs.
fn subjects(pod: Option<&ObservedPod>) -> BTreeMap<String, bool> {
    let Some(pod) = pod else { return BTreeMap::new() };
    let containers = Run::all(pod).into_iter().map(|run| (run.id.to_owned(), run.is_running()));
    let runs = sandbox::state(pod) == cri::PodSandboxState::SandboxReady;
    containers.chain([(super::identity::sandbox_id(pod), runs)]).collect()
}

fn compare(
    before: Option<&ObservedPod>,
    now: Option<&ObservedPod>,
    at: Timestamp,
    events: &mut Vec<cri::ContainerEventResponse>,
) {
    let (was, is) = (subjects(before), subjects(now));
    let Some(pod) = now.or(before) else { return };
    let mut push = |id: &str, kind: Kind| {
        events.push(cri::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind as i32,
            created_at: nanoseconds(at),
            pod_sandbox_status: Some(sandbox::status(pod)),
            containers_statuses: Run::all(pod).iter().map(Run::status).collect(),
        });
    };
    for (id, ran) in &was {
        let runs = is.get(id);
        if *ran && runs != Some(&true) {
            push(id, Kind::ContainerStoppedEvent);
        }
        if runs.is_none() {
            push(id, Kind::ContainerDeletedEvent);
        }
    }
    for (id, runs) in &is {
        if !was.contains_key(id) {
            push(id, Kind::ContainerCreatedEvent);
        }
        if *runs && was.get(id) != Some(&true) {
            push(id, Kind::ContainerStartedEvent);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde_json::json;

    use super::super::tests::{pods, running, with};
    use super::*;

    #[test]
    fn events_are_what_differs_between_two_snapshots() {
        let (web, ended) =
            (running("web", "1", &[("main", "a", Some(7))]), running("web", "1", &[("main", "a", None)]));
        let restarted = running("web", "1", &[("main", "b", Some(8))]);
        let sandbox = super::super::identity::sandbox_id(&web);
        let failed = with(&ended, json!({"phase": "Failed"}));
        let other = running("web", "2", &[]);
        let none = ObservedPods::default();
        let table = [
            (none.clone(), pods([&web]), vec![("a", 0), ("a", 1), (&*sandbox, 0), (&*sandbox, 1)]),
            (pods([&web]), pods([&web]), vec![]),
            (pods([&web]), pods([&ended]), vec![("a", 2)]),
            (pods([&web]), pods([&restarted]), vec![("a", 2), ("a", 3), ("b", 0), ("b", 1)]),
            (pods([&web]), pods([&failed]), vec![("a", 2), (&*sandbox, 2)]),
            (pods([&web]), none, vec![("a", 2), ("a", 3), (&*sandbox, 2), (&*sandbox, 3)]),
        ];
        for (number, (before, now, wanted)) in table.into_iter().enumerate() {
            let events = between(&before, &now, Timestamp::UNIX_EPOCH);
            let mut actual: Vec<_> =
                events.iter().map(|event| (event.container_id.as_str(), event.container_event_type)).collect();
            let mut wanted = wanted;
            actual.sort_unstable();
            wanted.sort_unstable();
            assert_eq!(actual, wanted, "case {number}");
        }
        let replaced = between(&pods([&web]), &pods([&other]), Timestamp::UNIX_EPOCH);
        let (first, last) = (replaced.first().unwrap(), replaced.last().unwrap());
        assert_eq!(first.pod_sandbox_status.as_ref().unwrap().metadata.as_ref().unwrap().uid, "1");
        assert_eq!(last.container_id, super::super::identity::sandbox_id(&other));
    }
}
