//! The server on a real socket, with the command line's own client.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Mutex;

use jiff::Timestamp;
use k8s_openapi::List;
use k8s_openapi::api::core::v1::{Event as KubeEvent, Pod};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{self, all_routes, serve_all, stream_states};
use crate::settings::DebugHandlers;
use limpet_core::fixtures::observed;
use limpet_core::merge::{DesiredPods, Duplicate};
use limpet_core::source::{Health as SourceHealth, Rejection, SourceSnapshot};
use limpet_core::status::observed::ObservedPod;
use limpet_model::pod::{Fault, PodKey, PodRecord};
use limpet_model::source::SourceKind;
use limpet_telemetry::event::{Event, EventType, InvolvedObject};
use limpet_telemetry::health::Heartbeat;
use limpet_wire::pods::{DescribeDocument, PodChange, PodEntry, PodNames, PodsDocument, SourceDocument};
use limpet_wire::socket_client::SocketClient;

/// A directory that is removed at the end of the test.
struct TempDir(PathBuf);

impl TempDir {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("limpet-server-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

type SharedSnapshot = Arc<Mutex<Arc<SourceSnapshot>>>;

struct Fixture {
    state: ServerState,
    heartbeat: Heartbeat,
    file: SharedSnapshot,
    client: SocketClient,
    stop: CancellationToken,
    server: tokio::task::JoinHandle<()>,
    _dir: TempDir,
}

fn fixture(name: &str) -> Fixture {
    let dir = TempDir::new(name);
    let path = dir.0.join("limpet.sock");
    let file = SharedSnapshot::default();
    let shared = Arc::clone(&file);
    let sources = move || {
        vec![SourceView {
            kind: SourceKind::File,
            place: "/etc/manifests".into(),
            backend: "inotify".into(),
            last_good: Some(Timestamp::UNIX_EPOCH),
            next_retry: None,
            persist_error: None,
            snapshot: Arc::clone(&shared.lock().unwrap()),
        }]
    };
    let (state, heartbeat) =
        fixtures::state(Arc::new(sources), fixtures::no_push_source(), super::stats::tests::meter());
    let stop = CancellationToken::new();
    let listener = bind(&path).unwrap();
    let server = tokio::spawn(serve_all(listener, state.clone(), stop.clone()));
    Fixture { state, heartbeat, file, client: SocketClient::new(&path), stop, server, _dir: dir }
}

fn web() -> Arc<ObservedPod> {
    observed(json!({
        "metadata": {"name": "web-edge1", "namespace": "default", "uid": "u1", "annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "web", "image": "web:1"}], "initContainers": [{"name": "prepare"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "web", "ready": true, "restartCount": 0, "image": "web:1", "imageID": "", "state": {"running": {}}}
        ]},
    }))
}

fn rejecting(key: Option<&PodKey>) -> Arc<SourceSnapshot> {
    let mut snapshot = SourceSnapshot { ready: true, health: SourceHealth::Good, ..SourceSnapshot::default() };
    let mut fault = Fault::error("spec.containers", "required");
    fault.origin = "web.yaml".into();
    fault.position = Some((7, 3));
    let kept = key.cloned().into_iter().collect();
    let rejection = Rejection { origin: "web.yaml".into(), faults: vec![fault], kept };
    snapshot.rejected.insert("web.yaml".into(), Arc::new(rejection));
    Arc::new(snapshot)
}

fn event(key: &PodKey, reason: &'static str) -> Event {
    Event {
        involved: InvolvedObject::Pod(key.clone(), limpet_model::pod::PodUid::new("u1")),
        field_path: Some("spec.containers{web}".to_owned()),
        event_type: EventType::Normal,
        reason: reason.into(),
        message: format!("{reason} it"),
        count: 1,
        first_seen: Timestamp::UNIX_EPOCH,
        last_seen: Timestamp::UNIX_EPOCH,
    }
}

#[tokio::test]
async fn pods_are_served_as_kubelet_serves_them() {
    let fixture = fixture("pods");
    let pod = web();
    fixture.state.observed.publish(&pod.record.key, Some(Arc::clone(&pod)));

    let list: List<Pod> = fixture.client.get_json("/pods").await.unwrap();
    let [served] = &list.items[..] else { panic!("one pod: {list:?}") };
    assert_eq!(served.metadata.uid.as_deref(), Some("u1"));
    assert_eq!(served.metadata.annotations.as_ref().unwrap()["a"], "b");
    assert_eq!(served.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    assert_eq!(served.spec.as_ref().unwrap().containers[0].image.as_deref(), Some("web:1"));

    let running: List<Pod> = fixture.client.get_json("/runningpods/").await.unwrap();
    assert_eq!(running.items[0].spec.as_ref().unwrap().containers[0].name, "web");

    let names: Vec<PodNames> = fixture.client.get_json("/limpet/v1/names").await.unwrap();
    assert_eq!(names[0].manifest_name, "web");
    assert_eq!(names[0].containers, ["web", "prepare"]);
}

#[tokio::test]
async fn a_pod_only_a_source_has_is_pending_and_a_terminating_pod_is_shown_as_such() {
    let fixture = fixture("pending");
    let pod = web();
    let key = pod.record.key.clone();
    let mut snapshot = SourceSnapshot::default();
    snapshot.pods.insert(key.clone(), Arc::clone(&pod.record));
    *fixture.file.lock().unwrap() = Arc::new(snapshot);
    let document: PodsDocument = fixture.client.get_json("/limpet/v1/pods").await.unwrap();
    assert_eq!(document.pods[0].pod.status.as_ref().unwrap().phase.as_deref(), Some("Pending"));

    let ending = ObservedPod { terminating_since: Some(Timestamp::UNIX_EPOCH), ..ObservedPod::clone(&pod) };
    fixture.state.observed.publish(&key, Some(Arc::new(ending)));
    let document: PodsDocument = fixture.client.get_json("/limpet/v1/pods").await.unwrap();
    assert!(document.pods[0].pod.metadata.deletion_timestamp.is_some());
    assert_eq!(document.pods[0].pod.metadata.deletion_grace_period_seconds, Some(30));
}

#[tokio::test]
async fn a_rejected_manifest_is_noted_on_the_pod_that_keeps_running() {
    let fixture = fixture("rejected");
    let pod = web();
    let key = &pod.record.key;
    fixture.state.observed.publish(key, Some(Arc::clone(&pod)));
    fixture.state.events.record(event(key, "Started"));
    *fixture.file.lock().unwrap() = rejecting(Some(key));

    let list: PodsDocument = fixture.client.get_json("/limpet/v1/pods").await.unwrap();
    assert_eq!(list.pods[0].note.as_deref(), Some("newer manifest rejected, see: limpet describe web-edge1"));
    let document: DescribeDocument =
        fixture.client.get_json("/limpet/v1/pods/default/web-edge1/describe").await.unwrap();
    assert_eq!(document.entry.note, None, "the details follow below");
    assert_eq!(document.rejected[0].faults[0].text, "web.yaml:7:3: spec.containers: required");
    assert_eq!(document.rejected[0].kept, ["default/web-edge1"]);
    assert_eq!(document.events[0].reason.as_deref(), Some("Started"));
    assert_eq!(document.events[0].involved_object.field_path.as_deref(), Some("spec.containers{web}"));

    let sources: Vec<SourceDocument> = fixture.client.get_json("/limpet/v1/sources").await.unwrap();
    assert_eq!((sources[0].health.as_str(), sources[0].rejected.len()), ("good", 1));

    let missing = fixture.client.get_json::<Value>("/limpet/v1/pods/default/gone/describe").await.unwrap_err();
    assert_eq!(missing.to_string(), "no pod default/gone on this node");
}

#[tokio::test]
async fn a_watch_sends_the_state_then_every_change() {
    let fixture = fixture("watch");
    let pod = web();
    let key = &pod.record.key;
    fixture.state.observed.publish(key, Some(Arc::clone(&pod)));
    let mut lines = fixture.client.lines::<PodChange>("/limpet/v1/pods?watch=1").await.unwrap();
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Added(_))));
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Synced)));

    *fixture.file.lock().unwrap() = rejecting(Some(key));
    fixture.state.observed.touch();
    let Some(PodChange::Modified(entry)) = lines.next().await.unwrap() else { panic!("the note is news") };
    assert!(entry.note.unwrap().starts_with("newer manifest rejected"));

    fixture.state.observed.publish(key, None);
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Deleted(_))));
    fixture.stop.cancel();
    fixture.server.await.unwrap();
    assert!(!matches!(lines.next().await, Ok(Some(_))), "a stopped agent ends the watch");
}

