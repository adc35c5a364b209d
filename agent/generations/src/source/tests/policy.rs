//! What is judged, by which policy, and for how long.

use super::*;

#[test]
fn with_the_policy_pods_config_maps_stay_as_they_are() {
    let mut node = good_node(Policy::Pods);
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "never")]);
    assert_eq!((node.images().as_str(), node.outcomes().len()), ("a=good:1 b=config b:never", 1));
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.wait(301);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
}

#[test]
fn probes_have_time_to_fail_where_only_a_config_map_has_changed() {
    let reader = |word: &str| {
        let pod = "{apiVersion: v1, kind: Pod, metadata: {name: b}, spec: {containers: [{name: c, image: a.io/config, \
                   readinessProbe: {tcpSocket: {port: 80}}, envFrom: [{configMapRef: {name: b}}]}]}}";
        [pod.to_owned(), config("b", word)]
    };
    let mut node = Node::new(Policy::All);
    node.publish(&reader("good"));
    node.wait(11);
    node.publish(&reader("good, too"));
    node.wait(32);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(2);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
}

#[test]
fn what_had_not_worked_before_is_not_judged() {
    let mut node = Node::new(Policy::All);
    node.publish(&[pod("a", "good:1"), pod("b", "never")]);
    node.wait(400);
    assert_eq!(node.outcomes(), ["1* on trial"]);
    assert!(node.reasons.contains(&"GenerationNotReady"));
    node.publish(&[pod("a", "good:2"), pod("b", "never")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["2* good"]);
    // What an update has broken is judged in the next one.
    node.publish(&[pod("a", "never"), pod("b", "never")]);
    node.publish(&[pod("a", "never"), pod("b", "never"), pod("c", "good")]);
    node.wait(301);
    assert_eq!(node.images(), "a=good:2 b=never");
}

#[test]
fn a_check_has_to_be_passed_before_the_deadline() {
    let policies = Policies::default().with(SOURCE, Policy::All);
    let check = Some(CheckAction::Url("http://127.0.0.1/".to_owned()));
    let mut node = Node::with(Settings { policies, check, ..Settings::default() });
    node.publish(&[pod("a", "good:1")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["1* good"]);
    node.check = Err("refused".to_owned());
    node.publish(&[pod("a", "good:2")]);
    node.wait(100);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.check = Ok(());
    node.wait(6);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
    node.check = Err("refused".to_owned());
    node.publish(&[pod("a", "good:3")]);
    node.wait(306);
    assert_eq!(node.outcomes()[2], "3 refused: the check failed: refused");
}

#[test]
fn nothing_is_judged_while_containerd_is_away_and_the_time_begins_anew() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.is_paused = true;
    node.wait(1_000);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.is_paused = false;
    node.wait(299);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(2);
    assert_eq!(node.outcomes()[0], "1* good");
}
