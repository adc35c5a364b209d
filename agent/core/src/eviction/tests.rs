#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::rank::{Candidate, message, order};
use super::*;
use crate::fixtures::{READY, instance, now as fixture_now, ready, record_of as record};
use crate::node_state::NodeState;
use crate::plan::{Action, Step, plan};
use crate::state::{PodState, SandboxState};
use crate::status::generate::generate;
use limpet_model::pod::PodRecord;
use limpet_model::source::SourceKind;
use limpet_model::verdict::{Eviction, PodVerdict};

const SECOND: Duration = Duration::from_secs(1);
const GIB: u64 = 1 << 30;

fn hard(signal: Signal, value: Amount) -> Threshold {
    Threshold { signal, value, grace: Duration::ZERO, min_reclaim: None }
}

fn policy(thresholds: &[Threshold]) -> EvictionPolicy {
    EvictionPolicy { thresholds: thresholds.to_vec(), ..EvictionPolicy::default() }
}

fn seen(signal: Signal, available: u64) -> Observations {
    [(signal, Observation { available, capacity: 10 * GIB })].into()
}

fn under(finding: &Assessment) -> Vec<Pressure> {
    finding.pressure.iter().collect()
}

#[test]
fn the_defaults_are_kubelets_and_met_strictly_below() {
    let policy = EvictionPolicy::default();
    let cases = [
        (Signal::MemoryAvailable, 100 << 20, Pressure::Memory),
        (Signal::NodefsAvailable, GIB, Pressure::Disk),
        (Signal::NodefsInodesFree, GIB / 2, Pressure::Disk),
        (Signal::ImagefsAvailable, 3 * GIB / 2, Pressure::Disk),
        (Signal::ImagefsInodesFree, GIB / 2, Pressure::Disk),
    ];
    for (signal, limit, pressure) in cases {
        // A share is rounded down, from the 24 bits that kubelet keeps of it.
        let (below, above) = (seen(signal, limit - 400), seen(signal, limit + 400));
        let starved = ThresholdTracker::default().observe(&policy, &below, Instant::now());
        assert_eq!((under(&starved), starved.starved.unwrap().signal), (vec![pressure], signal));
        assert!(policy.met(&below).next().is_some() && policy.met(&above).next().is_none(), "{signal:?}");
        let fine = ThresholdTracker::default().observe(&policy, &above, Instant::now());
        assert_eq!((under(&fine), fine.starved, fine.next), (vec![], None, None));
        assert!(fine.pressure.is_known());
    }
    let exactly = policy.thresholds[0];
    assert!(!exactly.is_met(&Observation { available: 100 << 20, capacity: GIB }, false));
    assert_eq!(
        ThresholdTracker::default().observe(&policy, &Observations::new(), Instant::now()).starved,
        None,
        "not measured"
    );
}

#[test]
fn a_hard_threshold_for_memory_counts_for_what_all_pods_may_have() {
    let (memory, of_pods) = (Signal::MemoryAvailable, Signal::AllocatableMemoryAvailable);
    let [limit, of_pods_limit] = [100, 50].map(Amount::Absolute);
    let soft = Threshold { grace: Duration::from_secs(5), ..hard(memory, limit) };
    for (given, wanted) in [
        (vec![hard(memory, limit)], vec![hard(memory, limit), hard(of_pods, limit)]),
        (
            vec![hard(memory, limit), hard(of_pods, of_pods_limit)],
            vec![hard(memory, limit), hard(of_pods, of_pods_limit), hard(of_pods, limit)],
        ),
        (vec![soft], vec![soft]),
        (vec![hard(memory, limit), soft], vec![hard(memory, limit), soft, hard(of_pods, limit)]),
        (vec![hard(Signal::PidAvailable, limit)], vec![hard(Signal::PidAvailable, limit)]),
    ] {
        assert_eq!(policy(&given).with_allocatable_memory().thresholds, wanted);
    }
    let policy = policy(&[hard(memory, limit)]).with_allocatable_memory();
    let finding = ThresholdTracker::default().observe(&policy, &seen(of_pods, 99), Instant::now());
    assert_eq!(under(&finding), [Pressure::Memory]);
    assert_eq!(finding.starved.map(|threshold| threshold.signal), Some(of_pods));
}

