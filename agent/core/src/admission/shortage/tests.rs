#![allow(clippy::unwrap_used)]

use std::time::Instant;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{READY, ready, record_of as record};
use crate::plan::{Step, plan};
use limpet_model::source::SourceKind;

fn short_of(conditions: &[Pressure]) -> NodeState {
    NodeState { pressure: conditions.iter().copied().collect(), ..READY }
}

fn requests(priority: i32) -> Value {
    let resources = json!({ "requests": { "memory": "1Mi" } });
    json!({ "priority": priority, "containers": [{ "name": "a", "resources": resources }] })
}

#[test]
fn pods_that_are_not_of_manifests_wait_for_the_end_of_the_pressure() {
    use Pressure::{Disk, Memory, Pid};
    use SourceKind::{File, Push};
    let toleration = |key: &str, effect: &str| json!({ "key": key, "operator": "Exists", "effect": effect });
    let best_effort = || json!({ "containers": [{ "name": "a" }] });
    let tolerant = |toleration: Value| json!({ "containers": [{ "name": "a" }], "tolerations": [toleration] });
    let taint = "node.kubernetes.io/memory-pressure";
    let cases = [
        (File, best_effort(), vec![Memory, Disk, Pid], false),
        (Push, best_effort(), vec![], false),
        (Push, best_effort(), vec![Memory], true),
        (Push, requests(0), vec![Memory], false),
        (Push, requests(0), vec![Memory, Disk], true),
        (Push, requests(0), vec![Pid], true),
        (Push, requests(2_000_000_000), vec![Disk], false),
        (Push, tolerant(toleration(taint, "NoSchedule")), vec![Memory], false),
        (Push, tolerant(toleration("", "")), vec![Memory], false),
        (Push, tolerant(toleration(taint, "NoExecute")), vec![Memory], true),
        (Push, tolerant(toleration("node.kubernetes.io/disk-pressure", "")), vec![Disk], true),
    ];
    for (source, spec, conditions, refused) in cases {
        let mut pod = PodState::new(record("web", source, spec.clone()), Timestamp::UNIX_EPOCH);
        let node = short_of(&conditions);
        assert_eq!(refuse_start(&mut pod, node), refused, "{source} {spec} {conditions:?}");
        assert_eq!(waits(&pod), refused);
        assert!(!refuse_start(&mut pod, node), "said once");
        let waits = plan(&pod, node, Instant::now()) == Step::Wait(None);
        assert_eq!(waits, refused);
        if let (true, Some(verdict)) = (refused, &pod.verdict) {
            let names: Vec<&str> = conditions.iter().map(|condition| condition.as_str()).collect();
            assert_eq!(verdict.message, format!("The node had condition: [{}]. ", names.join(" ")));
        }
        assert!(!refuse_start(&mut pod, short_of(&[])) && pod.verdict.is_none(), "over");
    }
    let mut of_cluster = PodState::new(record("web", SourceKind::Api, best_effort()), Timestamp::UNIX_EPOCH);
    assert!(refuse_start(&mut of_cluster, short_of(&[Disk])) && of_cluster.is_failed());
    let message = of_cluster.verdict.as_ref().unwrap().message.as_str();
    assert_eq!(message, "Pod was rejected: The node had condition: [DiskPressure]. ");
    assert!(!refuse_start(&mut of_cluster, short_of(&[])) && of_cluster.is_failed(), "for good");
    let mut admitted = PodState::new(record("web", SourceKind::Api, best_effort()), Timestamp::UNIX_EPOCH);
    assert!(!refuse_start(&mut admitted, short_of(&[])) && !refuse_start(&mut admitted, short_of(&[Disk])));
    assert!(!admitted.is_failed() && !waits(&admitted), "it was taken, and waits for something else");
    let mut began = ready(PodState::new(record("web", Push, best_effort()), Timestamp::UNIX_EPOCH));
    assert!(!refuse_start(&mut began, short_of(&[Disk])), "it has begun");
}

#[test]
fn no_pod_starts_while_the_node_shuts_down() {
    let node = NodeState { shutting_down: true, ..READY };
    let spec = || json!({ "containers": [{ "name": "a" }], "priority": 2_000_000_000 });
    for source in [SourceKind::File, SourceKind::Push, SourceKind::Api] {
        let mut pod = PodState::new(record("web", source, spec()), Timestamp::UNIX_EPOCH);
        assert!(refuse_start(&mut pod, node), "{source}");
        let verdict = pod.verdict.clone().unwrap();
        assert_eq!((&*verdict.reason, verdict.is_final()), ("NodeShutdown", source == SourceKind::Api), "{source}");
        assert_eq!(waits(&pod), source != SourceKind::Api);
        assert!(!refuse_start(&mut pod, READY));
        assert_eq!(pod.verdict.is_some(), source == SourceKind::Api, "the others start once it is cancelled");
        if source == SourceKind::Api {
            assert_eq!(verdict.message, "Pod was rejected: Pod was rejected as the node is shutting down.");
        }
    }
}
