#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use crate::fixtures::{amounts, record_of as record};
use limpet_model::pod::quantity::Amount;
use limpet_model::pod::requests::Resource;

const SOURCES: [SourceKind; 4] = [SourceKind::File, SourceKind::Push, SourceKind::Http, SourceKind::Api];

fn needs(cpu: &str, memory: &str) -> Value {
    let requests = json!({ "cpu": cpu, "memory": memory });
    json!({ "containers": [{ "name": "a", "resources": { "requests": requests } }] })
}

/// The other pods with what their end frees: what they request, and a place among the pods.
fn with_places(others: &[Arc<PodRecord>]) -> impl Iterator<Item = Candidate> {
    others.iter().map(|other| (Arc::clone(other), Requests::from_spec(other.spec()).plus(&places(1))))
}

fn places(count: u64) -> Requests {
    let mut places = Requests::default();
    places[Resource::Pods] = Amount::from_units(count);
    places
}

#[test]
fn what_is_requested_must_be_left_and_what_is_not_may_be_short() {
    let node = amounts("2", "1Gi", "10Gi");
    let fits = |requested: Requests, used: &Requests| fits(&requested, used, &node);
    assert_eq!(fits(amounts("1500m", "1Gi", "0"), &amounts("500m", "0", "0")), Ok(()));
    let refusal = fits(amounts("2", "2Gi", "0"), &amounts("500m", "0", "0")).unwrap_err();
    assert_eq!(refusal.reason, "OutOfcpu", "in kubelet's order");
    assert_eq!(refusal.message, "Node didn't have enough resource: cpu, requested: 2000, used: 500, capacity: 2000");
    let over = amounts("0", "3Gi", "0");
    assert_eq!(fits(amounts("1", "0", "0"), &over), Ok(()), "memory is short, and not asked for");
    assert_eq!(fits(amounts("1", "1", "0"), &over).unwrap_err().reason, "OutOfmemory");
    let none = Requests::default();
    assert_eq!(fits(amounts("0", "0", "11Gi"), &none).unwrap_err().reason, "OutOfephemeral-storage");
}

#[test]
fn huge_pages_of_each_size_must_be_left() {
    let with_pages = |size: u64, bytes: u64| {
        let mut requests = amounts("100m", "1Mi", "0");
        requests[Resource::HugePages(size)] = Amount::from_units(bytes);
        requests
    };
    let (small, large) = (2 << 20, 1 << 30);
    let mut node = amounts("2", "1Gi", "0");
    node[Resource::HugePages(small)] = Amount::from_units(8 << 20);
    let used = with_pages(small, 4 << 20);
    assert_eq!(fits(&with_pages(small, 4 << 20), &used, &node), Ok(()));
    let refusal = fits(&with_pages(small, 6 << 20), &used, &node).unwrap_err();
    assert_eq!(refusal.reason, "OutOfhugepages-2Mi");
    let message =
        "Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 4194304, capacity: 8388608";
    assert_eq!(refusal.message, message);
    assert_eq!(
        fits(&with_pages(large, large), &used, &node).unwrap_err().reason,
        "OutOfhugepages-1Gi",
        "a size it has not"
    );
    assert_eq!(fits(&with_pages(large, 0), &used, &node), Ok(()), "nothing of it is asked for");
}

#[test]
fn a_pod_of_the_apiserver_fails_and_every_other_one_waits() {
    let refusal = fits(&amounts("3", "0", "0"), &Requests::default(), &amounts("2", "0", "0")).unwrap_err();
    for source in SOURCES {
        let verdict = refusal.clone().verdict(source);
        assert_eq!((verdict.is_final(), verdict.reason.as_ref()), (source == SourceKind::Api, "OutOfcpu"));
        assert_eq!(verdict.message.starts_with("Pod was rejected: Node didn't"), source == SourceKind::Api);
    }
}

