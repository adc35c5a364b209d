use std::future::Future;

use limpet_wire::services::ServiceDocument;
use serde_json::json;

use limpet_core::merge::DesiredPods;
use limpet_model::pod::PodRecord;

use super::*;
use crate::fake::FakeBackend;
use crate::membership::tests::{definition, pod};
use crate::settings::tests::settings;

/// A node whose task has a kernel in memory, and no name server of its own.
struct Node {
    kernel: FakeBackend,
    observed: Observed,
    views: watch::Receiver<ServicesDocument>,
    definitions: watch::Sender<Definitions>,
    events: Events,
    _node: watch::Sender<NodeState>,
}

impl Node {
    /// Runs `test` beside the task, in virtual time.
    fn run<F: Future<Output = ()>>(test: impl FnOnce(Self) -> F) {
        Self::run_after(|_, _| {}, test);
    }

    /// The same with what an earlier agent has left in the kernel, and with the pods that are wanted.
    fn run_after<F: Future<Output = ()>>(before: impl FnOnce(&FakeBackend, &Desired), test: impl FnOnce(Self) -> F) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (kernel, observed, events) = (FakeBackend::default(), Observed::default(), Events::default());
            let (document, views) = watch::channel(ServicesDocument::default());
            let (node, node_state) = watch::channel(NodeState { runtime_ready: true, ..NodeState::default() });
            let (definitions, wanted) = watch::channel(Definitions::default());
            let desired = Desired::default();
            before(&kernel, &desired);
            let parts = Parts {
                settings: Settings { name_servers: Vec::new(), ..settings() },
                backend: Arc::new(kernel.clone()),
                off: None,
                observed: observed.clone(),
                desired,
                node: node_state,
                events: events.clone(),
                views: document,
                set_name_servers: Arc::new(|_| {}),
                links: ServiceLinks::default(),
            };
            let task = tokio::spawn(run(parts, wanted, CancellationToken::new()));
            test(Self { kernel, observed, views, definitions, events, _node: node }).await;
            task.abort();
        });
    }

    fn define(&self, services: impl Into<Arc<[Definition]>>) {
        self.definitions.send_modify(|definitions| {
            let version = definitions.version + 1;
            *definitions = Definitions { services: services.into(), are_complete: true, version };
        });
    }

    fn observe(&self, name: &str, address: &str, ready: bool) {
        let pod = pod(name, address, ready, json!({}));
        self.observed.publish(&pod.record.key.clone(), Some(pod));
    }

    /// Where connections are passed on to; `None` without rules.
    fn endpoints(&self) -> Option<Vec<String>> {
        let kernel = self.kernel.kernel();
        let places = kernel.rules.as_ref()?.forwards.iter().flat_map(|forward| forward.choice.places());
        Some(places.map(|place| place.address.to_string()).collect())
    }

    fn document(&self) -> ServicesDocument {
        self.views.borrow().clone()
    }
}

/// Lets the task follow, which takes no time unless it pauses.
async fn follow() {
    tokio::time::sleep(Duration::from_millis(1)).await;
}

#[test]
fn rules_follow_the_ready_pods() {
    Node::run(|node| async move {
        node.observe("a", "10.1.0.2", true);
        node.define([definition(json!({}))]);
        follow().await;
        assert_eq!(node.endpoints().unwrap(), ["10.1.0.2"]);
        node.observe("b", "10.1.0.3", true);
        node.observe("a", "10.1.0.2", false);
        follow().await;
        assert_eq!(node.endpoints().unwrap(), ["10.1.0.3"]);
        node.define([]);
        follow().await;
        assert_eq!(node.endpoints(), None);
    });
}

#[test]
fn a_network_in_the_range_ends_the_rules_until_it_has_gone() {
    Node::run(|node| async move {
        node.observe("a", "10.1.0.2", true);
        node.define([definition(json!({}))]);
        follow().await;
        node.kernel.kernel().overlap = Some(("eth1".to_owned(), "10.43.7.1".parse().unwrap()));
        node.observe("b", "10.1.0.3", true);
        follow().await;
        assert_eq!(node.endpoints(), None, "connections to the other network would be taken");
        let unserved = node.document().unserved.unwrap();
        assert!(unserved.starts_with("10.43.7.1 of eth1 is in a range of Services"), "{unserved}");
        let reported = node.events.snapshot().into_iter().filter(|event| event.reason == "ServicesNotServed").count();
        assert_eq!(reported, 1);
        node.kernel.kernel().overlap = None;
        tokio::time::sleep(PAUSE).await;
        follow().await;
        assert_eq!(node.endpoints().unwrap(), ["10.1.0.2", "10.1.0.3"]);
        assert_eq!(node.document().unserved, None);
    });
}

#[test]
fn rules_of_an_earlier_agent_stay_until_the_pods_are_known_that_have_not_ended() {
    let desired_pod = |name: &str, phase: &str| {
        let mut record = PodRecord::clone(&pod(name, "10.1.0.9", true, json!({})).record);
        record.pod.status = serde_json::from_value(json!({ "phase": phase })).unwrap();
        (record.key.clone(), Arc::new(record))
    };
    let before = |kernel: &FakeBackend, desired: &Desired| {
        kernel.kernel().rules = Some(Ruleset::default());
        // Nobody looks for the pod of a Job that has failed.
        let mut wanted = DesiredPods::default();
        wanted.pods = [desired_pod("a", "Pending"), desired_pod("job", "Failed")].into_iter().collect();
        desired.store(Arc::new(wanted));
    };
    Node::run_after(before, |node| async move {
        node.define([definition(json!({}))]);
        follow().await;
        assert_eq!(node.kernel.kernel().changes, 0, "a pod that may run is not observed yet");
        node.observe("a", "10.1.0.2", true);
        follow().await;
        assert_eq!(node.endpoints().unwrap(), ["10.1.0.2"]);
    });
}

#[test]
fn rules_that_another_program_has_removed_are_made_again() {
    Node::run(|node| async move {
        node.observe("a", "10.1.0.2", true);
        node.define([definition(json!({}))]);
        follow().await;
        let changes = node.kernel.kernel().changes;
        // What others remove is no reason to replace them.
        node.kernel.kernel().removed.send_replace(());
        follow().await;
        assert_eq!(node.kernel.kernel().changes, changes);
        node.kernel.kernel().rules = None;
        node.kernel.kernel().removed.send_replace(());
        follow().await;
        assert_eq!(node.endpoints().unwrap(), ["10.1.0.2"]);
        assert_eq!(node.kernel.kernel().changes, changes + 1);
    });
}

#[test]
fn a_removal_that_fails_is_tried_again() {
    Node::run(|node| async move {
        node.define([definition(json!({}))]);
        follow().await;
        node.kernel.kernel().refusals = 2;
        node.define([]);
        follow().await;
        assert!(node.endpoints().is_some(), "refused");
        tokio::time::sleep(PAUSE).await;
        assert!(node.endpoints().is_some(), "refused again");
        tokio::time::sleep(PAUSE).await;
        follow().await;
        assert_eq!(node.endpoints(), None);
    });
}

#[test]
fn a_service_is_shown_with_its_file() {
    Node::run(|node| async move {
        node.define([definition(json!({}))]);
        follow().await;
        let shown = node.document().services;
        let places: Vec<_> =
            shown.iter().map(|ServiceDocument { source, origin, .. }| (&**source, &**origin)).collect();
        assert_eq!(places, [("file", "web.yaml")]);
    });
}
