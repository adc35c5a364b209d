#![allow(clippy::unwrap_used)]
//! A pod and its node: addresses that come later, and networks that are configured later.

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;
use serde_json::{Value, json};

use super::fixtures::{READY, now, on_network, ready, sandbox};
use super::node_state::NodeState;
use super::outcome::{self, Failure, Outcome};
use super::plan::{Action, Step, awaits, plan};
use super::state::{Now, PodState, SandboxState};
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
    // Whether on the host's network, the field, whether it waits.
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
        let output = [("CreateContainerConfigError", Some(message)), ("ContainerCreating", None)];
        assert_eq!((state.reason.as_deref().unwrap(), state.message), output[usize::from(!waits)], "{field}");
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
        let of_pod = status.pod_ips.map(|ips| ips.into_iter().map(|ip| ip.ip).collect());
        (list(host), status.host_ip.unwrap_or_default(), list(of_pod), status.pod_ip.unwrap_or_default())
    };
    let texts = |texts: [&str; 4]| -> (String, String, String, String) { texts.map(str::to_owned).into() };
    let on_host = ready(pod(true, &[]));
    let mut pod_network = pod(false, &[]);
    pod_network.sandbox = SandboxState::Ready(sandbox(&["10.0.0.2"]));
    let (none, both) = (on_network(&[]), on_network(&["192.0.2.7", "2001:db8::7"]));
    assert_eq!(addresses(&on_host, none), texts(["", "", "", ""]));
    assert_eq!(addresses(&pod_network, none), texts(["", "", "10.0.0.2", "10.0.0.2"]));
    let all = "192.0.2.7,2001:db8::7";
    assert_eq!(addresses(&on_host, both), texts([all, "192.0.2.7", all, "192.0.2.7"]));
    assert_eq!(addresses(&pod_network, both), texts([all, "192.0.2.7", "10.0.0.2", "10.0.0.2"]));
    // The family of the node's primary address comes first.
    pod_network.sandbox = SandboxState::Ready(sandbox(&["10.0.0.2", "2001:db8::2"]));
    let v6_first = on_network(&["2001:db8::7", "192.0.2.7"]);
    let own_ips = |node| addresses(&pod_network, node).2;
    assert_eq!((&*own_ips(both), &*own_ips(v6_first)), ("10.0.0.2,2001:db8::2", "2001:db8::2,10.0.0.2"));
    assert_eq!(own_ips(none), "10.0.0.2,2001:db8::2");
}

fn fail(pod: &mut PodState, now: Now) {
    outcome::begin(pod, &Action::PrepareSandbox);
    prepared(pod, now);
}

fn prepared(pod: &mut PodState, now: Now) {
    let failure = Failure { reason: "FailedCreatePodSandBox", message: "no link eth0".to_owned(), transient: false };
    outcome::apply(pod, Outcome::SandboxPrepared(Err(failure)), now);
}

/// How long the sandbox's next try is away.
fn wait(pod: &PodState, now: Now) -> u64 {
    pod.retry.as_ref().unwrap().retry_at.saturating_duration_since(now.mono).as_secs()
}

fn later(now: Now, seconds: u64) -> Now {
    Now { mono: now.mono + Duration::from_secs(seconds), ..now }
}

#[test]
fn a_sandbox_is_tried_every_15_seconds_at_least_and_soon_after_a_change_of_the_network() {
    let (mut pod, start) = (pod(false, &[]), now());
    let mut waits = Vec::new();
    for _ in 0..4 {
        fail(&mut pod, start);
        waits.push(wait(&pod, start));
    }
    assert_eq!(waits, [10, 15, 15, 15]);

    pod.take_network_change();
    assert_eq!(wait(&pod, start), 1, "a second after the failure");
    pod.take_network_change();
    assert_eq!(wait(&pod, start), 1, "another change does not put it off");
    let at = later(start, 1);
    assert!(matches!(plan(&pod, READY, at.mono), Step::Do(actions) if actions.contains(&Action::PrepareSandbox)));
    fail(&mut pod, at);
    assert_eq!(wait(&pod, at), 2, "the back-off grows anew");
    let at = later(at, 5);
    pod.take_network_change();
    assert_eq!(wait(&pod, at), 0);

    // It changes while the sandbox is being made.
    outcome::begin(&mut pod, &Action::PrepareSandbox);
    pod.take_network_change();
    prepared(&mut pod, at);
    assert_eq!(wait(&pod, at), 1);
    fail(&mut pod, at);
    assert_eq!(wait(&pod, at), 2, "only that try");
}

#[test]
fn what_does_not_depend_on_the_network_keeps_its_back_off() {
    let now = now();
    let mut on_host = pod(true, &[]);
    fail(&mut on_host, now);
    on_host.take_network_change();
    assert_eq!(wait(&on_host, now), 10);
}

#[test]
fn a_sandbox_that_could_not_be_removed_is_tried_again_soon_after_a_change_of_the_network() {
    let failed =
        || Err(Failure { reason: "FailedKillPod", message: "network: no plugin".to_owned(), transient: false });
    type Failed = fn(Result<(), Failure>) -> Outcome;
    let rows: [(Action, Failed); 2] =
        [(Action::TearDown, Outcome::TornDown), (Action::ReleaseSandbox, Outcome::SandboxReleased)];
    for (action, outcome) in rows {
        let now = now();
        let mut pod = ready(pod(false, &[]));
        if action == Action::TearDown {
            pod.end(Duration::from_secs(1), now);
        }
        outcome::begin(&mut pod, &action);
        outcome::apply(&mut pod, outcome(failed()), now);
        assert_eq!(wait(&pod, now), 10, "{action:?}");
        pod.take_network_change();
        assert_eq!(wait(&pod, now), 1, "{action:?}");
        outcome::begin(&mut pod, &action);
        pod.take_network_change();
        outcome::apply(&mut pod, outcome(failed()), now);
        assert_eq!(wait(&pod, now), 1, "{action:?}: it changed meanwhile");
        outcome::begin(&mut pod, &action);
        outcome::apply(&mut pod, outcome(failed()), now);
        assert_eq!(wait(&pod, now), 2, "{action:?}: only that try");
    }
}
