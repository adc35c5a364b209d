//! Slots among the node's pods, and who ends for a critical one.

use super::*;
use limpet_model::pod::PodUid;

fn with_slots(count: usize) -> Node {
    Node::new(NodeOffer { max_pods: Some(count), ..NodeOffer::default() }, &[])
}

fn plain(name: &str, source: SourceKind) -> Arc<PodRecord> {
    pod(name, source, json!({}))
}

fn has_slot(node: &Node, name: &str) -> bool {
    node.candidate(&plain(name, Push)).enter().is_ok()
}

fn ends_for(candidate: &mut Candidate<'_>) -> Option<Vec<String>> {
    let victims = candidate.settle()?.victims?;
    Some(victims.iter().map(|victim| victim.key.name().to_owned()).collect())
}

#[test]
fn a_pod_has_its_slot_until_it_is_over() {
    let node = with_slots(1);
    let mut first = node.candidate(&plain("first", File));
    assert!(first.settle().is_none());
    assert!(!node.slot_freed() && !has_slot(&node, "other"));
    let mut waits = node.candidate(&plain("waits", File));
    let refused = waits.settle().unwrap();
    let message =
        "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1; it starts when that has changed";
    assert_eq!((&*refused.verdict.reason, &*refused.verdict.message), ("OutOfpods", message));
    assert!(node.candidate(&plain("of-api", Api)).settle().unwrap().verdict.is_final());
    first.pod.fail(PodVerdict::deadline_exceeded());
    assert!(first.settle().is_none());
    assert!(waits.is_woken(), "it is woken once the slot is free");
    assert!(waits.settle().is_none() && waits.pod.verdict.is_none());
    assert!(!has_slot(&node, "other") && node.slot_freed());
    // What was found running counts beyond the number, and the next one waits until it has ended.
    let mut running = node.candidate(&plain("running", File));
    node.decide(|allocations, _| allocations.enter_running(&running.pod.record));
    waits.release();
    assert!(!has_slot(&node, "other"));
    running.release();
    assert!(has_slot(&node, "other"));
}

#[test]
fn a_pod_that_is_refused_for_good_gives_all_back_at_once() {
    let node = with_slots(1);
    let spec = json!({ "containers": [{ "name": "a" }], "os": { "name": "windows" } });
    let mut refused = node.candidate(&record_of("refused", File, spec));
    assert!(refused.enter().is_ok());
    assert!(refused.settle().unwrap().verdict.is_final());
    assert!(has_slot(&node, "other"));
}

#[test]
fn a_lesser_pod_ends_for_a_critical_one_that_has_no_slot() {
    let node = with_slots(2);
    let (mut pushed, mut remote) = (node.candidate(&plain("pushed", Push)), node.candidate(&plain("remote", Api)));
    for candidate in [&mut pushed, &mut remote] {
        assert!(candidate.enter().is_ok());
        assert!(candidate.settle().is_none());
    }
    let mut critical = node.candidate(&plain("critical", File));
    assert_eq!(critical.enter().unwrap(), SlotGrant::Promise);
    assert_eq!(ends_for(&mut critical).unwrap(), ["remote"]);
    assert!(critical.reason() == "OutOfpods" && !critical.pod.is_failed());
    assert!(critical.settle().is_none(), "it is ordered once");
    let mut second = node.candidate(&plain("second", Http));
    assert!(second.enter().is_ok());
    assert_eq!(ends_for(&mut second).unwrap(), ["pushed"]);
    // No pod beyond those that can be made room for has a worker.
    assert!(node.enter(&plain("third", File)).is_err());
    while node.slot_freed() {}
    remote.release();
    assert!(node.slot_freed() && !has_slot(&node, "lesser"), "it is kept");
    assert!(second.settle().is_none() && second.reason() == "OutOfpods", "the other's turn");
    assert!(critical.settle().is_none() && critical.reason().is_empty());
    // What is kept for one that goes is free.
    drop(second);
    pushed.release();
    assert!(has_slot(&node, "lesser"));
}

