//! Pods that compete for a node, one decision after the other.

use std::cell::{Cell, RefCell};

use serde_json::{Value, json};

mod slots;

use super::pod::is_refusal;
use super::*;
use crate::device_plugins::PluginDevice;
use crate::fixtures::{READY, amounts, now, record_of};
use crate::node_state::NodeState;
use crate::state::{PodState, ResizeRefusal, SandboxState};
use limpet_model::source::SourceKind::{self, Api, File, Http, Push};

fn pod(name: &str, source: SourceKind, resources: Value) -> Arc<PodRecord> {
    record_of(name, source, json!({ "containers": [{ "name": "a", "resources": resources }] }))
}

/// The node, as its allocator has it.
struct Node {
    allocations: RefCell<Allocations>,
    plugins: RefCell<Inventory>,
    /// How often something has become free.
    changes: Cell<u64>,
    /// The part of them that `slot_freed` has reported.
    reported: Cell<u64>,
}

impl Node {
    fn new(offer: NodeOffer, labels: &[(&str, &str)]) -> Self {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let table = ["x.io/modem", "x.io/shared"].map(str::to_owned);
        Self {
            allocations: RefCell::new(Allocations::new(offer, labels)),
            plugins: RefCell::new(Inventory::new(table.into())),
            changes: Cell::default(),
            reported: Cell::default(),
        }
    }

    fn decide<T>(&self, decide: impl FnOnce(&mut Allocations, &mut Inventory) -> T) -> T {
        let mut allocations = self.allocations.borrow_mut();
        let result = decide(&mut allocations, &mut self.plugins.borrow_mut());
        self.changes.set(self.changes.get() + u64::from(allocations.take_freed()));
        result
    }

    fn candidate(&self, record: &Arc<PodRecord>) -> Candidate<'_> {
        let pod = PodState::new(Arc::clone(record), now().wall);
        Candidate { node: self, pod, allocation: PodAllocation::default(), seen: 0 }
    }

    fn enter(&self, record: &Arc<PodRecord>) -> Result<SlotGrant, Refused> {
        self.decide(|allocations, plugins| allocations.enter(record, plugins))
    }

    fn set_selectable(&self, now: Selectable) {
        self.decide(|allocations, _| allocations.set_selectable(now));
    }

    /// Whether something has become free since the last call.
    fn slot_freed(&self) -> bool {
        self.reported.replace(self.changes.get()) < self.changes.get()
    }

    /// A plugin has this number of healthy devices.
    fn list(&self, resource: &str, count: usize) {
        let device = PluginDevice { healthy: true, ..PluginDevice::default() };
        let devices = (0..count).map(|index| (index.to_string(), device.clone()));
        let mut plugins = self.plugins.borrow_mut();
        plugins.connected(resource, 0);
        plugins.listed(resource, 0, devices.collect());
        // Its plugins report such a change to all that wait.
        self.changes.set(self.changes.get() + 1);
    }

    fn wants_plugins(&self, record: &PodRecord) -> bool {
        self.plugins.borrow().pod_wants(record).next().is_some()
    }
}

fn two_cores(labels: &[(&str, &str)]) -> Node {
    let offer = NodeOffer {
        node_name: "edge1".to_owned(),
        max_pods: None,
        allowed_unsafe_sysctls: vec!["net.core.somaxconn".to_owned()],
        exclusive: ["x.io/modem".to_owned()].into(),
        allocatable: Some(amounts("2", "1Gi", "1Gi")),
    };
    Node::new(offer, labels)
}

fn labelled(zone: &str) -> Selectable {
    Selectable { labels: [("zone".to_owned(), zone.to_owned())].into(), taints: Vec::new() }
}

fn cpu(text: &str) -> Value {
    json!({ "requests": { "cpu": text } })
}

/// A pod of which nothing has begun. What it has is free once it is dropped.
struct Candidate<'a> {
    node: &'a Node,
    pod: PodState,
    allocation: PodAllocation,
    /// How much had changed on the node when it looked last.
    seen: u64,
}

