use imbl::OrdMap;
use limpet_core::fixtures::observed;
use limpet_model::manifest;
use serde_json::{Value, json};

use super::*;
use crate::addresses::Book;
use crate::settings::tests::settings;

/// The Service `web` of the namespace `shop`, with further fields of its spec.
pub(crate) fn definition(change: Value) -> Definition {
    named("web", change)
}

/// A Service of that name.
pub(crate) fn named(name: &str, change: Value) -> Definition {
    let mut spec = json!({"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80, "targetPort": "web"}]});
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let text =
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "shop"}, "spec": spec});
    let read = manifest::read(text.to_string().as_bytes(), "web.yaml", SourceKind::File, "node");
    assert_eq!(read.faults, []);
    Definition { source: SourceKind::File, record: Arc::clone(&read.objects[0]) }
}

/// A pod of the application `web` with that address.
pub(crate) fn pod(name: &str, address: &str, ready: bool, change: Value) -> Arc<ObservedPod> {
    let mut spec =
        json!({"containers": [{"name": "main", "image": "i", "ports": [{"name": "web", "containerPort": 8080}]}]});
    for (field, value) in change.as_object().unwrap() {
        spec[field] = value.clone();
    }
    let ready = if ready { "True" } else { "False" };
    observed(json!({
        "metadata": {"name": name, "namespace": "shop", "labels": {"app": "web", "tier": "front"}}, "spec": spec,
        "status": {"phase": "Running", "podIPs": [{"ip": address}, {"ip": "fd00::5"}],
            "conditions": [{"type": "Ready", "status": ready}]},
    }))
}

pub(crate) fn pods(pods: impl IntoIterator<Item = Arc<ObservedPod>>) -> ObservedPods {
    ObservedPods::new(pods.into_iter().map(|pod| (pod.record.key.clone(), pod)).collect::<OrdMap<_, _>>())
}

/// The Services as they are served, with addresses of their own.
pub(crate) fn served(definitions: &[Definition], pods: &ObservedPods) -> Vec<ServedService> {
    let mut book = Book::default();
    let name = |known: &Definition| (known.record.key.namespace.to_string(), known.record.key.name.to_string());
    let wanted = definitions.iter().map(|known| (name(known), known.service().unwrap())).collect();
    let faults = book.assign(&settings(), &wanted, false);
    let serve = |known: &Definition| {
        let assigned = book.assigned.get(&name(known)).ok_or_else(|| faults[&name(known)].clone());
        serve(&settings(), known, assigned, pods).unwrap()
    };
    definitions.iter().map(serve).collect()
}

fn ends(definition: Definition, observed: &ObservedPods) -> Vec<String> {
    let served = served(&[definition], observed).remove(0);
    served.ports[0].endpoints.iter().map(|end| format!("{}:{}", end.address, end.port)).collect()
}

#[test]
fn ready_pods_of_the_selector_are_endpoints() {
    let leaving = |name: &str, address: &str| {
        let pod = ObservedPod::clone(&pod(name, address, true, json!({})));
        Arc::new(ObservedPod { terminating_since: Some(jiff::Timestamp::UNIX_EPOCH), ..pod })
    };
    let mut other = ObservedPod::clone(&pod("other", "10.1.0.9", true, json!({})));
    other.record = limpet_model::fixtures::record(
        json!({"metadata": {"name": "other", "namespace": "shop", "labels": {"app": "db"}}, "spec": {"containers": []}}),
    );
    let all = pods([
        pod("a", "10.1.0.2", true, json!({})),
        pod("b", "10.1.0.3", false, json!({})),
        leaving("c", "10.1.0.4"),
        Arc::new(other),
    ]);
    assert_eq!(ends(definition(json!({})), &all), ["10.1.0.2:8080"]);
    assert_eq!(ends(definition(json!({"selector": {"app": "web", "tier": "back"}})), &all), [] as [&str; 0]);
    assert_eq!(
        ends(definition(json!({"publishNotReadyAddresses": true})), &all),
        ["10.1.0.2:8080", "10.1.0.3:8080", "10.1.0.4:8080"]
    );
    let only_leaving = pods([pod("b", "10.1.0.3", false, json!({})), leaving("c", "10.1.0.4")]);
    assert_eq!(ends(definition(json!({})), &only_leaving), ["10.1.0.4:8080"]);
    assert_eq!(served(&[definition(json!({}))], &only_leaving)[0].members, [], "names have no pod that ends");
}

#[test]
fn a_named_port_is_each_pods_own() {
    let other = json!({"containers": [{"name": "main", "image": "i", "ports": [
        {"name": "web", "containerPort": 53, "protocol": "UDP"}, {"name": "web2", "containerPort": 9000}]}]});
    let all = pods([pod("a", "10.1.0.2", true, json!({})), pod("b", "10.1.0.3", true, other)]);
    assert_eq!(ends(definition(json!({})), &all), ["10.1.0.2:8080"]);
    let by_number = json!({"ports": [{"port": 80, "targetPort": 9000}]});
    assert_eq!(ends(definition(by_number), &all), ["10.1.0.2:9000", "10.1.0.3:9000"]);
}

#[test]
fn families_and_host_names_are_the_services() {
    let set = json!({"hostname": "db-0", "subdomain": "web"});
    let all = pods([pod("db-0", "10.1.0.2", true, set.clone())]);
    let headless = &served(&[definition(json!({"clusterIP": "None", "ipFamilyPolicy": "PreferDualStack"}))], &all)[0];
    assert_eq!(headless.members[0].hostname.as_deref(), Some("db-0"));
    assert_eq!(headless.members[0].addresses.len(), 2);
    assert_eq!(headless.addresses, [] as [IpAddr; 0]);
    let six = &served(&[named("six", json!({"ipFamilies": ["IPv6"]}))], &all)[0];
    assert_eq!(six.members[0].addresses, ["fd00::5".parse::<IpAddr>().unwrap()]);
    assert_eq!(six.members[0].hostname, None, "below another name");
}