#[tokio::test]
async fn a_watcher_gets_the_last_status_of_a_pod_before_its_deletion() {
    let fixture = fixture("last");
    let observed = &fixture.state.observed;
    let (pod, key) = (web(), web().record.key.clone());
    observed.publish(&key, Some(Arc::clone(&pod)));
    let mut lines = fixture.client.lines::<PodChange>("/limpet/v1/pods?watch=1").await.unwrap();
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Added(_))));
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Synced)));

    // Both changes happen before the watcher looks again.
    let mut last = (*pod).clone();
    last.status.phase = Some("Failed".to_owned());
    observed.publish(&key, Some(Arc::new(last)));
    observed.publish(&key, None);
    let phase = |entry: &PodEntry| entry.pod.status.as_ref().and_then(|status| status.phase.clone());
    let Some(PodChange::Modified(entry)) = lines.next().await.unwrap() else { panic!("the last status comes first") };
    assert_eq!(phase(&entry).as_deref(), Some("Failed"));
    let Some(PodChange::Deleted(entry)) = lines.next().await.unwrap() else { panic!("then the deletion") };
    assert_eq!(phase(&entry).as_deref(), Some("Failed"));

    // A pod that came and went between two lines is not skipped.
    observed.publish(&key, Some(Arc::clone(&pod)));
    observed.publish(&key, None);
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Added(_))));
    assert!(matches!(lines.next().await.unwrap(), Some(PodChange::Deleted(_))));

    // A disconnected watcher holds nothing.
    drop(lines);
    while observed.consumers() > 0 {
        tokio::task::yield_now().await;
    }
    fixture.stop.cancel();
    fixture.server.await.unwrap();
}