impl Candidate<'_> {
    fn settle(&mut self) -> Option<Refused> {
        self.seen = self.node.changes.get();
        let (allocation, pod) = (&mut self.allocation, &mut self.pod);
        self.node.decide(|allocations, plugins| allocation.settle(allocations, plugins, pod))
    }

    fn admit(&mut self, node: NodeState) -> Option<Refused> {
        self.seen = self.node.changes.get();
        let (allocation, pod) = (&mut self.allocation, &mut self.pod);
        self.node.decide(|allocations, plugins| allocation.admit((allocations, plugins), pod, node, true))
    }

    fn resize(&mut self, desired: &Arc<PodRecord>) -> Result<(), NotResized> {
        self.seen = self.node.changes.get();
        let (allocation, pod) = (&mut self.allocation, &self.pod);
        self.node.decide(|allocations, plugins| allocation.resize(allocations, plugins, pod, desired))
    }

    /// It gets a worker, with a slot or the promise of one.
    fn enter(&mut self) -> Result<SlotGrant, Refused> {
        self.node.enter(&self.pod.record)
    }

    fn release(&mut self) {
        let (allocation, key) = (&mut self.allocation, &self.pod.record.key);
        self.node.decide(|allocations, plugins| allocation.release(allocations, plugins, key));
    }

    /// Whether it waits for something that may be free since it looked.
    fn is_woken(&self) -> bool {
        self.allocation.waits() && self.seen < self.node.changes.get()
    }

    fn reason(&self) -> &str {
        self.pod.verdict.as_ref().map(|verdict| &*verdict.reason).unwrap_or_default()
    }
}

impl Drop for Candidate<'_> {
    fn drop(&mut self) {
        self.release();
    }
}

#[test]
fn a_resource_of_no_plugin_is_the_schedulers_to_count() {
    let node = two_cores(&[]);
    let counted = json!({ "limits": { "x.io/counted": 1 } });
    let mut of_manifest = node.candidate(&pod("own", File, counted.clone()));
    assert!(of_manifest.settle().is_some(), "a pod of a manifest waits for a plugin");
    let mut bound = node.candidate(&pod("bound", Api, counted));
    assert!(bound.settle().is_none() && !node.wants_plugins(&bound.pod.record), "{}", bound.reason());
    // A plugin that has none left registers the resource; the pod keeps running, as another version, too.
    bound.pod.sandbox = SandboxState::Ready(Arc::default());
    node.list("x.io/counted", 0);
    bound.pod.record = pod("bound", Api, json!({ "limits": { "x.io/counted": 1 }, "requests": { "cpu": "1" } }));
    assert!(bound.settle().is_none(), "{}", bound.reason());
}

#[test]
fn an_exclusive_device_is_for_one_pod_and_free_once_that_no_longer_asks_for_it() {
    let node = two_cores(&[]);
    let device = json!({ "limits": { "x.io/modem": 1, "x.io/shared": 1 } });
    let (mut first, mut other) =
        (node.candidate(&pod("one", File, device.clone())), node.candidate(&pod("other", File, device)));
    let wanted = Assignment::wanted(&first.pod.record, &node.allocations.borrow().offer, &node.plugins.borrow());
    assert_eq!(wanted.exclusive, [Exclusive::Device("x.io/modem".to_owned())]);
    assert!(first.settle().is_none());
    let refused = other.settle().unwrap();
    assert_eq!((&*refused.verdict.reason, refused.verdict.is_final()), ("OutOfx.io/modem", false));
    assert!(is_refusal(&refused.verdict) && refused.verdict.message.contains("pod default/one has it"), "{refused:?}");
    assert!(other.settle().is_none(), "it waits for the same reason, which is reported once");
    assert!(!other.is_woken());
    first.pod.record = pod("one", File, json!({}));
    assert!(first.settle().is_none());
    assert!(other.is_woken());
    assert!(other.settle().is_none() && other.reason().is_empty());
}

#[test]
fn a_pod_waits_until_the_others_leave_what_it_requests_and_one_of_the_apiserver_fails() {
    let node = two_cores(&[]);
    let mut first = node.candidate(&pod("first", Push, cpu("1500m")));
    assert!(first.settle().is_none());
    let (mut second, mut remote) =
        (node.candidate(&pod("second", Push, cpu("1"))), node.candidate(&pod("remote", Api, cpu("1"))));
    let refused = second.settle().unwrap();
    assert!(
        refused.verdict.message.contains("cpu, requested: 1000, used: 1500, capacity: 2000; it starts"),
        "{refused:?}"
    );
    let refused = remote.settle().unwrap();
    assert!(refused.verdict.is_final() && remote.pod.is_failed(), "{refused:?}");
    let mut modest = node.candidate(&pod("modest", Push, json!({})));
    assert!(modest.settle().is_none(), "it requests nothing");
    first.release();
    assert!(second.is_woken());
    assert!(second.settle().is_none() && second.reason().is_empty());
}

