//! When probes run, and what their results do to a pod.

#![allow(clippy::unwrap_used)]

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Probe;

use super::*;
use crate::fixtures::{READY, exit, instance, pod, ready, version};
use crate::outcome::{Outcome, apply, begin};
use crate::probe::ProbeGrid;
use crate::state::{Now, StopPhase};
use ProbeKind::{Liveness, Readiness, Startup};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = Duration::from_secs(30);

fn at(mono: Instant) -> Now {
    Now { mono, wall: Timestamp::UNIX_EPOCH }
}

/// A pod whose only container runs and has probes of these kinds, each of which fails after two failures.
fn probed(policy: &str, kinds: &[ProbeKind], grace: Option<i64>, now: Instant) -> PodState {
    let mut manifest = pod(policy, &[], &["a"]).record.pod.clone();
    let probe = Probe {
        period_seconds: Some(10),
        failure_threshold: Some(2),
        termination_grace_period_seconds: grace,
        ..Probe::default()
    };
    let container = &mut manifest.spec.as_mut().unwrap().containers[0];
    for kind in kinds {
        let place = match kind {
            Liveness => &mut container.liveness_probe,
            Readiness => &mut container.readiness_probe,
            Startup => &mut container.startup_probe,
        };
        *place = Some(probe.clone());
    }
    let mut pod = ready(PodState::new(version(manifest), Timestamp::UNIX_EPOCH));
    start(&mut pod, 0, now);
    pod
}

fn start(pod: &mut PodState, attempt: u32, now: Instant) {
    let started = instance(&pod.containers[0], attempt);
    pod.containers[0].busy = Some(OngoingAction::Starting(started.id.clone()));
    apply(pod, Outcome::Started { index: 0, result: Ok(Box::new(started)) }, at(now));
}

/// Begins what is currently planned.
fn step(pod: &mut PodState, now: Instant) -> Vec<Action> {
    let Step::Do(actions) = plan(pod, READY, now) else { return Vec::new() };
    actions.iter().for_each(|action| begin(pod, action));
    actions
}

fn result(pod: &mut PodState, kind: ProbeKind, passed: Option<bool>, now: Instant) {
    let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
    apply(pod, Outcome::Probed { index: 0, id, kind, passed }, at(now));
}

/// Fails the probe as often as its threshold requires.
fn fail(pod: &mut PodState, kind: ProbeKind, now: Instant) {
    for _ in 0..2 {
        result(pod, kind, Some(false), now);
    }
}

fn end(pod: &mut PodState, code: i32, now: Instant) {
    let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
    apply(pod, Outcome::Ended { id, exit: exit(code) }, at(now));
}

fn kills(kind: ProbeKind, grace: Duration, now: Instant) -> Action {
    Action::Stop(0, Stopping::begin(grace, false, now), KillCause::ProbeFailed(kind))
}

fn records(actions: &[Action]) -> Vec<ProbeRecord> {
    let records = actions.iter().filter_map(|action| match action {
        Action::RecordProbes(0, record) => Some(*record),
        _ => None,
    });
    records.collect()
}

#[test]
fn a_probe_runs_when_it_is_due_and_nothing_is_due_in_between() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Liveness], None, now);
    assert_eq!(step(&mut pod, now), [Action::Probe(0, Liveness, now + SECOND * 10)]);
    assert_eq!(plan(&pod, READY, now), Step::Wait(None), "its outcome wakes");
    result(&mut pod, Liveness, Some(true), now + SECOND);
    assert_eq!(plan(&pod, READY, now + SECOND), Step::Wait(Some(now + SECOND * 10)));
    assert_eq!(step(&mut pod, now + SECOND * 10).len(), 1);
}

#[test]
fn due_times_are_those_of_the_nodes_grid() {
    let now = Instant::now();
    let grid = ProbeGrid { origin: now.checked_sub(SECOND / 4), slack_percent: 10 };
    let pod = probed("Always", &[Liveness], None, now);
    let next = now + SECOND * 10 + SECOND * 3 / 4;
    assert_eq!(
        plan(&pod, NodeState { probe_grid: grid, ..READY }, now),
        Step::Do(vec![Action::Probe(0, Liveness, next)])
    );
    assert_eq!(plan(&pod, NodeState { runtime_ready: false, ..READY }, now), Step::Wait(None));
}

#[test]
fn a_probe_in_progress_holds_back_no_stop() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Liveness], None, now);
    step(&mut pod, now);
    pod.end(GRACE, at(now));
    assert_eq!(step(&mut pod, now), [Action::Stop(0, Stopping::begin(GRACE, false, now), KillCause::PodEnds)]);
    pod.signals_being_sent = 0;
    end(&mut pod, 143, now);
    assert_eq!(step(&mut pod, now), [Action::TearDown]);
    // Its result does not apply to the instance that follows.
    let mut pod = probed("Always", &[Liveness], None, now);
    let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
    start(&mut pod, 1, now);
    for _ in 0..2 {
        apply(&mut pod, Outcome::Probed { index: 0, id: id.clone(), kind: Liveness, passed: Some(false) }, at(now));
    }
    assert_eq!(pod.containers[0].instance.as_ref().unwrap().failed_probe(), None);
}