#[tokio::test]
async fn events_are_watched_with_their_counts() {
    let fixture = fixture("events");
    let key = PodKey::new("default", "web-edge1");
    fixture.state.events.record(event(&key, "Pulling"));
    fixture.state.events.record(event(&PodKey::new("default", "other"), "Pulling"));
    let path = "/limpet/v1/events?watch=1&pod=default/web-edge1";
    let mut lines = fixture.client.lines::<KubeEvent>(path).await.unwrap();
    assert_eq!(lines.next().await.unwrap().unwrap().count, Some(1));
    fixture.state.events.record(event(&PodKey::new("default", "other"), "Started"));
    fixture.state.events.record(event(&key, "Pulling"));
    assert_eq!(lines.next().await.unwrap().unwrap().count, Some(2), "a repeated event is sent again, others are not");

    let list: List<KubeEvent> = fixture.client.get_json("/limpet/v1/events").await.unwrap();
    let reasons: Vec<_> = list.items.iter().filter_map(|event| event.reason.as_deref()).collect();
    assert_eq!(reasons, ["Pulling", "Started", "Pulling"]);
}

#[tokio::test]
async fn liveness_probes_the_loop_and_readiness_the_parts() {
    let mut fixture = fixture("health");
    let beating = tokio::spawn(async move {
        loop {
            fixture.heartbeat.beat().await;
        }
    });
    assert_eq!(fixture.client.get_text("/healthz").await.unwrap(), "ok");
    assert_eq!(fixture.client.get_text("/healthz/ping").await.unwrap(), "ok");
    assert_eq!(fixture.client.get_text("/healthz/syncloop").await.unwrap(), "ok");
    let unready = fixture.client.get_text("/readyz").await.unwrap_err().to_string();
    assert!(
        unready.contains("[+]syncloop ok\n[-]containerd failed: not connected\n[-]source file failed"),
        "{unready}"
    );
    fixture.state.health.set_containerd(true);
    *fixture.file.lock().unwrap() = rejecting(None);
    assert_eq!(fixture.client.get_text("/readyz").await.unwrap(), "ok");

    beating.abort();
    let _ = beating.await;
    let unready = fixture.client.get_text("/livez").await.unwrap_err().to_string();
    assert!(unready.contains("[-]syncloop failed"), "a stopped loop is detected: {unready}");
}

