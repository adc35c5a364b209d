//! Tables: what a controller makes of a situation, step by step.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::{ObjectKey, ObjectKind};
use serde_json::json;

use super::*;
use crate::clock::Clock;

/// A Deployment and its pods, with a clock.
struct Scene {
    spec: Replicated,
    hash: String,
    memory: Memory,
    pace: Pace,
    facts: BTreeMap<String, Facts>,
    now: Timestamp,
}

impl Scene {
    fn new(replicas: u32, update: Update) -> Self {
        let spec = Replicated {
            replicas,
            update,
            min_ready_seconds: 0,
            progress_deadline_seconds: Some(600),
            paused: false,
            history_limit: 2,
        };
        let (now, hash) = (Timestamp::from_second(1_000).unwrap(), "first".to_owned());
        let mut scene =
            Self { spec, hash, memory: Memory::default(), pace: Pace::default(), facts: BTreeMap::new(), now };
        scene.rollout("first");
        scene
    }

    fn step(&mut self) -> Next {
        let key = ObjectKey::new(ObjectKind::Deployment, "shop", "web");
        let facts = self.facts.iter().map(|(name, facts)| (name.as_str(), *facts)).collect();
        let situation = Situation {
            node_name: "edge1",
            key: &key,
            spec: &self.spec,
            hash: &self.hash,
            observed: &facts,
            clock: Clock { now: self.now, earliest: self.now },
        };
        step(&mut self.memory, &mut self.pace, &situation)
    }

    /// Another template takes effect.
    fn rollout(&mut self, hash: &str) {
        hash.clone_into(&mut self.hash);
        let template = PodTemplate::new(&json!({"metadata": {"labels": {"v": hash}}, "spec": {}}));
        self.memory.begin_revision(hash, &template, None);
    }

    /// Pods of each template.
    fn sizes(&self) -> BTreeMap<&str, usize> {
        let mut sizes = BTreeMap::new();
        self.memory.pods.iter().for_each(|pod| *sizes.entry(pod.hash.as_str()).or_default() += 1);
        sizes
    }

    /// Every wanted pod is ready, and the others have gone.
    fn settle(&mut self) {
        let ready = Facts { phase: Phase::Running, ready_since: Some(self.now), ..Facts::default() };
        let names: BTreeSet<String> = self.memory.pods.iter().map(|pod| pod.name.clone()).collect();
        self.facts.retain(|name, _| names.contains(name));
        for name in names {
            self.facts.entry(name).or_insert(ready);
        }
    }

    fn pass(&mut self, seconds: i64) {
        self.now += SignedDuration::from_secs(seconds);
    }
}

const ROLLING: Update = Update::Rolling { surge: 1, unavailable: 0 };

#[test]
fn a_rolling_update_replaces_one_pod_after_the_other() {
    let mut scene = Scene::new(3, ROLLING);
    scene.step();
    scene.settle();
    scene.rollout("second");
    let mut seen = Vec::new();
    for _ in 0..8 {
        scene.step();
        let sizes = scene.sizes();
        seen.push((sizes.get("first").copied().unwrap_or(0), sizes.get("second").copied().unwrap_or(0)));
        scene.settle();
    }
    assert_eq!(seen, [(3, 1), (2, 2), (1, 3), (0, 3), (0, 3), (0, 3), (0, 3), (0, 3)]);
}

#[test]
fn an_update_that_never_gets_ready_leaves_the_old_pods_and_is_overdue_once() {
    let mut scene = Scene::new(2, Update::Rolling { surge: 0, unavailable: 1 });
    scene.step();
    scene.settle();
    scene.rollout("broken");
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("broken", 1), ("first", 1)]));
    let due = scene.step().at.unwrap();
    assert_eq!(due.duration_since(scene.now).as_secs(), 600);
    scene.now = due;
    assert_eq!((scene.step(), scene.step()), (Next { at: None, overdue: true }, Next::default()));
    assert_eq!(scene.sizes(), BTreeMap::from([("broken", 1), ("first", 1)]));
    // Back to the template that works.
    scene.rollout("first");
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 2)]));
    assert_eq!(scene.memory.revisions.last().map(|newest| (newest.number, newest.hash.as_str())), Some((3, "first")));
}

#[test]
fn recreate_waits_until_the_old_pods_are_gone() {
    let mut scene = Scene::new(2, Update::Recreate);
    scene.step();
    scene.settle();
    scene.rollout("second");
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::new(), "both still terminate");
    scene.settle();
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("second", 2)]));
}

