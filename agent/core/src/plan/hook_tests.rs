#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Lifecycle, LifecycleHandler, SleepAction};

use super::*;
use crate::fixtures::{READY, exit, instance, pod, ready, version};
use crate::outcome::{Failure, Outcome, apply, begin};
use crate::state::{ImageState, Now, PostStart, StopPhase};
use limpet_model::stop_signal::MIN_GRACE_PERIOD;

const GRACE: Duration = Duration::from_secs(30);

fn at(mono: Instant) -> Now {
    Now { mono, wall: Timestamp::UNIX_EPOCH }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A pod with the containers `mains`, of which those named have these hooks.
fn with_hooks(policy: &str, inits: &[&str], mains: &[&str], post_start: &[&str], pre_stop: &[&str]) -> PodState {
    let handler = || Some(LifecycleHandler { sleep: Some(SleepAction { seconds: 1 }), ..LifecycleHandler::default() });
    let mut made = pod(policy, inits, mains).record.pod.clone();
    let spec = made.spec.as_mut().unwrap();
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        container.lifecycle = Some(Lifecycle {
            post_start: post_start.contains(&container.name.as_str()).then(handler).flatten(),
            pre_stop: pre_stop.contains(&container.name.as_str()).then(handler).flatten(),
            stop_signal: None,
        });
    }
    for init in spec.init_containers.iter_mut().flatten() {
        init.restart_policy = Some("Always".into());
    }
    ready(PodState::new(version(made), Timestamp::UNIX_EPOCH))
}

/// Begins what is currently planned.
fn step(pod: &mut PodState, now: Instant) -> Vec<Action> {
    let Step::Do(actions) = plan(pod, READY, now) else { return Vec::new() };
    actions.iter().for_each(|action| begin(pod, action));
    actions
}

fn phase(pod: &mut PodState, now: Instant) -> Option<StopPhase> {
    match step(pod, now).as_slice() {
        [Action::Stop(0, stopping, _)] => Some(stopping.phase),
        _ => None,
    }
}

fn started(pod: &mut PodState, index: usize, now: Instant) {
    let new = instance(&pod.containers[index], 0);
    apply(pod, Outcome::Started { index, result: Ok(Box::new(new)) }, at(now));
}

fn post_started(pod: &mut PodState, index: usize, result: Result<(), bool>, now: Instant) {
    let id = pod.containers[index].instance.as_ref().map(|instance| instance.id.clone());
    let failure = |transient| Failure { reason: "PostStartHookError", message: "it said no".into(), transient };
    apply(pod, Outcome::PostStarted { index, id, result: result.map_err(failure) }, at(now));
}

fn stopped(pod: &mut PodState, phase: StopPhase, done: bool, now: Instant) {
    let id = pod.containers[0].instance.as_ref().map(|instance| instance.id.clone());
    let failure = Failure { reason: "FailedKillPod", message: String::new(), transient: true };
    let result = if done { Ok(None) } else { Err(failure) };
    apply(pod, Outcome::Stopped { index: 0, id, phase, result }, at(now));
}

/// A pod whose only container runs and has a `preStop` hook, and whose end has begun.
fn ending(grace: Duration, now: Instant) -> PodState {
    let mut pod = with_hooks("Always", &[], &["a"], &[], &["a"]);
    started(&mut pod, 0, now);
    pod.end(grace, at(now));
    pod
}

#[test]
fn a_hook_holds_back_the_containers_after_it() {
    let now = Instant::now();
    let mut pod = with_hooks("Always", &[], &["a", "b", "c"], &["b"], &[]);
    assert_eq!(step(&mut pod, now), [Action::Start(0)], "where a hook can tell, one after the other");
    assert!(step(&mut pod, now).is_empty());
    started(&mut pod, 0, now);
    assert_eq!(step(&mut pod, now), [Action::Start(1)]);
    started(&mut pod, 1, now);
    assert_eq!(step(&mut pod, now), [Action::PostStart(1)]);
    assert!(step(&mut pod, now + seconds(600)).is_empty(), "however long it takes");
    post_started(&mut pod, 1, Ok(()), now);
    assert_eq!(step(&mut pod, now), [Action::Start(2)]);
    started(&mut pod, 2, now);
    assert!(step(&mut pod, now).is_empty());
}

