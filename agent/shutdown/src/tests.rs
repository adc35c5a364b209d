//! The task, with a real message bus on which a fake answers instead of logind, and a supervisor that only records.

use std::sync::Arc;
use std::time::Duration;

use limpet_core::fixtures::observed;
use limpet_core::node_shutdown::{PodEndState, ShutdownOrder, ShutdownPolicy, channel};
use limpet_core::status::observed::{Observed, ObservedPod};
use limpet_tests::logind::FakeLogind;
use limpet_tests::message_bus::MessageBus;
use serde_json::json;
use tokio::sync::oneshot;
use tokio::task::spawn_blocking;

use super::*;

const SOON: Duration = Duration::from_secs(20);

/// The task's surroundings.
struct Node {
    observed: Observed,
    requests: mpsc::Sender<ShutdownRequest>,
    shutting_down: watch::Receiver<bool>,
    orders: mpsc::Receiver<ShutdownOrder>,
    progress: watch::Receiver<ShutdownProgress>,
    events: Events,
    stop: CancellationToken,
    directory: tempfile::TempDir,
}

fn pod(name: &str, class: Option<&str>) -> Arc<ObservedPod> {
    observed(json!({
        "metadata": { "name": name },
        "spec": { "containers": [{ "name": "a", "image": "a" }], "priorityClassName": class },
    }))
}

/// Starts it with these pods.
fn start(policy: ShutdownPolicy, logind: Option<Logind>, pods: &[Arc<ObservedPod>]) -> Node {
    let (observed, events) = (Observed::default(), Events::default());
    for pod in pods {
        observed.publish(&pod.record.key, Some(Arc::clone(pod)));
    }
    let (requests, asked) = channel();
    let (announce, shutting_down) = watch::channel(false);
    let (to, orders) = mpsc::channel(1);
    let (show, progress) = watch::channel(ShutdownProgress::default());
    let (stop, directory) = (CancellationToken::new(), tempfile::tempdir().unwrap());
    let task = NodeShutdown {
        policy,
        logind,
        observed: observed.clone(),
        requests: asked,
        shutting_down: announce,
        orders: to,
        progress: show,
        record: directory.path().join("record"),
        events: events.clone(),
        metrics: Metrics::new("edge1"),
    };
    tokio::spawn(task.run(stop.clone()));
    Node { observed, requests, shutting_down, orders, progress, events, stop, directory }
}

impl Node {
    async fn order(&mut self) -> (String, Duration, oneshot::Sender<()>) {
        let order = tokio::time::timeout(SOON, self.orders.recv()).await.unwrap().unwrap();
        (order.key.to_string(), order.grace, order.done)
    }

    async fn wait(&mut self, what: impl FnMut(&ShutdownProgress) -> bool) -> ShutdownProgress {
        tokio::time::timeout(SOON, self.progress.wait_for(what)).await.unwrap().unwrap().clone()
    }

    async fn cancel(&self) -> Cancelled {
        let (done, answer) = oneshot::channel();
        self.requests.send(ShutdownRequest::Cancel(done)).await.unwrap();
        answer.await.unwrap()
    }

    async fn begin(&self) {
        let (done, answer) = oneshot::channel();
        self.requests.send(ShutdownRequest::Begin(done)).await.unwrap();
        answer.await.unwrap();
    }
}