#[test]
fn a_soft_threshold_acts_once_its_grace_period_is_over_without_a_break() {
    let soft = Threshold { grace: SECOND * 30, ..hard(Signal::NodefsAvailable, Amount::Absolute(GIB)) };
    let (policy, mut watch, start) = (policy(&[soft]), ThresholdTracker::default(), Instant::now());
    let (low, fine) = (seen(soft.signal, 1), seen(soft.signal, GIB));
    let first = watch.observe(&policy, &low, start);
    assert_eq!((under(&first), first.starved, first.next), (vec![Pressure::Disk], None, Some(start + SECOND * 30)));
    assert_eq!(watch.observe(&policy, &low, start + SECOND * 29).starved, None);
    assert_eq!(watch.observe(&policy, &low, start + SECOND * 30).starved, Some(soft));
    let over = watch.observe(&policy, &fine, start + SECOND * 31);
    assert_eq!((under(&over), over.starved), (vec![Pressure::Disk], None), "the condition stays for a while");
    let again = watch.observe(&policy, &low, start + SECOND * 32);
    assert_eq!((again.starved, again.next), (None, Some(start + SECOND * 62)), "it counts anew");
}

#[test]
fn more_is_reclaimed_than_the_threshold_once_it_has_acted() {
    let asks =
        Threshold { min_reclaim: Some(Amount::Share(0.1)), ..hard(Signal::ImagefsAvailable, Amount::Absolute(GIB)) };
    let (policy, mut watch, now) = (policy(&[asks]), ThresholdTracker::default(), Instant::now());
    let between = seen(asks.signal, 3 * GIB / 2);
    assert!(policy.needs_more(&between) && !policy.needs_more(&seen(asks.signal, 2 * GIB + 400)));
    assert_eq!(watch.observe(&policy, &between, now).starved, None);
    assert_eq!(watch.observe(&policy, &seen(asks.signal, 1), now).starved, Some(asks));
    assert_eq!(watch.observe(&policy, &between, now).starved, Some(asks), "still below 1 GiB and a tenth of 10");
    assert_eq!(watch.observe(&policy, &seen(asks.signal, 2 * GIB + 400), now).starved, None);
    assert_eq!(watch.observe(&policy, &between, now).starved, None, "over is over");
}

#[test]
fn a_condition_holds_for_the_transition_period_after_the_last_time() {
    let threshold = hard(Signal::PidAvailable, Amount::Absolute(100));
    let (policy, mut watch, start) = (policy(&[threshold]), ThresholdTracker::default(), Instant::now());
    watch.observe(&policy, &seen(threshold.signal, 1), start);
    watch.observe(&policy, &seen(threshold.signal, 99), start + SECOND * 100);
    let fine = seen(threshold.signal, 100);
    let later = watch.observe(&policy, &fine, start + SECOND * 399);
    assert_eq!((under(&later), later.next), (vec![Pressure::Pid], Some(start + SECOND * 400)));
    let over = watch.observe(&policy, &fine, start + SECOND * 400);
    assert_eq!((under(&over), over.next), (vec![], None));
}

#[test]
fn memory_is_reclaimed_first_and_a_hard_threshold_before_a_soft_one() {
    let soft = Threshold { grace: SECOND, ..hard(Signal::NodefsAvailable, Amount::Absolute(2 * GIB)) };
    let disk = hard(Signal::NodefsAvailable, Amount::Absolute(GIB));
    let memory = hard(Signal::MemoryAvailable, Amount::Absolute(GIB));
    let (policy, mut watch, now) = (policy(&[soft, disk, memory]), ThresholdTracker::default(), Instant::now());
    let both = seen(disk.signal, 1).into_iter().chain(seen(memory.signal, 1)).collect();
    let assessment = watch.observe(&policy, &both, now);
    assert_eq!((under(&assessment), assessment.starved), (vec![Pressure::Memory, Pressure::Disk], Some(memory)));
    let assessment = watch.observe(&policy, &seen(disk.signal, 1), now + SECOND);
    assert_eq!(assessment.starved, Some(disk));
    assert_eq!((policy.pod_grace(&disk, 30), policy.pod_grace(&soft, 30)), (1, 1), "a second at least");
    let patient = EvictionPolicy { max_pod_grace: SECOND * 20, ..policy };
    assert_eq!((patient.pod_grace(&disk, 30), patient.pod_grace(&soft, 30), patient.pod_grace(&soft, 5)), (1, 20, 5));
}

