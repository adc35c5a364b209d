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
    let of = |size: u64, bytes: u64| {
        let mut requests = amounts("100m", "1Mi", "0");
        requests[Resource::HugePages(size)] = Amount::from_units(bytes);
        requests
    };
    let (small, large) = (2 << 20, 1 << 30);
    let mut node = amounts("2", "1Gi", "0");
    node[Resource::HugePages(small)] = Amount::from_units(8 << 20);
    let used = of(small, 4 << 20);
    assert_eq!(fits(&of(small, 4 << 20), &used, &node), Ok(()));
    let refusal = fits(&of(small, 6 << 20), &used, &node).unwrap_err();
    assert_eq!(refusal.reason, "OutOfhugepages-2Mi");
    let message =
        "Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 4194304, capacity: 8388608";
    assert_eq!(refusal.message, message);
    assert_eq!(fits(&of(large, large), &used, &node).unwrap_err().reason, "OutOfhugepages-1Gi", "a size it has not");
    assert_eq!(fits(&of(large, 0), &used, &node), Ok(()), "nothing of it is asked for");
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
    let used = others.iter().fold(Requests::default(), |sum, other| sum.plus(&Requests::of(other.spec())));
    let node = amounts("4300m", "1Gi", "0");
    let end_for = |pod: &PodRecord| -> Vec<String> {
        victims(pod, others.iter(), &used, &node).iter().map(|victim| victim.key.name().to_owned()).collect()
    };
    assert_eq!(end_for(&pod("new", SourceKind::File, "100m", None)), [""; 0], "it fits");
    assert_eq!(end_for(&pod("new", SourceKind::File, "300m", None)), ["small"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "1", None)), ["large"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "2", None)), ["guaranteed", "large"]);
    assert_eq!(end_for(&pod("new", SourceKind::File, "3", None)), [""; 0], "their end would not be enough");
    assert_eq!(end_for(&pod("new", SourceKind::Push, "300m", None)), [""; 0], "it is not critical");
    assert_eq!(end_for(&pod("new", api, "300m", None)), [""; 0]);
}
