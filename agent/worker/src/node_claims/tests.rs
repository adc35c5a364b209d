use futures_util::FutureExt as _;
use serde_json::{Value, json};

mod places;

use super::hold::is_claim;
use super::*;
use limpet_core::fixtures::{amounts, now, record_of};
use limpet_core::state::{PodState, SandboxState};
use limpet_model::source::SourceKind::{self, Api, File, Http, Push};
use limpet_model::verdict::PodVerdict;

fn pod(name: &str, source: SourceKind, resources: Value) -> Arc<PodRecord> {
    record_of(name, source, json!({ "containers": [{ "name": "a", "resources": resources }] }))
}

fn two_cores(labels: &[(&str, &str)]) -> Arc<NodeClaims> {
    let offer = NodeOffer {
        node_name: "edge1".to_owned(),
        max_pods: None,
        allowed_unsafe_sysctls: vec!["net.core.somaxconn".to_owned()],
        exclusive: ["x.io/modem".to_owned()].into(),
        plugins: Arc::new(DevicePlugins::with_table(["x.io/modem", "x.io/shared"])),
        allocatable: Some(amounts("2", "1Gi", "1Gi")),
    };
    let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Arc::new(NodeClaims::new(offer, labels))
}

fn labelled(zone: &str) -> Selectable {
    Selectable { labels: [("zone".to_owned(), zone.to_owned())].into(), taints: Vec::new() }
}

fn cpu(text: &str) -> Value {
    json!({ "requests": { "cpu": text } })
}

/// A pod of which nothing has begun, and what it has.
struct Candidate(PodState, Hold);

impl Candidate {
    fn new(record: &Arc<PodRecord>) -> Self {
        Self(PodState::new(Arc::clone(record), now().wall), Hold::default())
    }

    fn settle(&mut self, node: &Arc<NodeClaims>) -> Option<Refused> {
        let key = self.0.record.key.clone();
        self.1.settle(node, &key, &mut self.0)
    }

    fn reason(&self) -> &str {
        self.0.verdict.as_ref().map(|verdict| &*verdict.reason).unwrap_or_default()
    }
}

#[test]
fn a_resource_of_no_plugin_is_the_schedulers_to_count() {
    let node = two_cores(&[]);
    let counted = json!({ "limits": { "x.io/counted": 1 } });
    let mut own = Candidate::new(&pod("own", File, counted.clone()));
    assert!(own.settle(&node).is_some(), "a pod of a manifest waits for a plugin");
    let mut bound = Candidate::new(&pod("bound", Api, counted));
    assert!(bound.settle(&node).is_none() && !node.wants_plugins(&bound.0.record), "{}", bound.reason());
    // A plugin that has none left registers the resource; the pod keeps running, as another version, too.
    bound.0.sandbox = SandboxState::Ready(Arc::default());
    node.offer.plugins.list("x.io/counted", 0);
    bound.0.record = pod("bound", Api, json!({ "limits": { "x.io/counted": 1 }, "requests": { "cpu": "1" } }));
    assert!(bound.settle(&node).is_none(), "{}", bound.reason());
}

#[test]
fn an_exclusive_device_is_of_one_pod_and_a_claim_that_shrinks_frees_it() {
    let node = two_cores(&[]);
    let device = json!({ "limits": { "x.io/modem": 1, "x.io/shared": 1 } });
    let (mut one, mut other) =
        (Candidate::new(&pod("one", File, device.clone())), Candidate::new(&pod("other", File, device)));
    assert_eq!(node.wanted(&one.0.record).exclusive, [Exclusive::Device("x.io/modem".to_owned())]);
    assert!(one.settle(&node).is_none());
    let refused = other.settle(&node).unwrap();
    assert_eq!((&*refused.verdict.reason, refused.verdict.is_final()), ("OutOfx.io/modem", false));
    assert!(is_claim(&refused.verdict) && refused.verdict.message.contains("pod default/one has it"), "{refused:?}");
    assert!(other.settle(&node).is_none(), "it waits for the same reason, which is reported once");
    assert!(other.1.freed().now_or_never().is_none());
    one.0.record = pod("one", File, json!({}));
    assert!(one.settle(&node).is_none());
    assert!(other.1.freed().now_or_never().is_some());
    assert!(other.settle(&node).is_none() && other.reason().is_empty());
}