#[test]
fn a_pod_runs_on_the_nodes_that_it_selects() {
    let labels = BTreeMap::from([("disk".to_owned(), "ssd".to_owned())]);
    let selects = |spec: Value| selects_node(&record("a", SourceKind::File, spec), "edge1", &labels);
    let by_name = |name: &str| {
        let term = json!({ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [name] }] });
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": [term] } });
        json!({ "containers": [], "affinity": { "nodeAffinity": required } })
    };
    assert_eq!(selects(json!({ "containers": [] })), Ok(()));
    assert_eq!(selects(json!({ "containers": [], "nodeSelector": { "disk": "ssd" } })), Ok(()));
    assert_eq!(selects(by_name("edge1")), Ok(()));
    let refused = [json!({ "containers": [], "nodeSelector": { "disk": "hdd" } }), by_name("edge2")];
    for spec in refused {
        let refusal = selects(spec).unwrap_err();
        assert_eq!(refusal.reason, "NodeAffinity");
        assert!(refusal.message.starts_with("Predicate NodeAffinity failed: "), "{}", refusal.message);
    }
    let preferred = json!({ "preferredDuringSchedulingIgnoredDuringExecution": [] });
    assert_eq!(selects(json!({ "containers": [], "affinity": { "nodeAffinity": preferred } })), Ok(()));
}

#[test]
fn as_few_pods_as_possible_end_for_a_critical_one() {
    let pod = |name: &str, source, cpu: &str, limit: Option<&str>| {
        let mut spec = needs(cpu, "1Mi");
        if let Some(limit) = limit {
            spec["containers"][0]["resources"]["limits"] = json!({ "cpu": limit, "memory": "1Mi" });
        }
        record(name, source, spec)
    };
    let api = SourceKind::Api;
    let mut system = needs("1", "1Mi");
    system["priorityClassName"] = json!("system-node-critical");
    let others = [
        pod("guaranteed", api, "1", Some("1")),
        pod("large", api, "1", None),
        pod("small", api, "200m", None),
        pod("of-the-node", SourceKind::Push, "1", None),
        record("system", api, system),
        record("asks-for-nothing", api, json!({ "containers": [] })),
    ];
    let used = others.iter().fold(Requests::default(), |sum, other| sum.plus(&Requests::from_spec(other.spec())));
    let node = amounts("4300m", "1Gi", "0");
    let end_for = |pod: &PodRecord| -> Vec<String> {
        let requested = Requests::from_spec(pod.spec());
        victims(pod, &requested, with_places(&others), &used, &node)
            .iter()
            .map(|victim| victim.key.name().to_owned())
            .collect()
    };
    assert_eq!(end_for(&pod("new", SourceKind::File, "100m", None)), [""; 0], "it fits");
    assert_eq!(end_for(&pod("new", SourceKind::File, "300m", None)), ["small"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "1", None)), ["large"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "2", None)), ["large", "of-the-node"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "3", None)), ["large", "of-the-node", "guaranteed"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "4", None)), [""; 0], "their end would not be enough");
    assert_eq!(end_for(&pod("new", SourceKind::Push, "300m", None)), [""; 0], "it is not critical");
    assert_eq!(end_for(&pod("new", api, "300m", None)), [""; 0]);
}