#[test]
fn a_pod_of_a_manifest_has_pods_of_the_apiserver_end_for_it() {
    let node = two_cores(&[]);
    let (mut remote, mut pushed) =
        (node.candidate(&pod("remote", Api, cpu("1"))), node.candidate(&pod("pushed", Push, cpu("1"))));
    assert!(remote.settle().is_none() && pushed.settle().is_none());
    let mut critical = node.candidate(&pod("critical", File, cpu("1")));
    let names = |refused: Refused| -> Vec<String> {
        refused.victims.iter().flatten().map(|victim| victim.key.name().to_owned()).collect()
    };
    assert_eq!(names(critical.settle().unwrap()), ["remote"]);
    let mut second = node.candidate(&pod("second", File, cpu("1")));
    assert_eq!(names(second.settle().unwrap()), ["pushed"], "the other one ends already, for the first");
    let mut third = node.candidate(&pod("third", File, cpu("1")));
    assert!(third.settle().unwrap().victims.is_none(), "all who may end are to");
    remote.release();
    assert!(second.settle().is_none() && second.reason() == "OutOfcpu", "the first one's turn");
    assert!(critical.settle().is_none() && critical.reason().is_empty());
    pushed.release();
    assert!(third.settle().is_none() && third.reason() == "OutOfcpu");
    assert!(second.settle().is_none() && second.reason().is_empty());
    drop((critical, second));
    let mut larger = node.candidate(&pod("larger", Push, cpu("2")));
    assert!(third.settle().is_none() && third.reason().is_empty());
    assert!(larger.settle().unwrap().victims.is_none(), "it is not critical");
}

#[test]
fn a_pod_waits_for_the_labels_that_it_selects() {
    let node = two_cores(&[("zone", "a")]);
    let selects = |zone: &str| json!({ "containers": [{ "name": "a" }], "nodeSelector": { "zone": zone } });
    let (mut here, mut there) = (
        node.candidate(&record_of("here", File, selects("a"))),
        node.candidate(&record_of("there", File, selects("b"))),
    );
    assert!(here.settle().is_none());
    assert_eq!(&*there.settle().unwrap().verdict.reason, "NodeAffinity");
    let mut known_last = node.candidate(&record_of("known-last", Api, selects("b")));
    assert!(known_last.settle().is_none(), "the Node object was not seen yet");
    node.set_selectable(labelled("a"));
    let mut remote = node.candidate(&record_of("remote", Api, selects("b")));
    assert!(remote.settle().unwrap().verdict.is_final());
    assert!(!there.is_woken(), "nothing has changed");
    node.set_selectable(labelled("b"));
    assert!(there.is_woken());
    assert!(there.settle().is_none() && there.reason().is_empty());
    assert!(here.settle().is_none(), "what it has is left alone");
}

#[test]
fn of_several_reasons_the_first_in_kubelets_order_is_named() {
    let node = two_cores(&[]);
    let port = json!([{ "containerPort": 80, "hostPort": 8080 }]);
    let spec = |cpu: &str, zone: Option<&str>| {
        let selector = zone.map(|zone| json!({ "zone": zone }));
        let resources = json!({ "requests": { "cpu": cpu } });
        json!({ "nodeSelector": selector, "containers": [{ "name": "a", "resources": resources, "ports": port }] })
    };
    let mut first = node.candidate(&record_of("first", Push, spec("1", None)));
    assert!(first.settle().is_none());
    let taint = serde_json::from_value(json!({ "key": "gone", "effect": "NoExecute" })).unwrap();
    node.set_selectable(Selectable { labels: BTreeMap::new(), taints: vec![taint] });
    let cases = [
        (Push, "2", Some("north"), "OutOfcpu"),
        (Push, "1", Some("north"), "NodeAffinity"),
        (Push, "1", None, "NodePorts"),
        (Api, "1", Some("north"), "NodeAffinity"),
        (Api, "1", None, "NodePorts"),
    ];
    for (source, cpu, zone, reason) in cases {
        let mut other = node.candidate(&record_of("other", source, spec(cpu, zone)));
        assert_eq!(other.settle().map(|refused| refused.verdict.reason.into_owned()).as_deref(), Some(reason));
    }
    first.release();
    let mut intolerant = node.candidate(&record_of("other", Api, spec("1", None)));
    assert_eq!(&*intolerant.settle().unwrap().verdict.reason, "TaintToleration");
}