/// Waits until logind has given this many locks.
async fn locked(logind: &FakeLogind, count: usize) {
    let logind = logind.clone();
    spawn_blocking(move || logind.wait_given(count, SOON)).await.unwrap().unwrap();
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[tokio::test]
async fn pods_end_in_steps_when_an_operator_asks_and_a_cancellation_is_told() {
    let pods = [pod("web", None), pod("net", Some("system-node-critical")), pod("db", None)];
    let mut node = start(ShutdownPolicy::default(), None, &pods);
    assert_eq!(node.cancel().await, Cancelled::NotShuttingDown);
    node.begin().await;
    assert!(*node.shutting_down.borrow());
    let (first, second) = (node.order().await, node.order().await);
    assert_eq!([&*first.0, &*second.0], ["default/db", "default/web"]);
    assert_eq!(first.1, seconds(30), "its own grace period");
    assert!(node.orders.try_recv().is_err(), "the critical one has its turn later");
    drop(first.2);
    second.2.send(()).unwrap();
    let third = node.order().await;
    assert_eq!(third.0, "default/net");
    third.2.send(()).unwrap();
    // The pods' statuses, as workers publish them.
    for pod in &pods {
        let mut ended = (**pod).clone();
        ended.status.phase = Some("Failed".to_owned());
        node.observed.publish(&pod.record.key, Some(Arc::new(ended)));
    }
    let done = node.wait(|progress| progress.done).await;
    let states: Vec<PodEndState> = done.pods.iter().map(|pod| pod.state).collect();
    assert_eq!(states, [PodEndState::Ended; 3]);
    assert_eq!(node.cancel().await, Cancelled::Yes);
    assert!(!*node.shutting_down.borrow());
    node.stop.cancel();
}

#[tokio::test]
async fn logind_waits_until_the_pods_have_ended() {
    let Some(bus) = MessageBus::start("shutdown").unwrap() else { return };
    let drop_ins = bus.directory().join("logind.conf.d");
    let logind = FakeLogind::start(bus.address(), Some(drop_ins.join("99-limpet.conf"))).unwrap();
    let policy = ShutdownPolicy::of_periods(seconds(60), seconds(20));
    let client = Logind::at(bus.address().to_owned(), policy.period(), drop_ins);
    let mut node = start(policy, Some(client), &[pod("web", None)]);
    locked(&logind, 1).await;
    assert_eq!(logind.delay_seconds(), 60, "its delay was extended");
    logind.announce(true).unwrap();
    let (name, grace, done) = node.order().await;
    assert_eq!((&*name, grace), ("default/web", seconds(30)));
    assert!(*node.shutting_down.borrow());
    assert!(logind.wait_released(Duration::ZERO).is_err(), "the pod runs");
    assert_eq!(node.cancel().await, Cancelled::ByMachine);
    let mut ended = (*pod("web", None)).clone();
    ended.status.phase = Some("Failed".to_owned());
    node.observed.publish(&ended.record.key.clone(), Some(Arc::new(ended)));
    done.send(()).unwrap();
    node.wait(|progress| progress.done).await;
    let waiting = logind.clone();
    spawn_blocking(move || waiting.wait_released(SOON)).await.unwrap().unwrap();
    let record = record::load(&node.directory.path().join("record")).await;
    assert!(record.end_time > record.start_time, "{record:?}");
    logind.announce(false).unwrap();
    tokio::time::timeout(SOON, node.shutting_down.wait_for(|down| !down)).await.unwrap().unwrap();
    let message = |event: &limpet_telemetry::event::Event| event.message.to_string();
    let messages: Vec<String> = node.events.snapshot().iter().map(message).collect();
    assert_eq!(
        messages,
        ["Shutdown manager detected shutdown event", "Shutdown manager detected shutdown cancellation"]
    );
    // The next shutdown is delayed again.
    locked(&logind, 2).await;
    node.stop.cancel();
}

#[tokio::test]
async fn a_restarted_bus_is_connected_again() {
    let Some(mut bus) = MessageBus::start("shutdown-again").unwrap() else { return };
    let logind = FakeLogind::start(bus.address(), None).unwrap();
    let policy = ShutdownPolicy::of_periods(seconds(2), seconds(1));
    let client = Logind::at(bus.address().to_owned(), policy.period(), bus.directory().join("none"));
    let mut node = start(policy, Some(client), &[]);
    locked(&logind, 1).await;
    bus.stop().unwrap();
    bus.start_again().unwrap();
    let logind = FakeLogind::start(bus.address(), None).unwrap();
    locked(&logind, 1).await;
    logind.announce(true).unwrap();
    tokio::time::timeout(SOON, node.shutting_down.wait_for(|down| *down)).await.unwrap().unwrap();
    node.stop.cancel();
}
