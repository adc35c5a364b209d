//! Whatever happens to pods, and however often the template and the numbers change: the bounds of an update hold, and it
//! ends once its pods get ready.

use std::collections::BTreeMap;

use jiff::SignedDuration;
use limpet_model::object::workload::PodTemplate;
use limpet_model::object::{ObjectKey, ObjectKind};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::clock::Clock;

/// What happens between two steps.
#[derive(Debug, Clone)]
enum Occurrence {
    /// A pod's facts: by number among those that exist.
    Ready(usize),
    Unready(usize),
    Ended(usize),
    /// What is not wanted any more has gone.
    Gone,
    Template(u8),
    Replicas(u32),
    Paused(bool),
    Time(i64),
    /// The agent starts again, with what was remembered.
    Restart,
}

fn occurrence() -> impl Strategy<Value = Occurrence> {
    use Occurrence::*;
    prop_oneof![
        4 => (0..12_usize).prop_map(Ready),
        1 => (0..12_usize).prop_map(Unready),
        1 => (0..12_usize).prop_map(Ended),
        2 => Just(Gone),
        1 => (0..4_u8).prop_map(Template),
        1 => (0..6_u32).prop_map(Replicas),
        1 => any::<bool>().prop_map(Paused),
        2 => (0..400_i64).prop_map(Time),
        1 => Just(Restart),
    ]
}

fn update() -> impl Strategy<Value = Update> {
    prop_oneof![
        (0..4_u32, 0..4_u32).prop_map(|(surge, unavailable)| Update::Rolling {
            surge,
            unavailable: if surge == 0 { unavailable.max(1) } else { unavailable },
        }),
        Just(Update::Recreate),
        Just(Update::Manual),
    ]
}

struct World {
    spec: Replicated,
    hash: String,
    memory: Memory,
    pace: Pace,
    facts: BTreeMap<String, Facts>,
    now: Timestamp,
}

impl World {
    fn step(&mut self) {
        let key = ObjectKey::new(ObjectKind::Deployment, "shop", "web");
        let facts = self.facts.iter().map(|(name, facts)| (name.as_str(), *facts)).collect();
        let (spec, hash) = (&self.spec, self.hash.as_str());
        let clock = Clock { now: self.now, earliest: self.now };
        let situation = Situation { node_name: "edge1", key: &key, spec, hash, observed: &facts, clock };
        step(&mut self.memory, &mut self.pace, &situation);
        for pod in &self.memory.pods {
            self.facts.entry(pod.name.clone()).or_default();
        }
    }

    fn template(&mut self, version: u8) {
        self.hash = format!("v{version}");
        let template = PodTemplate::new(&json!({"metadata": {"labels": {"v": self.hash}}, "spec": {}}));
        self.memory.begin_revision(&self.hash, &template, None);
    }

    fn available(&self, now: Timestamp) -> usize {
        let is_available = |pod: &&WantedPod| self.facts[&pod.name].is_available(self.spec.min_ready_seconds, now);
        self.memory.pods.iter().filter(is_available).count()
    }

    fn set(&mut self, at: usize, facts: Facts) {
        if let Some(pod) = self.memory.pods.get(at) {
            // What has ended does not run again.
            let known = self.facts.entry(pod.name.clone()).or_default();
            if known.phase != Phase::Ended {
                *known = facts;
            }
        }
    }

    fn happen(&mut self, occurrence: &Occurrence) {
        let running = Facts { phase: Phase::Running, ..Facts::default() };
        match occurrence {
            Occurrence::Ready(at) => self.set(*at, Facts { ready_since: Some(self.now), ..running }),
            Occurrence::Unready(at) => self.set(*at, running),
            Occurrence::Ended(at) => self.set(*at, Facts { phase: Phase::Ended, ..running }),
            Occurrence::Gone => {
                let wanted: BTreeSet<&str> = self.memory.pods.iter().map(|pod| pod.name.as_str()).collect();
                self.facts.retain(|name, _| wanted.contains(name.as_str()));
            }
            Occurrence::Template(version) => self.template(*version),
            Occurrence::Replicas(replicas) => self.spec.replicas = *replicas,
            Occurrence::Paused(paused) => self.spec.paused = *paused,
            Occurrence::Time(seconds) => self.now += SignedDuration::from_secs(*seconds),
            Occurrence::Restart => {
                self.pace = Pace::default();
                self.memory = Memory::from_bytes(&self.memory.to_bytes()).unwrap();
            }
        }
    }
}

proptest! {
    #[test]
    fn the_bounds_hold_and_the_update_ends(
        update in update(),
        replicas in 0..6_u32,
        min_ready_seconds in 0..20_u32,
        occurrences in prop::collection::vec(occurrence(), 1..60),
    ) {
        let spec = Replicated {
            replicas, update, min_ready_seconds, progress_deadline_seconds: Some(600), paused: false, history_limit: 2,
        };
        let now = Timestamp::from_second(1_000_000).unwrap();
        let mut world = World {
            spec, hash: String::new(), memory: Memory::default(), pace: Pace::default(), facts: BTreeMap::new(), now,
        };
        world.template(0);
        world.step();
        for occurrence in &occurrences {
            world.happen(occurrence);
            let (before, names) = (world.available(world.now), world.memory.pods.clone());
            world.step();
            let (replicas, all) = (usize_of(world.spec.replicas), world.memory.pods.len());
            let serials: BTreeSet<&str> = world.memory.pods.iter().map(|pod| pod.name.as_str()).collect();
            prop_assert_eq!(serials.len(), all, "names are unique");
            if let Update::Rolling { surge, unavailable } = world.spec.update {
                let scaled = matches!(occurrence, Occurrence::Replicas(_));
                prop_assert!(all <= replicas + usize_of(surge), "{all} pods of {replicas}");
                let least = replicas.saturating_sub(usize_of(unavailable));
                let after = world.available(world.now);
                prop_assert!(scaled || after >= before.min(least), "{before} were available, {after} are, {least} have to be");
            }
            if world.spec.update == Update::Recreate && !world.spec.paused {
                let hashes: BTreeSet<&str> = world.memory.pods.iter().map(|pod| pod.hash.as_str()).collect();
                prop_assert!(hashes.len() <= 1, "two templates at once");
            }
            for pod in world.memory.pods.iter().filter(|pod| !names.contains(pod)) {
                prop_assert!(world.facts[&pod.name] == Facts::default(), "{} is not a new pod", pod.name);
            }
            prop_assert!(world.memory.pods.iter().all(|pod| world.memory.revision(&pod.hash).is_some()));
        }
        world.spec.paused = false;
        for _ in 0..40 {
            let all = world.memory.pods.len();
            (0..all).for_each(|at| world.happen(&Occurrence::Ready(at)));
            world.happen(&Occurrence::Gone);
            world.happen(&Occurrence::Time(320));
            world.step();
        }
        prop_assert_eq!(world.memory.pods.len(), usize_of(world.spec.replicas));
        let is_updated = world.memory.pods.iter().all(|pod| pod.hash == world.hash);
        prop_assert!(is_updated || world.spec.update == Update::Manual, "the update did not end");
    }
}
