//! What is kept, what a user orders, and what stays away.

use super::*;

#[test]
fn a_user_returns_to_a_good_generation_and_the_newer_one_stays_away() {
    let mut node = good_node(Policy::All);
    let order = |number| Order { source: None, number };
    assert!(node.generations.order(order(None), node.now()).is_err());
    let second = [pod("a", "good:2")];
    node.publish(&second);
    node.wait(11);
    assert_eq!(node.generations.order(order(None), node.now()), Ok((SOURCE, 1)));
    node.run(true);
    assert_eq!(node.outcomes(), ["1* good", "2 refused: a user returned to generation 1"]);
    node.publish(&second);
    node.restart(true);
    node.wait(400);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
    assert!(node.generations.order(order(Some(1)), node.now()).is_err(), "in effect already");
    assert!(node.generations.order(order(Some(2)), node.now()).is_err(), "not good");
    assert!(node.generations.order(order(Some(9)), node.now()).is_err(), "not there");
}

#[test]
fn a_pod_that_a_user_has_deleted_does_not_come_back() {
    let mut node = good_node(Policy::All);
    let mut deleting = SourceSnapshot::clone(&node.raw);
    let key = PodKey::new("default", "a-edge1");
    let mut record = PodRecord::clone(&deleting.pods[&key]);
    record.pod.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH));
    deleting.pods.insert(key.clone(), Arc::new(record));
    node.raw = Arc::new(deleting);
    node.run(true);
    assert!(node.effective().pods[&key].is_deleting(), "it ends as its user wants");
    node.publish(&[pod("b", "config"), config("b", "never")]);
    node.wait(301);
    assert_eq!(node.images(), "b=config b:good");
}

#[test]
fn what_nobody_returns_to_is_forgotten_on_disk_too() {
    let mut node = Node::new(Policy::All);
    for number in 1..=8 {
        node.publish(&[pod("a", &format!("good:{number}")), pod("b", "good")]);
        node.wait(11);
        node.publish(&[pod("a", &format!("fail:{number}")), pod("b", "good")]);
        node.wait(2);
    }
    let outcomes = node.outcomes();
    assert_eq!(outcomes.len(), 6, "{outcomes:?}");
    assert_eq!(node.disk.manifests.len(), 7, "one of b, six of a");
    node.restart(true);
    assert_eq!(node.outcomes(), outcomes);
}

#[test]
fn a_refused_version_that_the_source_still_has_is_not_forgotten() {
    let mut node = Node::new(Policy::All);
    node.publish(&[pod("a", "good"), pod("b", "good")]);
    node.wait(11);
    let first = [pod("a", "fail:1"), pod("b", "good")];
    node.publish(&first);
    for number in 2..=3 {
        node.publish(&[pod("a", &format!("fail:{number}")), pod("b", "good")]);
    }
    // During a trial the source returns to what was refused first. The end of the trial makes one refused version too many.
    node.publish(&[pod("a", "never"), pod("b", "good")]);
    node.publish(&first);
    let switched = node.switches.borrow().len();
    node.wait(1_000);
    assert_eq!(node.images(), "a=good b=good");
    assert_eq!(node.switches.borrow().len(), switched + 1, "{:?}", node.outcomes());
}