#[test]
fn the_next_look_comes_before_what_is_left_can_be_used_up() {
    let policy = EvictionPolicy::default();
    let pause = |signal, available| policy.pause(&seen(signal, available)).as_secs();
    for (left, expected) in [(0, 10), (500 << 20, 10), (1_500 << 20, 30), (5 * GIB, 60)] {
        assert_eq!(pause(Signal::NodefsAvailable, GIB + left + 400), expected, "{left}");
    }
    // Memory is measured as well, since it may fall below a threshold although no process has to wait for it.
    for (left, expected) in [(0, 10), (1_000 << 20, 10), (2_500 << 20, 25), (6 * GIB, 60)] {
        assert_eq!(pause(Signal::MemoryAvailable, (100 << 20) + left), expected, "{left}");
    }
    assert_eq!(pause(Signal::MemoryAvailable, 1 << 20), 10, "below it");
    let both = [seen(Signal::NodefsAvailable, 9 * GIB), seen(Signal::MemoryAvailable, GIB)].into_iter().flatten();
    assert_eq!(policy.pause(&both.collect()).as_secs(), 10, "the one that may be met first");
    assert_eq!(policy.pause(&Observations::new()), CHECK_INTERVALS.1);
}

proptest! {
    #[test]
    fn what_is_acted_on_is_met_and_has_a_condition(
        looks in prop::collection::vec((0_u64..4, 0_u64..4, 0_u64..200), 1..30),
        grace in 0_u64..60,
    ) {
        let soft = Threshold {
            grace: SECOND * u32::try_from(grace).unwrap(),
            min_reclaim: Some(Amount::Absolute(1)),
            ..hard(Signal::NodefsAvailable, Amount::Absolute(2))
        };
        let policy = policy(&[soft, hard(Signal::MemoryAvailable, Amount::Absolute(1))]);
        let (mut watch, mut now) = (ThresholdTracker::default(), Instant::now());
        for (disk, memory, pause) in looks {
            now += SECOND * u32::try_from(pause).unwrap();
            let both: Observations =
                seen(Signal::NodefsAvailable, disk).into_iter().chain(seen(Signal::MemoryAvailable, memory)).collect();
            let assessment = watch.observe(&policy, &both, now);
            if let Some(starved) = assessment.starved {
                prop_assert!(assessment.pressure.is_under(starved.signal.pressure()));
                prop_assert!(both[&starved.signal].available < 3);
            }
            prop_assert_eq!(assessment.pressure.is_under(Pressure::Memory) || memory >= 1, true);
            prop_assert!(assessment.next.is_none_or(|next| next > now), "it leads on");
            // At that moment, a soft threshold acts or a condition is gone.
            if let (None, Some(next)) = (assessment.starved, assessment.next) {
                let then = watch.clone().observe(&policy, &both, next);
                prop_assert!(then.starved.is_some() || then.pressure != assessment.pressure);
            }
        }
    }
}

fn requests(memory: &str, storage: &str, priority: i32) -> Value {
    let resources = json!({ "requests": { "memory": memory, "ephemeral-storage": storage } });
    json!({ "containers": [{ "name": "a", "resources": resources }], "priority": priority })
}