#[test]
fn a_pod_waits_until_the_others_leave_what_it_requests_and_one_of_the_apiserver_fails() {
    let node = two_cores(&[]);
    let mut first = Candidate::new(&pod("first", Push, cpu("1500m")));
    assert!(first.settle(&node).is_none());
    let (mut second, mut remote) =
        (Candidate::new(&pod("second", Push, cpu("1"))), Candidate::new(&pod("remote", Api, cpu("1"))));
    let refused = second.settle(&node).unwrap();
    assert!(
        refused.verdict.message.contains("cpu, requested: 1000, used: 1500, capacity: 2000; it starts"),
        "{refused:?}"
    );
    let refused = remote.settle(&node).unwrap();
    assert!(refused.verdict.is_final() && remote.0.is_failed(), "{refused:?}");
    let mut modest = Candidate::new(&pod("modest", Push, json!({})));
    assert!(modest.settle(&node).is_none(), "it requests nothing");
    first.1.release();
    assert!(second.1.freed().now_or_never().is_some());
    assert!(second.settle(&node).is_none() && second.reason().is_empty());
}

#[test]
fn a_pod_of_a_manifest_has_pods_of_the_apiserver_end_for_it() {
    let node = two_cores(&[]);
    let (mut remote, mut pushed) =
        (Candidate::new(&pod("remote", Api, cpu("1"))), Candidate::new(&pod("pushed", Push, cpu("1"))));
    assert!(remote.settle(&node).is_none() && pushed.settle(&node).is_none());
    let mut critical = Candidate::new(&pod("critical", File, cpu("1")));
    let names = |refused: Refused| -> Vec<String> {
        refused.victims.iter().flatten().map(|victim| victim.key.name().to_owned()).collect()
    };
    assert_eq!(names(critical.settle(&node).unwrap()), ["remote"]);
    let mut second = Candidate::new(&pod("second", File, cpu("1")));
    assert_eq!(names(second.settle(&node).unwrap()), ["pushed"], "the other one ends already, for the first");
    let mut third = Candidate::new(&pod("third", File, cpu("1")));
    assert!(third.settle(&node).unwrap().victims.is_none(), "all who may end are to");
    remote.1.release();
    assert!(second.settle(&node).is_none() && second.reason() == "OutOfcpu", "the first one's turn");
    assert!(critical.settle(&node).is_none() && critical.reason().is_empty());
    pushed.1.release();
    assert!(third.settle(&node).is_none() && third.reason() == "OutOfcpu");
    assert!(second.settle(&node).is_none() && second.reason().is_empty());
    for of in [critical, second] {
        drop(of);
    }
    let mut larger = Candidate::new(&pod("larger", Push, cpu("2")));
    assert!(third.settle(&node).is_none() && third.reason().is_empty());
    assert!(larger.settle(&node).unwrap().victims.is_none(), "it is not critical");
}

#[test]
fn a_pod_waits_for_the_labels_that_it_selects() {
    let node = two_cores(&[("zone", "a")]);
    let selects = |zone: &str| json!({ "containers": [{ "name": "a" }], "nodeSelector": { "zone": zone } });
    let (mut here, mut there) = (
        Candidate::new(&record_of("here", File, selects("a"))),
        Candidate::new(&record_of("there", File, selects("b"))),
    );
    assert!(here.settle(&node).is_none());
    assert_eq!(&*there.settle(&node).unwrap().verdict.reason, "NodeAffinity");
    let mut known_last = Candidate::new(&record_of("known-last", Api, selects("b")));
    assert!(known_last.settle(&node).is_none(), "the Node object was not seen yet");
    node.set_selectable(labelled("a"));
    let mut remote = Candidate::new(&record_of("remote", Api, selects("b")));
    assert!(remote.settle(&node).unwrap().verdict.is_final());
    assert!(there.1.freed().now_or_never().is_none(), "nothing has changed");
    node.set_selectable(labelled("b"));
    assert!(there.1.freed().now_or_never().is_some());
    assert!(there.settle(&node).is_none() && there.reason().is_empty());
    assert!(here.settle(&node).is_none(), "what it has is left alone");
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
    let mut first = Candidate::new(&record_of("first", Push, spec("1", None)));
    assert!(first.settle(&node).is_none());
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
        let mut other = Candidate::new(&record_of("other", source, spec(cpu, zone)));
        assert_eq!(other.settle(&node).map(|refused| refused.verdict.reason.into_owned()).as_deref(), Some(reason));
    }
    first.1.release();
    let mut intolerant = Candidate::new(&record_of("other", Api, spec("1", None)));
    assert_eq!(&*intolerant.settle(&node).unwrap().verdict.reason, "TaintToleration");
}