#[test]
fn resizes_that_wait_get_room_by_priority_class_and_age() {
    let pod_of = |name: &str, cpu: &str, limit: Option<&str>, class: Option<&str>| {
        let mut spec = needs(cpu, "1Mi");
        if let Some(limit) = limit {
            spec["containers"][0]["resources"]["limits"] = json!({ "cpu": limit, "memory": "1Mi" });
        }
        spec["priorityClassName"] = json!(class);
        record(name, SourceKind::Api, spec)
    };
    let system = Some("system-node-critical");
    let (old, new) = (pod_of("old", "2", None, None), pod_of("new", "2", None, None));
    let (guaranteed, critical) = (pod_of("guaranteed", "2", Some("2"), None), pod_of("critical", "2", None, system));
    let huge = pod_of("huge", "9", None, system);
    // Each has 1 cpu and requests 2. The waiting pods, the longest first, the node's cpu, and the pod that gets it.
    type Waiting<'a> = &'a [&'a Arc<PodRecord>];
    let cases: [(Waiting<'_>, &str, &[&str]); 6] = [
        (&[&old, &new], "2", &[]),
        (&[&old, &new], "3", &["old"]),
        (&[&old, &new], "4", &["old", "new"]),
        (&[&old, &guaranteed], "3", &["guaranteed"]),
        (&[&guaranteed, &critical], "3", &["critical"]),
        // A resize that does not fit at all holds back no other.
        (&[&old, &huge], "3", &["old"]),
    ];
    for (waiting, cpu, expected) in cases {
        let pending: BTreeMap<PodKey, PendingResize> = (0..)
            .zip(waiting)
            .map(|(since, desired)| (desired.key.clone(), PendingResize { desired: Arc::clone(desired), since }))
            .collect();
        let assigned: BTreeMap<PodKey, Requests> =
            pending.keys().map(|key| (key.clone(), amounts("1", "1Mi", "0"))).collect();
        let node = amounts(cpu, "1Gi", "0");
        let got = |desired: &&&Arc<PodRecord>| resize_fits(&desired.key, &pending, assigned.clone(), &node).is_ok();
        let got: Vec<&str> = waiting.iter().filter(got).map(|desired| desired.key.name()).collect();
        assert_eq!(got, expected, "{cpu}");
        for desired in waiting.iter().filter(|desired| !got.contains(&desired.key.name())) {
            let refusal = resize_fits(&desired.key, &pending, assigned.clone(), &node).unwrap_err();
            assert_eq!(refusal.reason, "OutOfcpu");
            assert!(refusal.message.starts_with("Node didn't have enough resource: cpu, requested: "), "{refusal:?}");
        }
    }
}

#[test]
fn a_refused_resize_has_kubelets_message() {
    let resources = json!({ "requests": { "cpu": "5", "memory": "4500Mi" } });
    let desired = record("a", SourceKind::Api, json!({ "containers": [{ "name": "c1", "resources": resources }] }));
    let refusal = fits(&amounts("5", "4500Mi", "0"), &amounts("0", "0", "0"), &amounts("4", "5Gi", "0")).unwrap_err();
    assert_eq!(
        pending_message(&desired, &refusal),
        "Pod resize OutOfcpu: {\"containers\":[{\"name\":\"c1\",\"resources\":{\"requests\":{\"cpu\":\"5\",\"memory\":\"4500Mi\"}}}],\
         \"generation\":0,\"error\":\"Node didn't have enough resource: cpu, requested: 5000, used: 0, capacity: 4000\"}"
    );
}

#[test]
fn a_critical_pod_preempts_what_is_not_and_what_has_a_known_lower_priority() {
    let pod_of = |source, class: Option<&str>, number: Option<i32>| {
        record("a", source, json!({ "containers": [], "priorityClassName": class, "priority": number }))
    };
    let (file, push, api) = (SourceKind::File, SourceKind::Push, SourceKind::Api);
    let (node, cluster) = (Some("system-node-critical"), Some("system-cluster-critical"));
    let cases = [
        (pod_of(file, None, None), pod_of(push, None, Some(9)), true),
        (pod_of(file, None, None), pod_of(api, None, Some(9)), true),
        (pod_of(file, None, None), pod_of(file, None, None), false),
        // As in kubelet, a missing priority counts as none.
        (pod_of(file, node, None), pod_of(file, None, None), false),
        (pod_of(file, None, Some(2)), pod_of(file, None, Some(1)), true),
        (pod_of(file, None, Some(1)), pod_of(file, None, Some(2)), false),
        (pod_of(file, node, None), pod_of(api, cluster, None), true),
        (pod_of(file, cluster, None), pod_of(api, node, None), false),
        (pod_of(push, None, Some(9)), pod_of(api, None, Some(1)), false),
        (pod_of(push, node, None), pod_of(push, None, None), true),
        (pod_of(api, cluster, None), pod_of(push, None, None), true),
        (pod_of(api, cluster, None), pod_of(file, None, None), false),
    ];
    for (index, (first, other, expected)) in cases.into_iter().enumerate() {
        assert_eq!(preempts(&first, &other), expected, "{index}");
    }
}

#[test]
fn of_two_pods_that_are_as_good_the_smaller_one_ends() {
    let pod = |name: &str, cpu: &str| record(name, SourceKind::Api, needs(cpu, "1Mi"));
    let others = [pod("a", "2"), pod("b", "1"), pod("c", "500m")];
    let used = amounts("3500m", "3Mi", "0");
    let end_for = |cpu: &str| -> Vec<String> {
        let new = record("new", SourceKind::File, needs(cpu, "1Mi"));
        let node = amounts("3500m", "1Gi", "0");
        let requested = Requests::from_spec(new.spec());
        victims(&new, &requested, with_places(&others), &used, &node)
            .iter()
            .map(|victim| victim.key.name().to_owned())
            .collect()
    };
    assert_eq!(end_for("400m"), ["c"]);
    assert_eq!(end_for("700m"), ["b"]);
    assert_eq!(end_for("1500m"), ["a"], "one instead of two");
    assert_eq!(end_for("2400m"), ["a", "c"]);
}

#[test]
fn a_place_among_the_pods_is_a_resource_as_any_other() {
    let (api, push) = (SourceKind::Api, SourceKind::Push);
    let plain = |name: &str, source| record(name, source, json!({ "containers": [{ "name": "a" }] }));
    let burstable = |name: &str, cpu: &str| record(name, api, needs(cpu, "1Mi"));
    let critical = |name: &str| {
        record(
            name,
            api,
            json!({ "containers": [], "priorityClassName": "system-node-critical", "priority": 2_000_001_000 }),
        )
    };
    let guaranteed = |name: &str| {
        let amounts = json!({ "cpu": "1m", "memory": "1Mi" });
        let resources = json!({ "requests": amounts, "limits": amounts });
        record(name, api, json!({ "containers": [{ "name": "a", "resources": resources }] }))
    };
    let node = amounts("2", "1Gi", "0").plus(&places(3));
    // Who runs, what the new pod requests of the processors, and who ends for it.
    type Case = (&'static str, [Arc<PodRecord>; 3], &'static str, &'static [&'static str]);
    let cases: [Case; 6] = [
        ("the class decides first", [guaranteed("g"), burstable("b", "1m"), plain("p", push)], "0", &["p"]),
        ("then the size", [burstable("large", "2m"), burstable("small", "1m"), guaranteed("g")], "0", &["small"]),
        ("of equal ones the apiserver's", [plain("a", push), plain("z", api), guaranteed("g")], "0", &["z"]),
        ("one end frees both", [burstable("large", "1"), burstable("small", "500m"), guaranteed("g")], "1", &["large"]),
        // kubelet, too, chooses by class, even if one more pod ends.
        ("what is short beside it", [plain("p", api), burstable("large", "1500m"), critical("c")], "1", &["large"]),
        ("none that is critical", [critical("c"), critical("d"), critical("e")], "0", &[]),
    ];
    for (case, running, cpu, expected) in cases {
        let used = with_places(&running).fold(Requests::default(), |sum, (_, requests)| sum.plus(&requests));
        let requested = amounts(cpu, "0", "0").plus(&places(1));
        let refusal = fits(&requested, &used, &node).unwrap_err();
        assert_eq!(refusal.reason, OUT_OF_PODS, "{case}");
        assert_eq!(
            refusal.message, "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3",
            "{case}"
        );
        let end_for = |pod: &PodRecord| -> Vec<String> {
            let victims = victims(pod, &requested, with_places(&running), &used, &node);
            victims.iter().map(|victim| victim.key.name().to_owned()).collect()
        };
        assert_eq!(end_for(&plain("new", SourceKind::File)), expected, "{case}");
        assert_eq!(end_for(&plain("new", push)), [""; 0], "{case}: it is not critical");
    }
    let beyond = with_places(&[]).fold(places(9), |sum, (_, requests)| sum.plus(&requests));
    assert_eq!(fits(&amounts("1", "0", "0"), &beyond, &node), Ok(()), "it has a place");
}