#[test]
fn without_a_hook_containers_start_side_by_side() {
    let mut pod = with_hooks("Always", &[], &["a", "b"], &[], &["a"]);
    assert_eq!(step(&mut pod, Instant::now()), [Action::Start(0), Action::Start(1)]);
}

#[test]
fn one_that_cannot_start_now_holds_back_none() {
    let now = Instant::now();
    let mut pod = with_hooks("Always", &[], &["a", "b"], &["a"], &[]);
    pod.containers[0].image = ImageState::Unknown;
    assert_eq!(step(&mut pod, now), [Action::EnsureImage(0)], "its image may be there at once");
    assert!(step(&mut pod, now).is_empty());
    let failed = Failure { reason: "ErrImagePull", message: String::new(), transient: false };
    let (fingerprint, attempt) = (pod.containers[0].fingerprint.clone(), 0);
    apply(&mut pod, Outcome::ImageEnsured { index: 0, fingerprint, attempt, result: Err(failed) }, at(now));
    assert_eq!(step(&mut pod, now), [Action::Start(1)]);
}

#[test]
fn a_sidecar_counts_as_started_after_its_hook() {
    let now = Instant::now();
    let mut pod = with_hooks("Always", &["s"], &["a"], &["s"], &[]);
    assert_eq!(step(&mut pod, now), [Action::Start(0)]);
    started(&mut pod, 0, now);
    assert_eq!(step(&mut pod, now), [Action::PostStart(0)]);
    assert!(step(&mut pod, now).is_empty());
    post_started(&mut pod, 0, Ok(()), now);
    assert_eq!(step(&mut pod, now), [Action::Start(1)]);
}

#[test]
fn a_failed_hook_stops_its_container_which_restarts_under_its_policy() {
    let now = Instant::now();
    for (policy, again) in [("Always", true), ("Never", false)] {
        let mut pod = with_hooks(policy, &[], &["a"], &["a"], &["a"]);
        step(&mut pod, now);
        started(&mut pod, 0, now);
        step(&mut pod, now);
        post_started(&mut pod, 0, Err(false), now);
        let expected = Stopping::begin(GRACE, true, now);
        assert_eq!(step(&mut pod, now), [Action::Stop(0, expected, KillCause::PostStartFailed)], "preStop and all");
        stopped(&mut pod, StopPhase::PreStop, true, now);
        assert_eq!(phase(&mut pod, now), Some(StopPhase::Signal));
        pod.containers[0].instance.as_mut().unwrap().end(exit(143), at(now));
        let starts = step(&mut pod, now).contains(&Action::Start(0));
        assert_eq!(starts, again, "{policy}");
    }
}

#[test]
fn a_hook_that_containerd_broke_off_runs_again() {
    let now = Instant::now();
    let mut pod = with_hooks("Always", &[], &["a"], &["a"], &[]);
    step(&mut pod, now);
    started(&mut pod, 0, now);
    step(&mut pod, now);
    post_started(&mut pod, 0, Err(true), now);
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + seconds(1))));
    assert_eq!(step(&mut pod, now + seconds(1)), [Action::PostStart(0)]);
}

#[test]
fn a_late_answer_is_not_about_the_successors_hook() {
    let now = Instant::now();
    let mut pod = with_hooks("Always", &[], &["a"], &["a"], &[]);
    started(&mut pod, 0, now);
    let old = pod.containers[0].instance.as_ref().map(|instance| instance.id.clone());
    let next = instance(&pod.containers[0], 1);
    apply(&mut pod, Outcome::Started { index: 0, result: Ok(Box::new(next)) }, at(now));
    apply(&mut pod, Outcome::PostStarted { index: 0, id: old, result: Ok(()) }, at(now));
    assert_eq!(pod.containers[0].instance.as_ref().unwrap().post_start, PostStart::Due(now));
}

