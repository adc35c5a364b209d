//! Places among the node's pods, and who ends for a critical one.

use super::*;
use limpet_model::pod::PodUid;

fn of_places(count: usize) -> Arc<NodeClaims> {
    let offer = NodeOffer { max_pods: Some(count), ..NodeOffer::default() };
    Arc::new(NodeClaims::new(offer, BTreeMap::new()))
}

fn plain(name: &str, source: SourceKind) -> Arc<PodRecord> {
    pod(name, source, json!({}))
}

fn has_place(node: &Arc<NodeClaims>, name: &str) -> bool {
    node.enter(&plain(name, Push)).is_ok()
}

fn ends_for(candidate: &mut Candidate, node: &Arc<NodeClaims>) -> Option<Vec<String>> {
    let victims = candidate.settle(node)?.victims?;
    Some(victims.iter().map(|victim| victim.key.name().to_owned()).collect())
}

#[test]
fn a_pod_has_its_place_until_it_is_over() {
    let node = of_places(1);
    let mut first = Candidate::new(&plain("first", File));
    assert!(first.settle(&node).is_none());
    assert!(node.place_freed().now_or_never().is_none() && !has_place(&node, "other"));
    let mut waits = Candidate::new(&plain("waits", File));
    let refused = waits.settle(&node).unwrap();
    let message =
        "Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1; it starts when that has changed";
    assert_eq!((&*refused.verdict.reason, &*refused.verdict.message), ("OutOfpods", message));
    assert!(Candidate::new(&plain("of-api", Api)).settle(&node).unwrap().verdict.is_final());
    first.0.fail(PodVerdict::deadline_exceeded());
    assert!(first.settle(&node).is_none());
    assert!(waits.1.freed().now_or_never().is_some(), "it is woken once the place is free");
    assert!(waits.settle(&node).is_none() && waits.0.verdict.is_none());
    assert!(!has_place(&node, "other") && node.place_freed().now_or_never().is_some());
    // What was found running counts beyond the number, and the next one waits until it has ended.
    let running = node.place_of_running(&plain("running", File));
    waits.1.release();
    assert!(!has_place(&node, "other"));
    drop(running);
    assert!(has_place(&node, "other"));
}

#[test]
fn a_pod_that_is_refused_for_good_gives_all_back_at_once() {
    let node = of_places(1);
    let spec = json!({ "containers": [{ "name": "a" }], "os": { "name": "windows" } });
    let mut refused = Candidate::new(&record_of("refused", File, spec));
    refused.1.begin(node.enter(&refused.0.record).ok());
    assert!(refused.settle(&node).unwrap().verdict.is_final());
    assert!(has_place(&node, "other"));
}

#[test]
fn a_lesser_pod_ends_for_a_critical_one_that_has_no_place() {
    let node = of_places(2);
    let (mut pushed, mut remote) = (Candidate::new(&plain("pushed", Push)), Candidate::new(&plain("remote", Api)));
    for one in [&mut pushed, &mut remote] {
        one.1.begin(node.enter(&one.0.record).ok());
        assert!(one.settle(&node).is_none());
    }
    let mut critical = Candidate::new(&plain("critical", File));
    let entry = node.enter(&critical.0.record).unwrap();
    assert!(matches!(entry, Entry::Promise(_)));
    critical.1.begin(Some(entry));
    assert_eq!(ends_for(&mut critical, &node).unwrap(), ["remote"]);
    assert!(critical.reason() == "OutOfpods" && !critical.0.is_failed());
    assert!(critical.settle(&node).is_none(), "it is ordered once");
    let mut second = Candidate::new(&plain("second", Http));
    second.1.begin(node.enter(&second.0.record).ok());
    assert_eq!(ends_for(&mut second, &node).unwrap(), ["pushed"]);
    // No pod beyond those that can be made room for has a worker.
    assert!(node.enter(&plain("third", File)).is_err());
    while node.place_freed().now_or_never().is_some() {}
    remote.1.release();
    assert!(node.place_freed().now_or_never().is_some() && !has_place(&node, "lesser"), "it is kept");
    assert!(second.settle(&node).is_none() && second.reason() == "OutOfpods", "the other's turn");
    assert!(critical.settle(&node).is_none() && critical.reason().is_empty());
    // What is kept for one that goes is free.
    drop(second);
    pushed.1.release();
    assert!(has_place(&node, "lesser"));
}