#[test]
fn pods_end_in_kubelets_order_those_of_manifests_last_and_critical_ones_never() {
    use SourceKind::{File, Http, Push};
    let pods = [
        ("file", File, requests("1Mi", "1Mi", 0), 90_u64),
        ("url", Http, requests("1Mi", "1Mi", 0), 80),
        ("within", Push, requests("1Gi", "1Gi", 0), 500),
        ("within-less", Push, requests("2Gi", "2Gi", 0), 500),
        ("above", Push, requests("1Mi", "1Mi", 0), 30),
        ("above-more", Push, requests("1Mi", "1Mi", 0), 40),
        ("above-important", Push, requests("1Mi", "1Mi", 7), 700),
        ("critical", Push, requests("1Mi", "1Mi", 2_000_000_000), 900),
        ("nothing", Push, requests("0", "0", 0), 0),
    ];
    let candidates: Vec<Candidate> = pods
        .into_iter()
        .map(|(name, source, spec, mib)| Candidate {
            record: record(name, source, spec),
            used: mib << 20,
            containers: Vec::new(),
        })
        .collect();
    let names_of = |signal, missing: u64| -> Vec<String> {
        order(signal, missing, candidates.clone()).iter().map(|pod| pod.record.key.name().to_owned()).collect()
    };
    let names = |signal| names_of(signal, 1);
    let by_request =
        ["above-more", "above", "above-important", "within", "within-less", "file", "url"].map(str::to_owned);
    for signal in [Signal::MemoryAvailable, Signal::NodefsAvailable, Signal::ImagefsAvailable] {
        assert_eq!(names(signal), by_request, "{signal:?}");
    }
    let by_use = ["within", "within-less", "above-more", "above", "above-important", "file", "url"].map(str::to_owned);
    assert_eq!(names(Signal::PidAvailable), by_use, "process ids cannot be requested");
    assert_eq!(names(Signal::NodefsInodesFree), by_use);
    assert_eq!(names_of(Signal::MemoryAvailable, 85 << 20), by_request[..6], "the end of url would not be enough");
    assert_eq!(names_of(Signal::MemoryAvailable, 91 << 20), by_request[..5], "nor that of file");

    let class = |name: &str| json!({ "containers": [], "priorityClassName": name });
    for (name, critical) in [("system-node-critical", true), ("system-cluster-critical", true), ("high", false)] {
        assert_eq!(crate::priority::is_critical(&record("a", File, class(name))), critical, "{name}");
    }
}

#[test]
fn the_message_is_kubelets() {
    let mut spec = requests("1Mi", "1Mi", 0);
    spec["containers"].as_array_mut().unwrap().push(json!({ "name": "b" }));
    spec["containers"].as_array_mut().unwrap().push(json!({ "name": "c" }));
    let record = record("web", SourceKind::File, spec);
    let used = [("a", 5_u64 << 20), ("b", 1_000), ("c", 0)];
    let containers = used.map(|(name, used)| (name.to_owned(), used)).to_vec();
    let pod = Candidate { record, used: 6 << 20, containers };
    let seen = Observation { available: 3 << 10, capacity: 10 * GIB };
    assert_eq!(
        message(&hard(Signal::NodefsAvailable, Amount::Absolute(GIB)), seen, &pod),
        "The node was low on resource: ephemeral-storage. Threshold quantity: 1Gi, available: 3Ki. \
         Container a was using 5Mi, request is 1Mi, has larger consumption of ephemeral-storage. \
         Container b was using 1000, request is 0, has larger consumption of ephemeral-storage. "
    );
}

#[test]
fn what_is_used_up_fast_is_looked_at_before_it_is() {
    let policy = EvictionPolicy::default();
    let disk_left = |gib: u64| {
        let disk = Observation { available: gib << 30, capacity: 0 };
        let full = Observation { available: 0, capacity: 0 };
        let seen = Observations::from([(Signal::NodefsAvailable, disk), (Signal::MemoryAvailable, full)]);
        policy.pause_of_busy(Pressure::Disk, &seen).as_secs()
    };
    assert_eq!([0, 1, 8, 40, 400].map(disk_left), [2, 2, 8, 40, 60]);
    let policy = EvictionPolicy { thresholds: vec![hard(Signal::MemoryAvailable, Amount::Absolute(GIB))], ..policy };
    let policy = policy.with_allocatable_memory();
    let memory = |of_node: u64, of_pods: u64| {
        let [node, pods] = [of_node, of_pods].map(|gib| Observation { available: gib << 30, capacity: 64 << 30 });
        let seen = Observations::from([(Signal::MemoryAvailable, node), (Signal::AllocatableMemoryAvailable, pods)]);
        (policy.memory_left(&seen).map(|bytes| bytes >> 30), policy.pause_of_busy(Pressure::Memory, &seen).as_secs())
    };
    assert_eq!([memory(61, 41), memory(3, 5), memory(1, 5)], [(Some(40), 20), (Some(2), 2), (Some(0), 2)]);
}