#[test]
fn a_resize_that_does_not_fit_waits_for_room_and_takes_nobodys_place() {
    let node = two_cores(&[]);
    let running = |name: &str, source, amount: &str| {
        let mut candidate = node.candidate(&pod(name, source, cpu(amount)));
        assert!(candidate.settle().is_none());
        candidate.pod.sandbox = SandboxState::Ready(Arc::default());
        candidate
    };
    let mut candidate = running("one", Api, "1");
    let mut other = running("other", File, "500m");
    let resize = |candidate: &mut Candidate, source, amount: &str| {
        let desired = pod(candidate.pod.record.key.name(), source, cpu(amount));
        candidate.resize(&desired).map(|()| candidate.pod.record = desired)
    };
    assert!(resize(&mut candidate, Api, "1500m").is_ok() && candidate.settle().is_none());
    let refused = resize(&mut candidate, Api, "1600m").unwrap_err();
    assert_eq!(refused.cause.reason, "OutOfcpu");
    assert!(refused.cause.message.ends_with("cpu, requested: 1600, used: 500, capacity: 2000"), "{refused:?}");
    assert!(refused.victims.is_empty(), "it is not critical");
    assert!(!candidate.is_woken() && candidate.settle().is_none(), "it runs on");
    // What is left goes to the longest waiting pod; one that requests less gets it at once.
    assert!(resize(&mut other, File, "400m").is_ok() && other.settle().is_none());
    assert!(candidate.is_woken());
    assert!(resize(&mut other, File, "500m").is_err(), "the other waits already");
    assert!(resize(&mut candidate, Api, "1600m").is_ok() && candidate.settle().is_none());
    assert!(resize(&mut other, File, "500m").is_err());
    assert!(!candidate.is_woken(), "it waits for nothing any more");
    candidate.release();
    assert!(other.is_woken());
    assert!(resize(&mut other, File, "2").is_ok());
    // A pod that is yet to begin waits with all it needs.
    let mut late = node.candidate(&pod("late", Push, cpu("1")));
    assert!(resize(&mut late, Push, "2").is_ok());
    assert_eq!(&*late.settle().unwrap().verdict.reason, "OutOfcpu");
}

#[test]
fn a_resize_of_processors_that_stay_is_infeasible_and_waits_for_nothing() {
    let node = two_cores(&[]);
    let guaranteed =
        |source, cpu: &str, memory: &str| pod("one", source, json!({ "limits": { "cpu": cpu, "memory": memory } }));
    for (static_cpus, source, refused) in [(true, Api, true), (false, Api, false), (true, Push, false)] {
        let mut candidate = node.candidate(&guaranteed(source, "1", "1Mi"));
        assert!(candidate.settle().is_none());
        candidate.pod.static_cpus = static_cpus;
        let resized = candidate.resize(&guaranteed(source, "2", "1Mi"));
        let infeasible =
            |not: &NotResized| not.refusal == ResizeRefusal::Infeasible && not.cause.reason == "Infeasible";
        assert_eq!(resized.is_err_and(|not| infeasible(&not)), refused, "{static_cpus} {source}");
        assert!(!candidate.allocation.waits());
        assert!(candidate.resize(&guaranteed(source, "1", "2Mi")).is_ok(), "memory alone");
        candidate.release();
    }
}

#[test]
fn a_critical_pods_resize_has_pods_of_the_apiserver_end_for_it() {
    let node = two_cores(&[]);
    let (mut remote, mut manifest_pod) =
        (node.candidate(&pod("remote", Api, cpu("1"))), node.candidate(&pod("own", File, cpu("1"))));
    assert!(remote.settle().is_none() && manifest_pod.settle().is_none());
    let refused = manifest_pod.resize(&pod("own", File, cpu("2"))).unwrap_err();
    assert_eq!(refused.victims.iter().map(|victim| victim.key.name()).collect::<Vec<_>>(), ["remote"]);
}

