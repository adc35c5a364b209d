//! Restarts: of pods, of the agent and of the node.

use super::*;

#[test]
fn the_restart_that_an_update_needs_itself_does_not_count() {
    let policies = Policies::default().with(SOURCE, Policy::All);
    let mut node = Node::with(Settings { policies, max_restarts: 0, ..Settings::default() });
    node.publish(&[pod("a", "good:1"), pod("b", "good")]);
    node.wait(11);
    node.publish(&[pod("a", "good:2"), pod("b", "good")]);
    node.wait(11);
    assert_eq!(node.outcomes(), ["1 good", "2* good"]);
    node.publish(&[pod("a", "crash"), pod("b", "good")]);
    node.wait(10);
    assert_eq!(node.outcomes()[2], "3 refused: pod default/a-edge1 was restarted 1 times");
}

#[test]
fn a_config_map_that_breaks_a_sibling_returns_with_everything_else() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "good:2"), pod("b", "config"), config("b", "never")]);
    node.wait(301);
    assert_eq!(node.images(), "a=good:1 b=config b:good");
    assert_eq!(node.restarted, [PodKey::new("default", "b-edge1")], "it may have read what was undone");
    node.restart(false);
    node.wait(400);
    assert_eq!((node.restarted.len(), node.generations.awaits_pods()), (1, false), "restarted twice");
}

#[test]
fn a_restart_that_the_end_of_the_agent_has_lost_is_ordered_again() {
    let mut node = good_node(Policy::All);
    node.loses_orders = true;
    node.publish(&[pod("a", "good:1"), pod("b", "config"), config("b", "never")]);
    node.wait(301);
    assert_eq!((node.images().as_str(), node.restarted.len()), ("a=good:1 b=config b:good", 1));
    node.wait(400);
    assert_eq!(node.restarted.len(), 1, "ordered twice in one life");
    assert!(node.generations.awaits_pods());
    node.loses_orders = false;
    // The pods are not found at once.
    let observed = std::mem::take(&mut node.observed);
    node.restart(false);
    node.observed = observed;
    node.wait(2);
    assert_eq!((node.restarted.len(), node.generations.awaits_pods()), (2, false));
    node.restart(false);
    node.wait(2);
    assert_eq!(node.restarted.len(), 2);
}

#[test]
fn a_boot_is_judged_once_by_what_runs() {
    let mut node = good_node(Policy::All);
    node.restart(true);
    node.generations.begin_boot_check();
    let mut verdicts = Vec::new();
    for second in 0..30 {
        let (observed, now, is_paused) = (node.observed.clone(), node.now(), second < 5);
        let facts = Facts { observed: &observed, rollout: &|_, _| None, is_paused };
        verdicts.extend(node.generations.boot_verdict(&facts, now));
        node.wait(1);
    }
    assert_eq!(verdicts, [Ok(())]);
}

#[test]
fn two_starts_of_the_node_during_a_trial_end_it_before_any_pod_starts() {
    let mut node = good_node(Policy::All);
    node.publish(&[pod("a", "never"), pod("b", "config"), config("b", "good")]);
    node.restart(true);
    assert_eq!(node.outcomes(), ["1 good", "2* on trial"]);
    node.boots += 1;
    let (generations, saves) = Node::open(&node.settings, &node.disk, node.boots, node.uptime);
    assert_eq!(saves.len(), 1);
    node.generations = generations;
    node.generations.remembered();
    assert_eq!(node.images(), "a=good:1 b=config b:good");
    assert_eq!(node.outcomes()[1], "2 refused: the node was started 2 times before it was good");
}
