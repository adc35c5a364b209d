//! Tables: what a StatefulSet's controller makes of a situation, step by step.

use jiff::SignedDuration;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::{ObjectKey, ObjectKind};
use serde_json::json;

use super::*;
use crate::clock::Clock;

/// A StatefulSet and its pods, with a clock.
struct Scene {
    spec: StatefulSet,
    hash: String,
    memory: Memory,
    pace: Pace,
    members: BTreeMap<String, Member>,
    now: Timestamp,
}

const ROLLING: Rolling = Rolling { partition: 0, unavailable: 1 };

impl Scene {
    fn new(replicas: u32, parallel: bool) -> Self {
        let spec = StatefulSet {
            replicas,
            start: 0,
            parallel,
            rolling: Some(ROLLING),
            min_ready_seconds: 0,
            history_limit: 2,
            service_name: None,
            claims: Vec::new(),
            claims_end_with_set: false,
            claims_end_with_replica: false,
        };
        let now = Timestamp::from_second(1_000).unwrap();
        let (memory, pace, members) = (Memory::default(), Pace::default(), BTreeMap::new());
        let mut scene = Self { spec, hash: String::new(), memory, pace, members, now };
        scene.rollout("first");
        scene
    }

    fn rollout(&mut self, hash: &str) {
        hash.clone_into(&mut self.hash);
        let template = PodTemplate::new(&json!({"metadata": {"labels": {"v": hash}}, "spec": {}}));
        self.memory.begin_revision(hash, &template, None);
    }

    fn step(&mut self) -> Option<Timestamp> {
        let key = ObjectKey::new(ObjectKind::StatefulSet, "shop", "db");
        let members = self.members.iter().map(|(name, member)| (name.as_str(), *member)).collect();
        let clock = Clock { now: self.now, earliest: self.now };
        let (spec, hash) = (&self.spec, self.hash.as_str());
        let situation = Situation { node_name: "edge1", key: &key, spec, hash, observed: &members, clock };
        self.memory = Memory::from_bytes(&self.memory.to_bytes()).unwrap();
        let before = self.memory.pods.clone();
        let at = step(&mut self.memory, &mut self.pace, &situation, &mut Notices::default());
        // What was made anew is observed as the one before it.
        for pod in self.memory.pods.iter().filter(|pod| !before.contains(pod)) {
            if let Some(member) = self.members.get_mut(&pod.name) {
                member.is_wanted = false;
            }
        }
        at
    }

    /// Every wanted pod is ready, and the others have gone.
    fn settle(&mut self) {
        let facts = Facts { phase: Phase::Running, ready_since: Some(self.now), ..Facts::default() };
        let wanted = self.memory.pods.iter().map(|pod| pod.name.clone());
        self.members = wanted.map(|name| (name, Member { facts, is_wanted: true, terminating: false })).collect();
    }

    /// The pods, each with the first letter of its template.
    fn pods(&self) -> String {
        let mut pods: Vec<String> =
            self.memory.pods.iter().map(|pod| format!("{}{}", &pod.name[3..], &pod.hash[..1])).collect();
        pods.sort();
        pods.join(" ")
    }

    fn run(&mut self) -> String {
        self.settle();
        self.step();
        self.pods()
    }
}

#[test]
fn pods_begin_one_after_the_other_and_end_from_the_last_one() {
    let mut scene = Scene::new(3, false);
    scene.step();
    scene.step();
    assert_eq!(scene.pods(), "0f", "the first one is not ready");
    assert_eq!(
        (scene.run(), scene.run(), scene.run()),
        ("0f 1f".to_owned(), "0f 1f 2f".to_owned(), "0f 1f 2f".to_owned())
    );
    scene.spec.replicas = 1;
    scene.step();
    scene.step();
    assert_eq!(scene.pods(), "0f 1f", "the last one has not gone yet");
    assert_eq!((scene.run(), scene.run()), ("0f".to_owned(), "0f".to_owned()));
}

#[test]
fn in_parallel_they_do_not_wait() {
    let mut scene = Scene::new(3, true);
    scene.spec.start = 5;
    scene.step();
    assert_eq!(scene.pods(), "5f 6f 7f");
    scene.spec.replicas = 1;
    scene.step();
    assert_eq!(scene.pods(), "5f");
    scene.spec.replicas = 2;
    scene.members = BTreeMap::from([("db-6".to_owned(), Member::default())]);
    scene.step();
    assert_eq!(scene.pods(), "5f", "the one of that name has not gone yet");
}