#[test]
fn resources_freed_for_a_critical_pods_resize_are_reserved_until_it_no_longer_needs_them() {
    let node = two_cores(&[]);
    let (mut pushed, mut manifest_pod) =
        (node.candidate(&pod("pushed", Push, cpu("1"))), node.candidate(&pod("own", File, cpu("1"))));
    assert!(pushed.settle().is_none() && manifest_pod.settle().is_none());
    manifest_pod.pod.sandbox = SandboxState::Ready(Arc::default());
    let grown = |amount: &str| pod("own", File, cpu(amount));
    let taken_again = |pushed: &mut Candidate| {
        pushed.release();
        pushed.settle();
        pushed.reason().is_empty()
    };
    assert!(manifest_pod.resize(&grown("3")).unwrap_err().victims.is_empty(), "it never fits");
    assert!(taken_again(&mut pushed));
    assert_eq!(manifest_pod.resize(&grown("1500m")).unwrap_err().victims.len(), 1);
    // An edit of something else leaves the resize as it is.
    manifest_pod.pod.record = pod("own", File, cpu("1"));
    assert!(manifest_pod.settle().is_none());
    assert!(!taken_again(&mut pushed), "what runs begins again at once");
    let mut small = node.candidate(&pod("small", Push, cpu("500m")));
    assert!(small.settle().is_none(), "what is left beside it is free");
    assert!(manifest_pod.is_woken());
    assert!(manifest_pod.resize(&grown("1500m")).is_ok());
    manifest_pod.pod.record = grown("1500m");
    assert!(manifest_pod.settle().is_none());
    small.release();
    assert_eq!(manifest_pod.resize(&grown("2")).map_err(|refused| refused.victims.len()), Ok(()));
    manifest_pod.pod.record = grown("2");
    // Nothing is kept any more after another edit, and for one that ends.
    for ends in [false, true] {
        manifest_pod.pod.record = grown("1");
        assert!(manifest_pod.resize(&grown("1")).is_ok() && manifest_pod.settle().is_none());
        assert!(taken_again(&mut pushed));
        assert_eq!(manifest_pod.resize(&grown("2")).unwrap_err().victims.len(), 1);
        assert!(!taken_again(&mut pushed));
        assert!(!pushed.is_woken());
        assert!(manifest_pod.resize(&grown("3")).is_err() && pushed.is_woken());
        assert!(taken_again(&mut pushed), "a larger one never fits");
        assert_eq!(manifest_pod.resize(&grown("2")).unwrap_err().victims.len(), 1);
        assert!(!taken_again(&mut pushed));
        if ends {
            manifest_pod.pod.fail(PodVerdict::deadline_exceeded());
            assert!(manifest_pod.settle().is_none());
        } else {
            assert!(manifest_pod.resize(&grown("1")).is_ok());
        }
        assert!(taken_again(&mut pushed), "{ends}");
    }
}

#[test]
fn what_a_critical_pod_has_others_end_for_is_kept_for_it_until_it_is_gone() {
    let node = two_cores(&[]);
    let mut pushed = node.candidate(&pod("pushed", Push, cpu("2")));
    assert!(pushed.settle().is_none());
    let mut critical = node.candidate(&pod("critical", File, cpu("1500m")));
    assert_eq!(critical.settle().unwrap().victims.unwrap().len(), 1);
    pushed.release();
    assert_eq!(&*pushed.settle().unwrap().verdict.reason, "OutOfcpu", "it is not taken again");
    let mut small = node.candidate(&pod("small", Push, cpu("500m")));
    assert!(small.settle().is_none(), "what is left beside it is free");
    assert!(critical.is_woken());
    assert!(critical.settle().is_none() && critical.reason().is_empty());
    critical.release();
    small.release();
    assert!(pushed.settle().is_none() && pushed.reason().is_empty());
    // Nothing is kept for one that is not there any more.
    let mut gone = node.candidate(&pod("gone", File, cpu("1")));
    assert_eq!(gone.settle().unwrap().victims.unwrap().len(), 1);
    pushed.release();
    drop(gone);
    assert!(pushed.settle().is_none());
}