fn short_of(conditions: &[Pressure]) -> NodeState {
    NodeState { pressure: conditions.iter().copied().collect(), ..READY }
}

#[test]
fn an_evicted_pod_gives_everything_back_and_runs_again_once_the_pressure_is_over() {
    let record = record("web", SourceKind::File, json!({ "containers": [{ "name": "a" }] }));
    let mut pod = ready(PodState::new(record, jiff::Timestamp::UNIX_EPOCH));
    pod.containers[0].instance = Some(instance(&pod.containers[0], 0));
    let eviction = Eviction { pressure: Pressure::Disk, grace_seconds: 1 };
    pod.fail(PodVerdict::evicted_under_pressure(eviction, "low".to_owned()));
    let (low, over, now) = (short_of(&[Pressure::Disk]), short_of(&[Pressure::Memory]), fixture_now());
    assert!(matches!(plan(&pod, low, now.mono), Step::Do(actions) if matches!(actions[..], [Action::Stop(0, ..)])));

    pod.containers[0].instance.as_mut().unwrap().end(crate::fixtures::exit(137), now);
    assert_eq!(plan(&pod, low, now.mono), Step::Do(vec![Action::TearDown]), "its record, logs and volumes, too");
    assert!(!recovery::runs_again(&pod, over), "it is still there");
    pod.sandbox = SandboxState::Gone;
    assert_eq!(plan(&pod, low, now.mono), Step::Wait(None), "it is not gone: it is shown");
    assert!(recovery::is_cleared(&pod) && !recovery::runs_again(&pod, low));
    let status = generate(&pod, low, "BestEffort", now, None);
    let disrupted = status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert_eq!((disrupted.status.as_str(), disrupted.reason.as_deref()), ("True", Some("TerminationByKubelet")));
    assert_eq!((status.phase.as_deref(), disrupted.message.as_deref()), (Some("Failed"), Some("low")));
    assert!(!recovery::runs_again(&pod, READY), "not known yet");
    assert!(recovery::runs_again(&pod, over));
    pod.end(SECOND * 30, now);
    assert_eq!(pod.ending.unwrap().grace, SECOND, "a later command only shortens it");
    assert_eq!(plan(&pod, low, now.mono), Step::Finished, "removed or edited meanwhile");

    pod.ending = None;
    pod.verdict = Some(PodVerdict::evicted("Usage of EmptyDir volume".to_owned()));
    assert!(recovery::runs_again(&pod, low), "what it took is free");
    let (of_file, once) =
        (Arc::clone(&pod.record), json!({ "containers": [{ "name": "a" }], "restartPolicy": "Never" }));
    for other in [
        self::record("web", SourceKind::File, once),
        Arc::new(PodRecord { source: SourceKind::Api, ..(*of_file).clone() }),
    ] {
        pod.record = other;
        assert!(!recovery::runs_again(&pod, over) && !pod.is_under_eviction(), "it has failed");
    }
    pod.record = of_file;
    pod.verdict = Some(PodVerdict::preempted());
    assert!(recovery::runs_again(&pod, low), "it waits for room as a pod that has not begun");
    let status = generate(&pod, low, "BestEffort", now, None);
    let disrupted = status.conditions.iter().flatten().find(|condition| condition.type_ == "DisruptionTarget").unwrap();
    assert!(disrupted.message.as_deref().unwrap().starts_with("Pod was preempted by Kubelet"), "{disrupted:?}");
    pod.record = std::sync::Arc::new(limpet_model::pod::PodRecord { source: SourceKind::Api, ..(*pod.record).clone() });
    assert!(!recovery::runs_again(&pod, low), "its controller makes another");
}