#[test]
fn an_update_goes_from_the_last_one_to_the_partition() {
    let mut scene = Scene::new(3, false);
    (0..4).for_each(|_| drop(scene.run()));
    scene.rollout("second");
    scene.spec.rolling = Some(Rolling { partition: 1, ..ROLLING });
    assert_eq!(scene.run(), "0f 1f 2s");
    scene.step();
    assert_eq!(scene.pods(), "0f 1f 2s", "it is not ready");
    assert_eq!((scene.run(), scene.run()), ("0f 1s 2s".to_owned(), "0f 1s 2s".to_owned()));
    // One below the partition that is made anew keeps its template.
    scene.memory.pods.retain(|pod| pod.name != "db-0");
    scene.members.remove("db-0");
    scene.step();
    assert_eq!(scene.pods(), "0f 1s 2s");
    scene.spec.rolling = Some(ROLLING);
    assert_eq!(scene.run(), "0s 1s 2s");
    scene.run();
    assert_eq!(scene.memory.set.as_deref(), Some("second"));
}

#[test]
fn so_many_may_be_down_during_an_update() {
    for (parallel, down, expected) in [
        (false, "", "0f 1s 2s"),
        (true, "", "0f 1s 2s"),
        (true, "db-0", "0s 1f 2s"),
        (false, "db-2", "0f 1f 2s"),
        (false, "db-0", "0s 1f 2f"),
    ] {
        let mut scene = Scene::new(3, parallel);
        (0..4).for_each(|_| drop(scene.run()));
        scene.rollout("second");
        scene.spec.rolling = Some(Rolling { partition: 0, unavailable: 2 });
        scene.settle();
        if let Some(member) = scene.members.get_mut(down) {
            member.facts.ready_since = None;
        }
        scene.step();
        assert_eq!(scene.pods(), expected, "{parallel} {down}");
    }
}

#[test]
fn an_edit_that_breaks_the_first_pod_is_repaired_by_the_next_one() {
    let mut scene = Scene::new(2, false);
    (0..3).for_each(|_| drop(scene.run()));
    scene.rollout("wrong");
    assert_eq!(scene.run(), "0f 1w");
    // The new pod does not get ready.
    scene.settle();
    scene.members.get_mut("db-1").unwrap().facts.ready_since = None;
    scene.step();
    assert_eq!(scene.pods(), "0f 1w");
    scene.rollout("right");
    scene.step();
    assert_eq!(scene.pods(), "0f 1r", "one at a time");
    assert_eq!(scene.run(), "0r 1r");
    // A pod that is not observed yet may serve, and one at a time is enough.
    scene.rollout("again");
    scene.settle();
    scene.members.clear();
    scene.step();
    assert_eq!(scene.pods(), "0r 1r");
    assert_eq!(scene.run(), "0r 1a");
    scene.settle();
    scene.members.values_mut().for_each(|member| member.facts.ready_since = None);
    scene.step();
    assert_eq!(scene.pods(), "0r 1a");
    assert_eq!(scene.run(), "0a 1a");
    // Below the partition nothing is replaced.
    scene.rollout("next");
    scene.spec.rolling = Some(Rolling { partition: 1, ..ROLLING });
    scene.settle();
    scene.members.get_mut("db-0").unwrap().facts.ready_since = None;
    scene.step();
    assert_eq!(scene.pods(), "0a 1a");
}

#[test]
fn with_on_delete_pods_keep_their_template() {
    let mut scene = Scene::new(2, false);
    (0..3).for_each(|_| drop(scene.run()));
    scene.rollout("second");
    scene.spec.rolling = None;
    assert_eq!(scene.run(), "0f 1f");
    scene.spec.replicas = 3;
    assert_eq!(scene.run(), "0f 1f 2s");
}

#[test]
fn a_pod_that_ended_is_made_anew_under_its_name() {
    let mut scene = Scene::new(2, false);
    (0..3).for_each(|_| drop(scene.run()));
    scene.settle();
    scene.members.get_mut("db-0").unwrap().facts = Facts { phase: Phase::Ended, ..Facts::default() };
    let due = scene.step().unwrap();
    assert_eq!(due.duration_since(scene.now).as_secs(), 10);
    scene.now = due;
    scene.step();
    let serials: Vec<(&str, u64)> = scene.memory.pods.iter().map(|pod| (pod.name.as_str(), pod.serial)).collect();
    assert_eq!(serials, [("db-0", 1), ("db-1", 0)]);
    // The one that ended is still observed.
    scene.now += SignedDuration::from_secs(1_000);
    scene.step();
    assert_eq!(scene.memory.pods[0].serial, 1);
}

#[test]
fn a_pod_counts_once_it_was_ready_long_enough() {
    let mut scene = Scene::new(2, false);
    scene.spec.min_ready_seconds = 30;
    scene.step();
    scene.settle();
    let due = scene.step().unwrap();
    assert_eq!((due.duration_since(scene.now).as_secs(), scene.pods().as_str()), (30, "0f"));
    scene.now = due;
    scene.step();
    assert_eq!(scene.pods(), "0f 1f");
}