#[test]
fn a_paused_deployment_scales_and_rolls_nothing_out() {
    let mut scene = Scene::new(2, ROLLING);
    scene.step();
    scene.settle();
    scene.spec.paused = true;
    scene.rollout("second");
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 2)]));
    scene.spec.replicas = 4;
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 4)]));
    scene.spec.paused = false;
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 4), ("second", 1)]));
}

#[test]
fn scaling_during_an_update_keeps_the_proportion() {
    let mut scene = Scene::new(10, Update::Rolling { surge: 3, unavailable: 2 });
    scene.step();
    scene.settle();
    scene.rollout("second");
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 8), ("second", 5)]), "as in Kubernetes' documentation");
    scene.spec.replicas = 15;
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 11), ("second", 7)]));
}

#[test]
fn many_small_revisions_share_fewer_replicas_within_the_bounds() {
    let mut scene = Scene::new(3, Update::Rolling { surge: 1, unavailable: 0 });
    scene.step();
    for hash in ["second", "third", "fourth"] {
        scene.rollout(hash);
        scene.step();
    }
    scene.spec.paused = true;
    scene.spec.replicas = 1;
    scene.step();
    assert!(scene.memory.pods.len() <= 2, "{:?}", scene.sizes());
}

#[test]
fn a_number_of_replicas_ends_the_pods_that_serve_least() {
    let mut scene = Scene::new(3, ROLLING);
    scene.step();
    scene.settle();
    let unready = scene.memory.pods[1].name.clone();
    scene.facts.insert(unready.clone(), Facts { phase: Phase::Running, ..Facts::default() });
    scene.spec.replicas = 2;
    scene.step();
    assert!(scene.memory.pods.len() == 2 && scene.memory.pods.iter().all(|pod| pod.name != unready));
    scene.spec.replicas = 0;
    scene.step();
    assert_eq!(scene.memory.pods, []);
}

#[test]
fn a_pod_that_ended_is_replaced_under_another_name_after_a_growing_pause() {
    let mut scene = Scene::new(1, ROLLING);
    scene.spec.progress_deadline_seconds = None;
    scene.step();
    for pause in [10, 20, 40, 80, 160, 300, 300] {
        let name = scene.memory.pods[0].name.clone();
        scene.facts = BTreeMap::from([(name.clone(), Facts { phase: Phase::Ended, ..Facts::default() })]);
        let due = scene.step().at.unwrap();
        assert_eq!((due.duration_since(scene.now).as_secs(), &scene.memory.pods[0].name), (pause, &name));
        scene.now = due;
        scene.step();
        assert!(scene.memory.pods.len() == 1 && scene.memory.pods[0].name != name);
    }
    scene.facts.clear();
    scene.settle();
    scene.step();
    let name = scene.memory.pods[0].name.clone();
    scene.facts = BTreeMap::from([(name, Facts { phase: Phase::Ended, ..Facts::default() })]);
    assert_eq!(scene.step().at.unwrap().duration_since(scene.now).as_secs(), 10, "it was available");
}

#[test]
fn a_pod_counts_once_it_was_ready_long_enough() {
    let mut scene = Scene::new(1, ROLLING);
    scene.spec.min_ready_seconds = 30;
    scene.step();
    scene.settle();
    scene.pass(60);
    scene.step();
    scene.rollout("second");
    scene.step();
    scene.settle();
    let due = scene.step().at.unwrap();
    assert_eq!((due.duration_since(scene.now).as_secs(), scene.memory.pods.len()), (30, 2));
    scene.pass(30);
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("second", 1)]));
}

#[test]
fn a_replica_set_keeps_its_pods_when_its_template_changes() {
    let mut scene = Scene::new(2, Update::Manual);
    scene.step();
    scene.settle();
    scene.rollout("second");
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 2)]));
    scene.spec.replicas = 3;
    scene.step();
    assert_eq!(scene.sizes(), BTreeMap::from([("first", 2), ("second", 1)]));
}

#[test]
fn old_templates_are_kept_up_to_the_limit() {
    let mut scene = Scene::new(1, ROLLING);
    for hash in ["a", "b", "c", "d"] {
        scene.rollout(hash);
        for _ in 0..3 {
            scene.step();
            scene.settle();
        }
    }
    let hashes: Vec<&str> = scene.memory.revisions.iter().map(|revision| revision.hash.as_str()).collect();
    assert_eq!(hashes, ["b", "c", "d"]);
}

#[test]
fn without_memory_the_names_are_the_same() {
    let names = || {
        let mut scene = Scene::new(3, ROLLING);
        scene.step();
        scene.memory.pods.into_iter().map(|pod| pod.name).collect::<Vec<_>>()
    };
    assert_eq!(names(), names());
}