#[test]
fn a_pod_of_the_apiserver_waits_for_the_end_of_another_and_fails_where_none_may_end() {
    let node = with_slots(1);
    let critical = |name: &str| {
        let spec = json!({ "containers": [{ "name": "a" }], "priority": 2_000_001_000 });
        record_of(name, Api, spec)
    };
    let mut lesser = node.candidate(&plain("lesser", Api));
    assert!(lesser.settle().is_none());
    assert!(node.candidate(&plain("as-good", Api)).settle().unwrap().verdict.is_final());
    let mut first = node.candidate(&critical("first"));
    assert_eq!(ends_for(&mut first).unwrap(), ["lesser"]);
    assert!(!first.pod.is_failed());
    lesser.release();
    assert!(first.settle().is_none() && first.reason().is_empty());
    assert!(node.candidate(&critical("second")).settle().unwrap().verdict.is_final());
    assert_eq!(node.enter(&critical("second")).unwrap_err().verdict.reason, "OutOfpods");
}

#[test]
fn no_pod_ends_for_one_that_something_else_keeps_from_starting() {
    let labels = |label: &str| json!({ "containers": [{ "name": "a" }], "nodeSelector": { "zone": label } });
    let port = json!([{ "containerPort": 80, "hostPort": 80 }]);
    let with_port = || json!({ "containers": [{ "name": "a", "ports": port }] });
    let node = with_slots(2);
    node.set_selectable(labelled("a"));
    let (mut lesser, mut owner) =
        (node.candidate(&plain("lesser", Push)), node.candidate(&record_of("owner", File, with_port())));
    assert!(lesser.settle().is_none() && owner.settle().is_none());
    let mut elsewhere = node.candidate(&record_of("elsewhere", File, labels("b")));
    let mut taken = node.candidate(&record_of("taken", File, with_port()));
    for (candidate, reason) in [(&mut elsewhere, "NodeAffinity"), (&mut taken, "NodePorts")] {
        assert_eq!(node.enter(&candidate.pod.record).unwrap_err().verdict.reason, "OutOfpods");
        assert!(candidate.settle().unwrap().victims.is_none());
        assert_eq!(candidate.reason(), reason);
    }
    // Once that has changed one does.
    node.set_selectable(labelled("b"));
    assert!(elsewhere.is_woken());
    assert_eq!(ends_for(&mut elsewhere).unwrap(), ["lesser"]);
    // What is in the way again gives what was kept to others.
    node.set_selectable(labelled("a"));
    elsewhere.settle();
    lesser.release();
    assert!(has_slot(&node, "other"));
}

#[test]
fn a_critical_pod_without_a_slot_is_tried_again_when_what_kept_others_from_ending_for_it_has_changed() {
    let node = with_slots(1);
    node.set_selectable(labelled("a"));
    let mut lesser = node.candidate(&plain("lesser", Push));
    assert!(lesser.settle().is_none());
    let elsewhere = json!({ "containers": [{ "name": "a" }], "nodeSelector": { "zone": "b" } });
    let device = json!({ "limits": { "x.io/gpu": 1 } });
    let pods = [record_of("elsewhere", File, elsewhere), pod("device", File, device)];
    let changes: [&dyn Fn(); 2] = [&|| node.set_selectable(labelled("b")), &|| node.list("x.io/gpu", 1)];
    for (record, change) in pods.iter().zip(changes) {
        assert!(node.enter(record).is_err());
        while node.slot_freed() {}
        change();
        assert!(node.slot_freed(), "{}", record.key);
        assert_eq!(node.candidate(record).enter().unwrap(), SlotGrant::Promise, "{}", record.key);
    }
}

#[test]
fn another_version_of_a_pod_that_was_to_end_has_to_be_ordered_again() {
    let node = with_slots(1);
    let mut lesser = node.candidate(&plain("lesser", Push));
    assert!(lesser.settle().is_none());
    let mut critical = node.candidate(&plain("critical", File));
    assert_eq!(ends_for(&mut critical).unwrap(), ["lesser"]);
    // It was ending for another reason, and its successor keeps the slot.
    lesser.pod.record = Arc::new(PodRecord { uid: PodUid::new("successor"), ..(*lesser.pod.record).clone() });
    assert!(lesser.settle().is_none());
    assert!(critical.is_woken());
    assert_eq!(ends_for(&mut critical).unwrap(), ["lesser"]);
    assert!(critical.settle().is_none());
    node.decide(|allocations, _| allocations.forget_order(&lesser.pod.record.key));
    assert!(critical.is_woken());
    assert_eq!(ends_for(&mut critical).unwrap(), ["lesser"], "the order was never sent");
}