#[test]
fn a_resize_that_does_not_fit_waits_for_room_and_takes_no_ones_place() {
    let node = two_cores(&[]);
    let running = |name: &str, source, amount: &str| {
        let mut one = Candidate::new(&pod(name, source, cpu(amount)));
        assert!(one.settle(&node).is_none());
        one.0.sandbox = SandboxState::Ready(Arc::default());
        one
    };
    let mut one = running("one", Api, "1");
    let mut other = running("other", File, "500m");
    let resize = |one: &mut Candidate, source, amount: &str| {
        let desired = pod(one.0.record.key.name(), source, cpu(amount));
        one.1.resize(&node, &one.0, &desired).map(|()| one.0.record = desired)
    };
    assert!(resize(&mut one, Api, "1500m").is_ok() && one.settle(&node).is_none());
    let refused = resize(&mut one, Api, "1600m").unwrap_err();
    assert_eq!(refused.refusal.reason, "OutOfcpu");
    assert!(refused.refusal.message.ends_with("cpu, requested: 1600, used: 500, capacity: 2000"), "{refused:?}");
    assert!(refused.victims.is_empty(), "it is not critical");
    assert!(one.1.freed().now_or_never().is_none() && one.settle(&node).is_none(), "it runs on");
    // What is left goes to the longest waiting pod; one that requests less gets it at once.
    assert!(resize(&mut other, File, "400m").is_ok() && other.settle(&node).is_none());
    assert!(one.1.freed().now_or_never().is_some());
    assert!(resize(&mut other, File, "500m").is_err(), "the other waits already");
    assert!(resize(&mut one, Api, "1600m").is_ok() && one.settle(&node).is_none());
    assert!(resize(&mut other, File, "500m").is_err());
    assert!(one.1.freed().now_or_never().is_none(), "it waits for nothing any more");
    one.1.release();
    assert!(other.1.freed().now_or_never().is_some());
    assert!(resize(&mut other, File, "2").is_ok());
    // A pod that is yet to begin waits with all it needs.
    let mut late = Candidate::new(&pod("late", Push, cpu("1")));
    assert!(resize(&mut late, Push, "2").is_ok());
    assert_eq!(&*late.settle(&node).unwrap().verdict.reason, "OutOfcpu");
}

#[test]
fn a_critical_pods_resize_has_pods_of_the_apiserver_end_for_it() {
    let node = two_cores(&[]);
    let (mut remote, mut own) =
        (Candidate::new(&pod("remote", Api, cpu("1"))), Candidate::new(&pod("own", File, cpu("1"))));
    assert!(remote.settle(&node).is_none() && own.settle(&node).is_none());
    let refused = own.1.resize(&node, &own.0, &pod("own", File, cpu("2"))).unwrap_err();
    assert_eq!(refused.victims.iter().map(|one| one.key.name()).collect::<Vec<_>>(), ["remote"]);
}

