#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use hyper::http::Method;
use tokio::task::JoinSet;
use tokio::time;

use super::super::fake::{self, Asked};
use super::super::follow::{Leader, WatchTarget, follow};
use super::super::lease::Lease;
use super::super::own_change::{OwnChangesSeen, own_changes};
use super::super::runtime::HollowRuntime;
use super::*;
use limpet_apiserver_client::Selector;
use limpet_model::pod::requests::Requests;

mod heartbeats;

const NODE_STATUS: &str = "/api/v1/nodes/node/status";
const NODES: &str = "/api/v1/nodes";

/// The Node as the apiserver has it at this version.
fn stored(version: u64, unschedulable: bool) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": { "name": "node", "uid": "u-1", "resourceVersion": version.to_string() },
        "spec": { "unschedulable": unschedulable }, "status": {},
    })
}

fn list(node: &Value) -> Value {
    json!({ "kind": "NodeList", "metadata": { "resourceVersion": node["metadata"]["resourceVersion"] }, "items": [node] })
}

/// The leading watch and the reporter over this link. Returns what the reporter publishes.
fn start(link: &Link, tasks: &mut JoinSet<()>) -> watch::Receiver<NodeFromApiserver> {
    start_with(link, tasks, |_| {})
}

/// The same with a modified reporter.
fn start_with(
    link: &Link,
    tasks: &mut JoinSet<()>,
    change: impl FnOnce(&mut NodeReporter),
) -> watch::Receiver<NodeFromApiserver> {
    let (send, updates) = mpsc::channel(16);
    let (seen, of_others) = watch::channel(NodeFromApiserver::Unknown);
    let (own_changes, own_changes_seen) = own_changes();
    tasks.spawn(follow(link.clone(), leading_watch(link, own_changes_seen), send));
    let mut reporter = reporter(link, seen, own_changes);
    change(&mut reporter);
    tasks.spawn(reporter.run(updates));
    of_others
}

fn leading_watch(link: &Link, own_changes: OwnChangesSeen) -> WatchTarget {
    let lease = Arc::new(Lease {
        link: link.clone(),
        name: "node".to_owned(),
        duration: Duration::from_secs(40),
        source: mpsc::channel(1).0,
        unanswered: Mutex::default(),
        version: AtomicU64::default(),
    });
    let leads = Some(Leader { lease, own_changes });
    WatchTarget { resource: Resource::Nodes, selector: Selector::of_name("node"), leads }
}

fn reporter(link: &Link, seen: watch::Sender<NodeFromApiserver>, own_changes: OwnChanges) -> NodeReporter {
    NodeReporter {
        link: link.clone(),
        register: false,
        every: crate::settings::ClusterSettings::default().frequencies,
        description: description(),
        seen,
        own_changes,
        version: AtomicU64::default(),
        selectable: watch::channel(Selectable::default()).0,
        node_state: watch::channel(NodeState::default()).1,
        network: watch::channel(NetworkStatus::Ready { name: "net".to_owned() }).1,
        images: NodeImages::new(HollowRuntime::new(), None),
        runtime: HollowRuntime::new(),
        device_plugins: Arc::default(),
        volumes_in_use: VolumesInUse::default(),
        events: Events::default(),
    }
}

fn description() -> NodeDescription {
    NodeDescription {
        name: "node".to_owned(),
        labels: BTreeMap::new(),
        provider_id: None,
        taints: Vec::new(),
        external_cloud: None,
        architecture: "amd64",
        capacity: Requests::default(),
        allocatable: Requests::default(),
        max_pods: 110,
        runtime_handlers: Vec::new(),
        user_namespaces: BTreeSet::new(),
        swap: 0,
        api_port: None,
        info: BTreeMap::new(),
    }
}

/// Events of the Node at versions 2 to `last`, the last of which makes it unschedulable; then silence.
fn events(last: u64) -> fake::Answer {
    let event = move |version| Ok(json!({ "type": "MODIFIED", "object": stored(version, version == last) }));
    fake::lines(stream::iter((2..=last).map(event)).chain(stream::pending()))
}

#[tokio::test(start_paused = true)]
async fn a_refused_report_delays_no_change_of_the_node_and_no_new_connection() {
    let (refuses, reports) = (Arc::new(AtomicBool::new(true)), Arc::new(AtomicUsize::default()));
    let (refuses_now, counted) = (Arc::clone(&refuses), Arc::clone(&reports));
    let link = fake::link(move |asked: Asked| {
        let (refuses, reports) = (Arc::clone(&refuses_now), Arc::clone(&counted));
        async move {
            match (asked.method.clone(), &*asked.path) {
                (Method::PATCH, NODE_STATUS) if refuses.load(Ordering::Relaxed) => fake::refusal(500),
                (Method::PATCH, NODE_STATUS) => {
                    reports.fetch_add(1, Ordering::Relaxed);
                    fake::whole(200, &stored(41, true))
                }
                // This happens before the first report is refused.
                (_, NODES) if asked.is_watch() => {
                    time::sleep(Duration::from_millis(100)).await;
                    events(41)
                }
                (_, NODES) => fake::whole(200, &list(&stored(1, false))),
                (_, path) if path.contains("/leases/") => fake::whole(200, &json!({})),
                _ => Err(fake::reset()),
            }
        }
    });
    let mut tasks = JoinSet::new();
    let mut seen = start(&link, &mut tasks);
    let newest = |seen: &NodeFromApiserver| seen.node().is_some_and(|node| node.unschedulable);
    time::timeout(Duration::from_millis(200), seen.wait_for(newest)).await.unwrap().unwrap();

    // Another request detects that the connection is gone.
    let other = Request::get(Resource::Service("default".to_owned(), "kubernetes".to_owned()));
    assert!(link.send(other).await.is_err() && !link.is_online());
    time::timeout(Duration::from_secs(10), link.online()).await.unwrap();
    refuses.store(false, Ordering::Relaxed);
    time::sleep(Duration::from_secs(15)).await;
    assert_eq!(reports.load(Ordering::Relaxed), 1);
}

