//! A version on its way: prepared, on trial, good or undone.

use super::*;

#[test]
fn a_good_update_is_committed_and_the_first_runs_without_any_before_it() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "good:2"), pod("b", "config"), config("b", "good")]);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(9);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.wait(2);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
    assert!(node.generations.due().is_none() && !node.generations.awaits_pods());
    assert_eq!(node.reasons, ["GenerationStarted", "GenerationCommitted", "GenerationStarted", "GenerationCommitted"]);
}

#[test]
fn a_source_without_anything_has_no_generation_to_return_to() {
    let mut node = Node::new(Policy::All);
    node.raw = Arc::new(SourceSnapshot { ready: true, ..SourceSnapshot::default() });
    node.wait(20);
    assert!(node.outcomes().is_empty());
    node.publish(&[pod("a", "fail")]);
    node.wait(400);
    assert_eq!((node.outcomes(), node.images().as_str()), (vec!["1* on trial".to_owned()], "a=fail"));
}

#[test]
fn a_version_that_is_prepared_waits_for_containerd() {
    let mut node = good_node(Policy::All);
    node.is_paused = true;
    node.publish(&[pod("a", "good:2")]);
    assert_eq!(node.outcomes(), ["1* good"]);
    assert!(node.generations.due().is_some(), "nothing wakes it");
    node.is_paused = false;
    node.wait(11);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
}

#[test]
fn what_does_not_work_is_undone_and_not_tried_again_until_it_changes() {
    for (image, seconds, why) in [
        ("never", 301, "pod default/a-edge1 is not ready"),
        ("crash", 45, "pod default/a-edge1 was restarted 4 times"),
        ("fail", 1, "pod default/a-edge1 has failed"),
    ] {
        let mut node = good_node(Policy::All);
        let bad = [pod("a", image), pod("b", "config"), config("b", "good")];
        node.publish(&bad);
        node.wait(seconds);
        assert_eq!(node.outcomes(), ["1* good".to_owned(), format!("2 refused: {why}")]);
        assert_eq!(node.images(), "a=good:1 b=config b:good");
        node.restart(false);
        node.restart(true);
        node.publish(&bad);
        node.wait(400);
        assert_eq!(node.outcomes().len(), 2, "{image} is tried again");
        assert_eq!(node.generations.views()[0].refused, Some(2));
        node.publish(&[pod("a", "good:3"), pod("b", "config"), config("b", "good")]);
        node.wait(11);
        assert_eq!(node.outcomes()[2], "3* good");
        node.publish(&bad);
        node.wait(400);
        assert_eq!(node.images(), "a=good:3 b=config b:good", "{image} is remembered");
    }
}

#[test]
fn nothing_is_switched_while_an_image_is_missing() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "missing"), pod("b", "config"), config("b", "never")]);
    node.wait(1_000);
    assert_eq!((node.images().as_str(), node.outcomes().len()), ("a=good:1 b=config b:good", 1));
    assert_eq!(node.reasons.iter().filter(|reason| **reason == "GenerationWaiting").count(), 1);
    let images = node.generations.images();
    assert!(images.contains("a.io/missing:latest") && images.contains("a.io/good:1"), "{images:?}");
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "good")]);
    assert!(node.generations.views()[0].waiting.is_none());
}

#[test]
fn an_edit_during_a_trial_returns_to_the_good_one_or_replaces_the_other() {
    let mut node = good_node(Policy::All);
    let first = [pod("a", "good:1"), pod("b", "config"), config("b", "good")];
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.publish(&first);
    assert_eq!(node.outcomes(), ["1* good"]);
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.wait(100);
    node.publish(&[pod("a", "never:2"), pod("b", "config"), config("b", "good")]);
    node.wait(250);
    assert_eq!(node.outcomes(), ["1 good", "4* on trial"], "its time began anew");
    node.wait(60);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
}