#[tokio::test]
async fn metrics_and_configuration_are_shown() {
    let fixture = fixture("metrics");
    let page = fixture.client.get_text("/metrics").await.unwrap();
    assert!(page.contains("\nkubelet_running_pods 0\n") && page.ends_with('\n'), "{page}");
    let config: Value = fixture.client.get_json("/configz").await.unwrap();
    assert_eq!(config["kubeletconfig"]["maxPods"], 110);
    let kubelet = config["kubeletconfig"].as_object().unwrap();
    assert!(!kubelet.values().any(Value::is_null), "clients in Go read no duration from null: {config}");
}

#[tokio::test]
async fn an_old_socket_is_replaced_but_no_other_file() {
    let dir = TempDir::new("bind");
    let path = dir.0.join("limpet.sock");
    let first = bind(&path).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(first);
    drop(bind(&path).unwrap());

    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    assert!(matches!(bind(&path), Err(ServerError::NotASocket { .. })));
    assert!(matches!(bind_metrics("192.0.2.1:9000".parse().unwrap()).await, Err(ServerError::NotLoopback { .. })));
}

#[tokio::test]
async fn a_pod_claimed_by_two_sources_is_reported_on_both() {
    let fixture = fixture("duplicates");
    let winner = web();
    fixture.state.observed.publish(&winner.record.key, Some(Arc::clone(&winner)));
    let winner = Arc::clone(&winner.record);
    let lost = |source, key: PodKey| Arc::new(PodRecord { source, key, ..(*winner).clone() });
    let same_key = lost(SourceKind::Http, winner.key.clone());
    let same_uid = lost(SourceKind::File, PodKey::new("default", "zoo-edge1"));
    let duplicate = |loser: &Arc<PodRecord>| Duplicate { winner: Arc::clone(&winner), loser: Arc::clone(loser) };
    let mut desired = DesiredPods::default();
    desired.duplicates.insert(winner.key.clone(), Arc::from([duplicate(&same_key), duplicate(&same_uid)]));
    desired.duplicates.insert(same_uid.key.clone(), Arc::from([duplicate(&same_uid)]));
    fixture.state.desired.store(Arc::new(desired));
    let pods = [&winner, &same_uid].map(|record| (record.key.clone(), Arc::clone(record))).into_iter().collect();
    *fixture.file.lock().unwrap() = Arc::new(SourceSnapshot { pods, ready: true, ..SourceSnapshot::default() });

    let documents: PodsDocument = fixture.client.get_json("/limpet/v1/pods").await.unwrap();
    let notes: Vec<&str> = documents.pods.iter().map(|entry| entry.note.as_deref().unwrap_or_default()).collect();
    assert!(notes[0].contains("http web.yaml also defines this pod") && notes[0].contains("default/zoo-edge1"));
    assert!(notes[1].starts_with("not run: its uid u1 is that of default/web-edge1"), "{notes:?}");
    let rejected: Vec<&str> = documents.sources[0].rejected.iter().map(|each| &*each.faults[0].path).collect();
    assert_eq!(rejected, ["metadata.uid"], "the file source reports its own lost claims, not those of others");

    let path = |name: &str| format!("/limpet/v1/pods/default/{name}/describe");
    let web: DescribeDocument = fixture.client.get_json(&path("web-edge1")).await.unwrap();
    assert_eq!(web.duplicates.len(), 2);
    let zoo: DescribeDocument = fixture.client.get_json(&path("zoo-edge1")).await.unwrap();
    assert!(zoo.duplicates[0].starts_with("not run: its uid"), "{:?}", zoo.duplicates);
    fixture.stop.cancel();
    fixture.server.await.unwrap();
}

mod permissions;