#[test]
fn a_failed_liveness_or_startup_probe_ends_the_container_within_its_own_grace() {
    let now = Instant::now();
    for (kind, probe_grace, grace) in [
        (Liveness, None, GRACE),
        (Startup, None, GRACE),
        (Liveness, Some(3), SECOND * 3),
        (Startup, Some(90), SECOND * 90),
    ] {
        let mut pod = probed("Always", &[kind], probe_grace, now);
        step(&mut pod, now);
        result(&mut pod, kind, Some(false), now);
        assert!(!step(&mut pod, now).iter().any(|action| matches!(action, Action::Stop(..))), "below its threshold");
        result(&mut pod, kind, Some(false), now);
        let actions = step(&mut pod, now);
        assert!(actions.contains(&kills(kind, grace, now)), "{kind} {probe_grace:?}: {actions:?}");
        assert_eq!(records(&actions).last().unwrap().failed, Some(kind));
        let at_end = now + grace;
        let killed = step(&mut pod, at_end);
        assert!(matches!(killed.as_slice(), [Action::Stop(0, stopping, _)] if stopping.phase == StopPhase::Kill));
        end(&mut pod, 137, at_end);
        assert!(step(&mut pod, at_end).contains(&Action::Start(0)));
        start(&mut pod, 1, at_end);
        let anew = step(&mut pod, at_end);
        assert!(anew.contains(&Action::Probe(0, kind, at_end + SECOND * 10)), "it begins anew: {anew:?}");
    }
}

#[test]
fn the_end_of_the_pod_shortens_the_grace_of_a_failed_probe() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Liveness], Some(90), now);
    fail(&mut pod, Liveness, now);
    step(&mut pod, now);
    pod.end(SECOND * 5, at(now));
    assert!(step(&mut pod, now + SECOND * 5).iter().any(|action| matches!(action, Action::Stop(..))));
}

#[test]
fn a_container_whose_probe_failed_restarts_unless_the_policy_is_never() {
    let now = Instant::now();
    for (policy, code, restarts) in [
        ("Always", 0, true),
        ("OnFailure", 0, true),
        ("OnFailure", 143, true),
        ("Never", 0, false),
        ("Never", 143, false),
    ] {
        let mut pod = probed(policy, &[Liveness], None, now);
        fail(&mut pod, Liveness, now);
        step(&mut pod, now);
        end(&mut pod, code, now);
        assert_eq!(step(&mut pod, now).contains(&Action::Start(0)), restarts, "{policy} {code}");
        assert_eq!(is_finished(&pod), !restarts, "{policy} {code}");
    }
    // A container that exits by itself with 0 has succeeded.
    let mut pod = probed("OnFailure", &[Liveness], None, now);
    end(&mut pod, 0, now);
    assert!(is_finished(&pod));
}

#[test]
fn a_failed_readiness_probe_ends_nothing() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Readiness], None, now);
    result(&mut pod, Readiness, Some(true), now);
    assert!(pod.containers[0].is_ready());
    fail(&mut pod, Readiness, now);
    assert_eq!((pod.containers[0].is_started(), pod.containers[0].is_ready()), (true, false));
    assert!(!step(&mut pod, now).iter().any(|action| matches!(action, Action::Stop(..))));
}

#[test]
fn while_the_pod_ends_readiness_goes_on_and_the_others_stop() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Liveness, Readiness], None, now);
    pod.end(GRACE, at(now));
    let actions = step(&mut pod, now);
    assert_eq!(actions.len(), 2, "{actions:?}");
    assert!(matches!(actions[1], Action::Probe(0, Readiness, _)));
    // A failure that was in progress when the pod's end began changes nothing.
    fail(&mut pod, Liveness, now);
    assert!(!step(&mut pod, now).iter().any(|action| matches!(action, Action::Stop(..))));
    pod.signals_being_sent = 0;
    end(&mut pod, 143, now);
    assert_eq!(step(&mut pod, now), [Action::TearDown]);
}

#[test]
fn a_sidecar_holds_back_the_next_container_until_its_startup_probe_has_succeeded() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Startup], None, now);
    pod.containers[0].role = Role::Sidecar;
    assert!(holds_back_next(&pod, &pod.containers[0]));
    result(&mut pod, Startup, Some(true), now);
    assert!(!holds_back_next(&pod, &pod.containers[0]));
}

#[test]
fn a_change_of_readiness_is_recorded_once_and_a_failed_recording_is_repeated() {
    let now = Instant::now();
    let mut pod = probed("Always", &[Readiness], None, now);
    assert_eq!(records(&step(&mut pod, now)), [], "as it began");
    result(&mut pod, Readiness, Some(true), now);
    let ready = ProbeRecord { ready: true, ..ProbeRecord::default() };
    assert_eq!(records(&step(&mut pod, now)), [ready]);
    assert_eq!(records(&step(&mut pod, now)), [], "it is under way");
    let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
    let recorded = |done| Outcome::ProbesRecorded { index: 0, id: id.clone(), done };
    apply(&mut pod, recorded(false), at(now));
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + SECOND * 5)));
    assert_eq!(records(&step(&mut pod, now + SECOND * 5)), [ready]);
    apply(&mut pod, recorded(true), at(now));
    result(&mut pod, Readiness, Some(true), now);
    assert_eq!(records(&step(&mut pod, now + SECOND * 10)), [], "unchanged");
}