#[test]
fn a_pod_of_the_apiserver_waits_for_the_end_of_another_and_fails_where_none_may_end() {
    let node = of_places(1);
    let critical = |name: &str| {
        let spec = json!({ "containers": [{ "name": "a" }], "priority": 2_000_001_000 });
        record_of(name, Api, spec)
    };
    let mut lesser = Candidate::new(&plain("lesser", Api));
    assert!(lesser.settle(&node).is_none());
    assert!(Candidate::new(&plain("as-good", Api)).settle(&node).unwrap().verdict.is_final());
    let mut first = Candidate::new(&critical("first"));
    assert_eq!(ends_for(&mut first, &node).unwrap(), ["lesser"]);
    assert!(!first.0.is_failed());
    lesser.1.release();
    assert!(first.settle(&node).is_none() && first.reason().is_empty());
    assert!(Candidate::new(&critical("second")).settle(&node).unwrap().verdict.is_final());
    assert_eq!(node.enter(&critical("second")).unwrap_err().reason, "OutOfpods");
}

#[test]
fn no_pod_ends_for_one_that_something_else_keeps_from_starting() {
    let labels = |label: &str| json!({ "containers": [{ "name": "a" }], "nodeSelector": { "zone": label } });
    let port = json!([{ "containerPort": 80, "hostPort": 80 }]);
    let with_port = || json!({ "containers": [{ "name": "a", "ports": port }] });
    let node = of_places(2);
    node.set_selectable(labelled("a"));
    let (mut lesser, mut owner) =
        (Candidate::new(&plain("lesser", Push)), Candidate::new(&record_of("owner", File, with_port())));
    assert!(lesser.settle(&node).is_none() && owner.settle(&node).is_none());
    let mut elsewhere = Candidate::new(&record_of("elsewhere", File, labels("b")));
    let mut taken = Candidate::new(&record_of("taken", File, with_port()));
    for (one, reason) in [(&mut elsewhere, "NodeAffinity"), (&mut taken, "NodePorts")] {
        assert_eq!(node.enter(&one.0.record).unwrap_err().reason, "OutOfpods");
        assert!(one.settle(&node).unwrap().victims.is_none());
        assert_eq!(one.reason(), reason);
    }
    // Once that has changed one does.
    node.set_selectable(labelled("b"));
    assert!(elsewhere.1.freed().now_or_never().is_some());
    assert_eq!(ends_for(&mut elsewhere, &node).unwrap(), ["lesser"]);
    // What is in the way again gives what was kept to others.
    node.set_selectable(labelled("a"));
    elsewhere.settle(&node);
    lesser.1.release();
    assert!(has_place(&node, "other"));
}

#[test]
fn a_critical_pod_without_a_place_is_tried_again_when_what_kept_others_from_ending_for_it_has_changed() {
    let node = of_places(1);
    node.set_selectable(labelled("a"));
    let mut lesser = Candidate::new(&plain("lesser", Push));
    assert!(lesser.settle(&node).is_none());
    let elsewhere = json!({ "containers": [{ "name": "a" }], "nodeSelector": { "zone": "b" } });
    let device = json!({ "limits": { "x.io/gpu": 1 } });
    let pods = [record_of("elsewhere", File, elsewhere), pod("device", File, device)];
    let changes: [&dyn Fn(); 2] = [&|| node.set_selectable(labelled("b")), &|| node.offer.plugins.list("x.io/gpu", 1)];
    for (record, change) in pods.iter().zip(changes) {
        assert!(node.enter(record).is_err());
        while node.place_freed().now_or_never().is_some() {}
        change();
        assert!(node.place_freed().now_or_never().is_some(), "{}", record.key);
        assert!(matches!(node.enter(record), Ok(Entry::Promise(_))), "{}", record.key);
    }
}

#[test]
fn another_version_of_a_pod_that_was_to_end_has_to_be_ordered_again() {
    let node = of_places(1);
    let mut lesser = Candidate::new(&plain("lesser", Push));
    assert!(lesser.settle(&node).is_none());
    let mut critical = Candidate::new(&plain("critical", File));
    assert_eq!(ends_for(&mut critical, &node).unwrap(), ["lesser"]);
    // It was ending for another reason, and its successor keeps the place.
    lesser.0.record = Arc::new(PodRecord { uid: PodUid::new("successor"), ..(*lesser.0.record).clone() });
    assert!(lesser.settle(&node).is_none());
    assert!(critical.1.freed().now_or_never().is_some());
    assert_eq!(ends_for(&mut critical, &node).unwrap(), ["lesser"]);
    assert!(critical.settle(&node).is_none());
    node.forget_order(&lesser.0.record.key);
    assert!(critical.1.freed().now_or_never().is_some());
    assert_eq!(ends_for(&mut critical, &node).unwrap(), ["lesser"], "the order was never sent");
}
