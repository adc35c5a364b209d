#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::fixtures::observed;

fn pod(name: &str) -> Arc<ObservedPod> {
    observed(json!({ "metadata": { "name": name } }))
}

fn names(retired: &Retired, id: ConsumerId) -> Vec<String> {
    retired.awaited_by(id).map(|(_, pod)| pod.record.key.name().to_owned()).collect()
}

#[test]
fn without_a_consumer_a_status_goes_at_once() {
    let mut retired = Retired::default();
    assert!(retired.retire(pod("web")).is_none() && retired.is_empty());
    let late = retired.register("late");
    assert_eq!(names(&retired, late), [""; 0]);
}

#[test]
fn a_status_stays_until_the_last_consumer_has_taken_it() {
    let mut retired = Retired::default();
    let (first, other) = (retired.register("one"), retired.register("other"));
    retired.retire(pod("web"));
    let newcomer = retired.register("newcomer");
    retired.retire(pod("db"));
    assert_eq!((names(&retired, first).len(), names(&retired, newcomer)), (2, vec!["db".to_owned()]));
    let version = retired.awaited_by(first).next().unwrap().0;
    retired.acknowledge(first, version);
    retired.acknowledge(first, version);
    assert_eq!((retired.len(), names(&retired, first)), (2, vec!["db".to_owned()]), "the other has not taken it");
    retired.acknowledge(other, version);
    assert_eq!((retired.len(), names(&retired, other)), (1, vec!["db".to_owned()]));
    retired.leave(first);
    retired.leave(other);
    assert_eq!(retired.len(), 1);
    retired.leave(newcomer);
    assert!(retired.is_empty(), "a consumer that is gone holds nothing");
}

#[test]
fn a_consumer_that_takes_nothing_holds_a_bounded_number() {
    let mut retired = Retired::default();
    let slow = retired.register("slow");
    let dropped: Vec<DroppedStatus> =
        (0..MAX_RETIRED + 3).filter_map(|n| retired.retire(pod(&format!("pod-{n}")))).collect();
    assert_eq!((retired.len(), dropped.len()), (MAX_RETIRED, 3));
    assert_eq!((dropped[0].pod.record.key.name(), &dropped[0].consumers[..]), ("pod-0", &["slow"][..]));
    assert_eq!(names(&retired, slow)[0], "pod-3");
}

/// What may happen, by index of consumer and of version among those it awaits.
#[derive(Debug, Clone)]
enum Operation {
    Register,
    Leave(usize),
    Retire,
    Acknowledge(usize, usize),
}

fn step() -> impl Strategy<Value = Operation> {
    prop_oneof![
        2 => Just(Operation::Register),
        1 => (0..8usize).prop_map(Operation::Leave),
        6 => Just(Operation::Retire),
        6 => (0..8usize, 0..8usize).prop_map(|(consumer, version)| Operation::Acknowledge(consumer, version)),
    ]
}

proptest! {
    /// Compares with a model that has one queue for each consumer: nothing is lost or repeated, and nothing is kept
    /// without a consumer that needs it.
    #[test]
    fn every_consumer_gets_what_was_retired_while_it_was_registered(steps in prop::collection::vec(step(), 0..200)) {
        let status = pod("web");
        let mut retired = Retired::default();
        let mut model: BTreeMap<ConsumerId, BTreeSet<u64>> = BTreeMap::new();
        let mut version = 0;
        for step in steps {
            let nth = |model: &BTreeMap<ConsumerId, BTreeSet<u64>>, n: usize| model.keys().nth(n).copied();
            match step {
                Operation::Register => drop(model.insert(retired.register("one"), BTreeSet::new())),
                Operation::Leave(n) => {
                    if let Some(id) = nth(&model, n) {
                        model.remove(&id);
                        retired.leave(id);
                    }
                }
                Operation::Retire if model.is_empty() => prop_assert!(retired.retire(Arc::clone(&status)).is_none()),
                Operation::Retire => {
                    let kept: BTreeSet<u64> = model.values().flatten().copied().collect();
                    let overdue = retired.retire(Arc::clone(&status));
                    prop_assert_eq!(overdue.is_some(), kept.len() == MAX_RETIRED);
                    model.values_mut().for_each(|queue| queue.extend([version]));
                    if let (true, Some(oldest)) = (overdue.is_some(), kept.first()) {
                        model.values_mut().for_each(|queue| queue.retain(|kept| kept != oldest));
                    }
                    version += 1;
                }
                Operation::Acknowledge(n, m) => {
                    if let Some(id) = nth(&model, n)
                        && let Some(version) = model[&id].iter().nth(m).copied()
                    {
                        model.get_mut(&id).unwrap().remove(&version);
                        retired.acknowledge(id, version);
                    }
                }
            }
            for (id, queue) in &model {
                prop_assert_eq!(&retired.awaited_by(*id).map(|(version, _)| version).collect::<BTreeSet<_>>(), queue);
            }
            let kept: BTreeSet<u64> = model.values().flatten().copied().collect();
            prop_assert_eq!(retired.len(), kept.len());
        }
    }
}