#[test]
fn resources_freed_for_a_critical_pods_resize_are_reserved_until_it_no_longer_needs_them() {
    let node = two_cores(&[]);
    let (mut pushed, mut own) =
        (Candidate::new(&pod("pushed", Push, cpu("1"))), Candidate::new(&pod("own", File, cpu("1"))));
    assert!(pushed.settle(&node).is_none() && own.settle(&node).is_none());
    own.0.sandbox = SandboxState::Ready(Arc::default());
    let grown = |amount: &str| pod("own", File, cpu(amount));
    let taken_again = |pushed: &mut Candidate| {
        pushed.1.release();
        pushed.settle(&node);
        pushed.reason().is_empty()
    };
    assert!(own.1.resize(&node, &own.0, &grown("3")).unwrap_err().victims.is_empty(), "it never fits");
    assert!(taken_again(&mut pushed));
    assert_eq!(own.1.resize(&node, &own.0, &grown("1500m")).unwrap_err().victims.len(), 1);
    // An edit of something else leaves the resize as it is.
    own.0.record = pod("own", File, cpu("1"));
    assert!(own.settle(&node).is_none());
    assert!(!taken_again(&mut pushed), "what runs begins again at once");
    let mut small = Candidate::new(&pod("small", Push, cpu("500m")));
    assert!(small.settle(&node).is_none(), "what is left beside it is free");
    assert!(own.1.freed().now_or_never().is_some());
    assert!(own.1.resize(&node, &own.0, &grown("1500m")).is_ok());
    own.0.record = grown("1500m");
    assert!(own.settle(&node).is_none());
    small.1.release();
    assert_eq!(own.1.resize(&node, &own.0, &grown("2")).map_err(|refused| refused.victims.len()), Ok(()));
    own.0.record = grown("2");
    // Nothing is kept any more after another edit, and for one that ends.
    for ends in [false, true] {
        own.0.record = grown("1");
        assert!(own.1.resize(&node, &own.0, &grown("1")).is_ok() && own.settle(&node).is_none());
        assert!(taken_again(&mut pushed));
        assert_eq!(own.1.resize(&node, &own.0, &grown("2")).unwrap_err().victims.len(), 1);
        assert!(!taken_again(&mut pushed));
        assert!(pushed.1.freed().now_or_never().is_none());
        assert!(own.1.resize(&node, &own.0, &grown("3")).is_err() && pushed.1.freed().now_or_never().is_some());
        assert!(taken_again(&mut pushed), "a larger one never fits");
        assert_eq!(own.1.resize(&node, &own.0, &grown("2")).unwrap_err().victims.len(), 1);
        assert!(!taken_again(&mut pushed));
        if ends {
            own.0.fail(PodVerdict::deadline_exceeded());
            assert!(own.settle(&node).is_none());
        } else {
            assert!(own.1.resize(&node, &own.0, &grown("1")).is_ok());
        }
        assert!(taken_again(&mut pushed), "{ends}");
    }
}

#[test]
fn what_a_critical_pod_has_others_end_for_is_kept_for_it_until_it_is_gone() {
    let node = two_cores(&[]);
    let mut pushed = Candidate::new(&pod("pushed", Push, cpu("2")));
    assert!(pushed.settle(&node).is_none());
    let mut critical = Candidate::new(&pod("critical", File, cpu("1500m")));
    assert_eq!(critical.settle(&node).unwrap().victims.unwrap().len(), 1);
    pushed.1.release();
    assert_eq!(&*pushed.settle(&node).unwrap().verdict.reason, "OutOfcpu", "it is not taken again");
    let mut small = Candidate::new(&pod("small", Push, cpu("500m")));
    assert!(small.settle(&node).is_none(), "what is left beside it is free");
    assert!(critical.1.freed().now_or_never().is_some());
    assert!(critical.settle(&node).is_none() && critical.reason().is_empty());
    critical.1.release();
    small.1.release();
    assert!(pushed.settle(&node).is_none() && pushed.reason().is_empty());
    // Nothing is kept for one that is not there any more.
    let mut gone = Candidate::new(&pod("gone", File, cpu("1")));
    assert_eq!(gone.settle(&node).unwrap().victims.unwrap().len(), 1);
    pushed.1.release();
    drop(gone);
    assert!(pushed.settle(&node).is_none());
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
        let mut lesser = Candidate::new(&pod("lesser", Api, cpu("2")));
        assert!(lesser.settle(&node).is_none());
        for source in [File, Api] {
            let mut spec = spec.clone();
            spec["priority"] = json!(2_000_001_000);
            spec["containers"] = json!([{ "name": "a", "resources": cpu("1") }]);
            let mut record = (*record_of(name, source, spec)).clone();
            record.pod.metadata.labels = serde_json::from_value(labels.clone()).unwrap();
            let refused = Candidate::new(&Arc::new(record)).settle(&node).unwrap();
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
        let refused = Candidate::new(&record_of("web", source, spec)).settle(&node);
        let reason = refused.map(|refused| refused.verdict.reason.to_string());
        assert_eq!(reason.as_deref(), (!taken).then_some("TaintToleration"), "{source:?} {taint} {tolerations}");
    }
}
