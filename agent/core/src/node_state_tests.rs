#![allow(clippy::unwrap_used)]
//! A pod and its node: addresses that come later, networks that are configured later.

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;
use serde_json::{Value, json};

use super::fixtures::{now, on_network, ready, sandbox};
use super::node_state::NodeState;
use super::plan::{Action, Step, awaits, plan};
use super::state::{PodState, SandboxState};
use super::status::generate::generate;

/// A pod whose container `main` has a variable for each of these fields, and whose container `side` has none.
fn pod(host_network: bool, fields: &[&str]) -> PodState {
    let variable = |(index, field): (usize, &&str)| json!({"name": format!("V{index}"), "valueFrom": {"fieldRef": {"fieldPath": field}}});
    let env: Vec<Value> = fields.iter().enumerate().map(variable).collect();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": {
        "hostNetwork": host_network,
        "containers": [{"name": "main", "image": "app:1", "env": env}, {"name": "side", "image": "app:1"}],
    }});
    let record: PodRecord =
        limpet_model::manifest::restore(pod.to_string().as_bytes(), "web.yaml", SourceKind::File, "node").unwrap();
    PodState::new(Arc::new(record), Timestamp::UNIX_EPOCH)
}

#[test]
fn a_container_waits_for_the_address_it_refers_to_and_says_so() {
    // On the host's network or not, the field, whether it waits.
    let cases = [
        (false, "status.hostIP", true),
        (false, "status.hostIPs", true),
        (false, "status.podIP", false),
        (true, "status.hostIP", true),
        (true, "status.podIP", true),
        (true, "status.podIPs", true),
        (true, "metadata.name", false),
    ];
    for (host_network, field, waits) in cases {
        let pod = ready(pod(host_network, &["spec.nodeName", field]));
        let step = |node: NodeState| plan(&pod, node, Instant::now());
        let both = Step::Do(vec![Action::Start(0), Action::Start(1)]);
        let wanted = if waits { Step::Do(vec![Action::Start(1)]) } else { both.clone() };
        assert_eq!(step(on_network(&[])), wanted, "{field}");
        assert_eq!(step(on_network(&["192.0.2.7"])), both, "{field}");

        let status = generate(&pod, on_network(&[]), "BestEffort", now(), None);
        let state = status.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
        let message = format!("waits for the node to have an address: env V1 refers to {field}");
        let said = [("CreateContainerConfigError", Some(message)), ("ContainerCreating", None)];
        assert_eq!((state.reason.as_deref().unwrap(), state.message), said[usize::from(!waits)], "{field}");
        let reported: Vec<&str> =
            awaits::addresses(&pod, on_network(&[])).iter().map(|(slot, _)| slot.name.as_str()).collect();
        assert_eq!(reported, if waits { vec!["main"] } else { vec![] }, "{field}");
    }
}

#[test]
fn a_pod_without_a_sandbox_says_what_it_waits_for_first() {
    let pod = pod(false, &["status.hostIP"]);
    let status = generate(&pod, on_network(&[]), "BestEffort", now(), None);
    let state = status.container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!((state.reason.as_deref(), state.message), (Some("ContainerCreating"), None));
}

#[test]
fn addresses_in_the_status_are_those_of_the_moment() {
    let addresses = |pod: &PodState, node| {
        let status = generate(pod, node, "BestEffort", now(), None);
        let list = |ips: Option<Vec<String>>| ips.unwrap_or_default().join(",");
        let host = status.host_ips.map(|ips| ips.into_iter().map(|ip| ip.ip).collect());
        let own = status.pod_ips.map(|ips| ips.into_iter().map(|ip| ip.ip).collect());
        (list(host), status.host_ip.unwrap_or_default(), list(own), status.pod_ip.unwrap_or_default())
    };
    let texts = |texts: [&str; 4]| -> (String, String, String, String) { texts.map(str::to_owned).into() };
    let on_host = ready(pod(true, &[]));
    let mut own = pod(false, &[]);
    own.sandbox = SandboxState::Ready(sandbox(&["10.0.0.2"]));
    let (none, both) = (on_network(&[]), on_network(&["192.0.2.7", "2001:db8::7"]));
    assert_eq!(addresses(&on_host, none), texts(["", "", "", ""]));
    assert_eq!(addresses(&own, none), texts(["", "", "10.0.0.2", "10.0.0.2"]));
    let all = "192.0.2.7,2001:db8::7";
    assert_eq!(addresses(&on_host, both), texts([all, "192.0.2.7", all, "192.0.2.7"]));
    assert_eq!(addresses(&own, both), texts([all, "192.0.2.7", "10.0.0.2", "10.0.0.2"]));
}