#[tokio::test(start_paused = true)]
async fn changes_that_arrive_while_a_report_hangs_are_applied() {
    let link = fake::link(|asked: Asked| async move {
        match (asked.method.clone(), &*asked.path) {
            (Method::PATCH, _) => std::future::pending().await,
            (_, NODES) if asked.is_watch() => events(41),
            (_, NODES) => fake::whole(200, &list(&stored(1, false))),
            _ => fake::whole(200, &json!({})),
        }
    });
    let mut tasks = JoinSet::new();
    let mut seen = start(&link, &mut tasks);
    let newest = |seen: &NodeFromApiserver| seen.node().is_some_and(|node| node.unschedulable);
    time::timeout(Duration::from_secs(1), seen.wait_for(newest)).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_connection_comes_back_while_no_update_is_read() {
    let link = fake::link(|asked: Asked| async move {
        match &*asked.path {
            NODES if asked.is_watch() => events(41),
            NODES => fake::whole(200, &list(&stored(1, false))),
            path if path.contains("/leases/") => fake::whole(200, &json!({})),
            _ => Err(fake::reset()),
        }
    });
    let (send, mut updates) = mpsc::channel(1);
    let mut tasks = JoinSet::new();
    tasks.spawn(follow(link.clone(), leading_watch(&link, own_changes().1), send));
    time::timeout(Duration::from_secs(1), link.online()).await.unwrap();
    for _ in 0..3 {
        let other = Request::get(Resource::Service("default".to_owned(), "kubernetes".to_owned()));
        assert!(link.send(other).await.is_err() && !link.is_online());
        time::timeout(Duration::from_secs(10), link.online()).await.unwrap();
    }
    // Updates that were not passed on are requested again.
    let mut newest = 1;
    while newest < 41 {
        match time::timeout(Duration::from_secs(1), updates.recv()).await.unwrap().unwrap() {
            Update::Stored(node) => newest = version_of(&node),
            Update::Listed(..) => {}
            update => panic!("{update:?}"),
        }
    }
}

/// This happens, for example, if the watch began after the deletion and the creation's answer arrived after the list.
#[tokio::test(start_paused = true)]
async fn a_node_that_is_gone_without_a_word_of_the_watch_is_created_again() {
    let (created, mut creations) = mpsc::channel(1);
    let link = fake::link(move |asked: Asked| {
        let created = created.clone();
        async move {
            match (asked.method.clone(), &*asked.path) {
                (Method::PATCH, path) if path.starts_with(NODES) => fake::refusal(404),
                (Method::POST, NODES) => {
                    created.send(()).await.unwrap();
                    fake::whole(201, &stored(9, false))
                }
                (_, NODES) if asked.is_watch() => fake::lines(stream::pending()),
                (_, NODES) => fake::whole(200, &list(&stored(1, false))),
                _ => fake::whole(200, &json!({})),
            }
        }
    });
    let mut tasks = JoinSet::new();
    let _seen = start_with(&link, &mut tasks, |reporter| {
        reporter.register = true;
        reporter.description.labels = BTreeMap::from([("kubernetes.io/hostname".to_owned(), "node".to_owned())]);
    });
    time::timeout(Duration::from_secs(1), creations.recv()).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_late_answer_to_the_creation_does_not_hide_the_deletion() {
    let (created, mut creations) = mpsc::channel(1);
    let (listed, mut lists) = mpsc::channel(1);
    let absent = |version: &str| json!({ "kind": "NodeList", "metadata": { "resourceVersion": version }, "items": [] });
    let link = fake::link(move |asked: Asked| {
        let (created, listed) = (created.clone(), listed.clone());
        async move {
            match (asked.method.clone(), &*asked.path) {
                (Method::POST, NODES) => {
                    created.send(()).await.unwrap();
                    // The Node of version 3 is deleted meanwhile; the next list, at version 5, has none.
                    time::sleep(Duration::from_secs(5)).await;
                    fake::whole(201, &stored(3, false))
                }
                (_, NODES) if asked.is_watch() => fake::lines(stream::pending()),
                (_, NODES) => {
                    let _ = listed.try_send(());
                    fake::whole(200, &absent("5"))
                }
                _ => fake::whole(200, &json!({})),
            }
        }
    });
    let mut tasks = JoinSet::new();
    let seen = start_with(&link, &mut tasks, |reporter| reporter.register = true);
    lists.recv().await.unwrap();
    for _ in 0..2 {
        time::timeout(Duration::from_secs(10), creations.recv()).await.unwrap().unwrap();
    }
    assert!(seen.borrow().node().is_none(), "the Node is gone");
}