#[test]
fn the_signal_follows_the_hook_and_the_grace_counts_from_the_hook() {
    let now = Instant::now();
    for answered in [true, false] {
        let mut pod = ending(GRACE, now);
        assert_eq!(phase(&mut pod, now), Some(StopPhase::PreStop));
        assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + GRACE)), "it runs once");
        stopped(&mut pod, StopPhase::PreStop, answered, now + seconds(10));
        assert_eq!(phase(&mut pod, now + seconds(10)), Some(StopPhase::Signal), "whatever came of it");
        stopped(&mut pod, StopPhase::Signal, true, now + seconds(10));
        assert_eq!(plan(&pod, READY, now + seconds(10)), Step::Wait(Some(now + GRACE)));
        assert_eq!(phase(&mut pod, now + GRACE), Some(StopPhase::Kill));
    }
}

#[test]
fn a_hook_that_hangs_leaves_the_signal_two_seconds() {
    let now = Instant::now();
    let mut pod = ending(seconds(2), now);
    assert_eq!(phase(&mut pod, now), Some(StopPhase::PreStop));
    assert_eq!(phase(&mut pod, now + seconds(2)), Some(StopPhase::Signal));
    stopped(&mut pod, StopPhase::PreStop, true, now + seconds(2));
    assert_eq!(
        plan(&pod, READY, now + seconds(2)),
        Step::Wait(Some(now + seconds(2) + MIN_GRACE_PERIOD)),
        "a late answer"
    );
    stopped(&mut pod, StopPhase::Signal, false, now + seconds(2));
    assert_eq!(phase(&mut pod, now + seconds(3)), Some(StopPhase::Signal), "repeated within them");
    assert_eq!(phase(&mut pod, now + seconds(4)), Some(StopPhase::Kill));
}

#[test]
fn a_shorter_grace_period_cuts_the_hook_and_never_the_two_seconds() {
    let now = Instant::now();
    let mut pod = ending(GRACE, now);
    assert_eq!(phase(&mut pod, now), Some(StopPhase::PreStop));
    pod.end(seconds(5), at(now + seconds(1)));
    assert_eq!(plan(&pod, READY, now + seconds(1)), Step::Wait(Some(now + seconds(5))));
    assert_eq!(phase(&mut pod, now + seconds(5)), Some(StopPhase::Signal));
    pod.end(seconds(1), at(now + seconds(5)));
    assert_eq!(plan(&pod, READY, now + seconds(5)), Step::Wait(Some(now + seconds(5) + MIN_GRACE_PERIOD)));
}

#[test]
fn a_hook_of_a_pod_that_ends_has_a_second_however_short_the_grace_is() {
    let now = Instant::now();
    let mut pod = ending(Duration::ZERO, now);
    assert_eq!(phase(&mut pod, now), Some(StopPhase::PreStop));
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + seconds(1))));
    assert_eq!(phase(&mut pod, now + seconds(1)), Some(StopPhase::Signal));
    assert_eq!(plan(&pod, READY, now + seconds(1)), Step::Wait(Some(now + seconds(1) + MIN_GRACE_PERIOD)));
}

#[test]
fn without_grace_there_is_no_time_for_the_hook_of_a_container_that_is_replaced() {
    let now = Instant::now();
    let stopping = Stopping::begin(Duration::ZERO, true, now);
    assert_eq!((stopping.phase, stopping.kill_at()), (StopPhase::Signal, now + MIN_GRACE_PERIOD));
}

#[test]
fn a_container_that_ends_during_its_hook_is_not_signalled() {
    let now = Instant::now();
    let mut pod = ending(GRACE, now);
    assert_eq!(phase(&mut pod, now), Some(StopPhase::PreStop));
    pod.containers[0].instance.as_mut().unwrap().end(exit(0), at(now));
    assert_eq!(plan(&pod, READY, now), Step::Do(vec![Action::TearDown]));
}