#[test]
fn what_is_refused_for_good_is_so_before_any_pod_ends_for_it() {
    let sysctls = |name: &str| json!({ "sysctls": [{ "name": name, "value": "1" }] });
    let cases = [
        ("plain", json!({}), json!({}), None),
        ("allowed", json!({ "securityContext": sysctls("net.core.somaxconn") }), json!({}), None),
        ("forbidden", json!({ "securityContext": sysctls("kernel.sem") }), json!({}), Some("SysctlForbidden")),
        ("own-label", json!({}), json!({ "kubernetes.io/os": "linux" }), None),
        ("label", json!({}), json!({ "kubernetes.io/os": "windows" }), Some("PodOSSelectorNodeLabelDoesNotMatch")),
        ("field", json!({ "os": { "name": "windows" } }), json!({}), Some("PodOSNotSupported")),
    ];
    for (name, spec, labels, reason) in cases {
        let node = two_cores(&[]);
        let mut lesser = node.candidate(&pod("lesser", Api, cpu("2")));
        assert!(lesser.settle().is_none());
        for source in [File, Api] {
            let mut spec = spec.clone();
            spec["priority"] = json!(2_000_001_000);
            spec["containers"] = json!([{ "name": "a", "resources": cpu("1") }]);
            let mut record = (*record_of(name, source, spec)).clone();
            record.pod.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
            let refused = node.candidate(&Arc::new(record)).settle().unwrap();
            let final_reason = refused.verdict.is_final().then(|| refused.verdict.reason.to_string());
            assert_eq!(final_reason.as_deref(), reason, "{name} {source:?}");
            assert_eq!(refused.victims.is_none(), reason.is_some(), "{name} {source:?}");
        }
    }
}

#[test]
fn a_pod_that_does_not_tolerate_no_execute_is_not_taken() {
    let taint = |key: &str, effect: &str| json!({ "key": key, "value": "v", "effect": effect });
    let tolerates = |toleration: Value| json!([toleration]);
    let cases = [
        (Api, taint("a", "NoSchedule"), json!([]), true),
        (Api, taint("a", "NoExecute"), json!([]), false),
        (File, taint("a", "NoExecute"), json!([]), true),
        (Push, taint("a", "NoExecute"), json!([]), true),
        (Api, taint("a", "NoExecute"), tolerates(json!({ "operator": "Exists" })), true),
        (Api, taint("a", "NoExecute"), tolerates(json!({ "key": "a", "value": "v", "effect": "NoExecute" })), true),
        (Api, taint("a", "NoExecute"), tolerates(json!({ "key": "a", "value": "w" })), false),
        (
            Api,
            taint("a", "NoExecute"),
            tolerates(json!({ "key": "a", "operator": "Exists", "effect": "NoSchedule" })),
            false,
        ),
    ];
    for (source, taint, tolerations, taken) in cases {
        let node = two_cores(&[]);
        let taints = serde_json::from_value(json!([taint])).unwrap();
        node.set_selectable(Selectable { labels: BTreeMap::new(), taints });
        let spec = json!({ "containers": [{ "name": "a" }], "tolerations": tolerations });
        let refused = node.candidate(&record_of("web", source, spec)).settle();
        let reason = refused.map(|refused| refused.verdict.reason.to_string());
        assert_eq!(reason.as_deref(), (!taken).then_some("TaintToleration"), "{source:?} {taint} {tolerations}");
    }
}

#[test]
fn a_pod_that_waits_for_the_end_of_a_shutdown_leaves_what_it_had_to_others() {
    let node = two_cores(&[]);
    let shutting_down = NodeState { shutting_down: true, ..READY };
    let (mut waits, mut remote) =
        (node.candidate(&pod("waits", Push, cpu("2"))), node.candidate(&pod("remote", Api, cpu("1"))));
    assert!(waits.admit(READY).is_none());
    let reason = |refused: Option<Refused>| refused.map(|refused| refused.verdict.reason.into_owned());
    assert_eq!(reason(waits.admit(shutting_down)).as_deref(), Some("NodeShutdown"));
    assert!(waits.admit(shutting_down).is_none() && !waits.pod.is_failed(), "it is said once");
    let mut other = node.candidate(&pod("other", File, cpu("2")));
    assert!(other.settle().is_none(), "what it had is free");
    assert_eq!(reason(remote.admit(shutting_down)).as_deref(), Some("NodeShutdown"));
    assert!(remote.pod.is_failed() && remote.admit(READY).is_none());
    assert_eq!(reason(waits.admit(READY)).as_deref(), Some("OutOfcpu"), "the next reason");
    drop(other);
    assert!(waits.is_woken() && waits.admit(READY).is_none() && waits.reason().is_empty());
}
