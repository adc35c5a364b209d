#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::*;
use crate::fixtures::{READY, exit, image, instance, pod, ready, version};
use crate::outcome::{Failure, Outcome, apply, begin};
use crate::state::{KILL_RETRY_INTERVAL, Now, RetryState, StopPhase};
use limpet_model::container::ContainerId;

const GRACE: Duration = Duration::from_secs(30);

fn at(mono: Instant) -> Now {
    Now { mono, wall: Timestamp::UNIX_EPOCH }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// A pod whose only container runs.
fn running() -> PodState {
    let mut pod = ready(pod("Always", &[], &["a"]));
    let first = instance(&pod.containers[0], 0);
    pod.containers[0].succeed(first);
    pod
}

/// Begins what is currently planned. Returns the phase of the stop that was entered, if any.
fn step(pod: &mut PodState, now: Instant) -> Option<StopPhase> {
    let Step::Do(actions) = plan(pod, READY, now) else { return None };
    actions.iter().for_each(|action| begin(pod, action));
    match actions.as_slice() {
        [Action::Stop(0, stopping, _)] => Some(stopping.phase),
        _ => None,
    }
}

fn answer(pod: &mut PodState, attempt: u32, phase: StopPhase, done: bool, now: Instant) {
    let id = instance(&pod.containers[0], attempt).id;
    let failure = Failure { reason: "FailedKillPod", message: String::new(), transient: true };
    let result = if done { Ok(None) } else { Err(failure) };
    apply(pod, Outcome::Stopped { index: 0, id: Some(id), phase, result }, at(now));
}

#[test]
fn a_pod_is_stopped_by_its_signal_then_sigkill_then_torn_down() {
    let now = Instant::now();
    let mut pod = running();
    pod.end(GRACE, at(now));
    let expected = Action::Stop(0, Stopping::begin(GRACE, false, now), KillCause::PodEnds);
    assert_eq!(plan(&pod, READY, now), Step::Do(vec![expected]));
    assert_eq!(step(&mut pod, now), Some(StopPhase::Signal));
    answer(&mut pod, 0, StopPhase::Signal, true, now + seconds(1));
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + GRACE)));
    assert_eq!(step(&mut pod, now + GRACE), Some(StopPhase::Kill));
    answer(&mut pod, 0, StopPhase::Kill, true, now + GRACE);
    assert_eq!(plan(&pod, READY, now + GRACE), Step::Wait(Some(now + GRACE + KILL_RETRY_INTERVAL)));
    assert_eq!(step(&mut pod, now + GRACE + KILL_RETRY_INTERVAL), Some(StopPhase::Kill));
    pod.containers[0].instance.as_mut().unwrap().end(exit(137), at(now));
    assert_eq!(plan(&pod, READY, now), Step::Wait(None), "the SIGKILL in progress could hit what is made anew");
    answer(&mut pod, 0, StopPhase::Kill, true, now);
    assert_eq!(plan(&pod, READY, now), Step::Do(vec![Action::TearDown]));
    pod.sandbox = SandboxState::Gone;
    assert_eq!(plan(&pod, READY, now), Step::Finished);
}

#[test]
fn sigkill_leaves_the_signal_two_seconds_however_short_the_grace_is() {
    let now = Instant::now();
    for grace in [0, 1] {
        let mut pod = running();
        pod.end(seconds(grace), at(now));
        assert_eq!(step(&mut pod, now), Some(StopPhase::Signal), "grace {grace}");
        assert_eq!(plan(&pod, READY, now + seconds(1)), Step::Wait(Some(now + seconds(2))), "grace {grace}");
        assert_eq!(step(&mut pod, now + seconds(2)), Some(StopPhase::Kill), "grace {grace}");
    }
}

#[test]
fn a_stop_signal_that_hangs_does_not_hold_back_sigkill() {
    let now = Instant::now();
    let mut pod = running();
    pod.end(GRACE, at(now));
    assert_eq!(step(&mut pod, now), Some(StopPhase::Signal));
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + GRACE)), "it is not sent twice");
    assert_eq!(step(&mut pod, now + GRACE), Some(StopPhase::Kill));
    answer(&mut pod, 0, StopPhase::Signal, false, now + GRACE);
    assert_eq!(plan(&pod, READY, now + seconds(600)), Step::Wait(None), "its late answer is not about the SIGKILL");
}

#[test]
fn neither_another_action_in_progress_nor_its_failure_holds_back_a_stop() {
    let now = Instant::now();
    let failed = RetryState::transient("FailedToReap", String::new(), now);
    for (busy, retry) in [(Some(OngoingAction::Reaping), None), (None, Some(failed))] {
        let mut pod = running();
        (pod.containers[0].busy, pod.containers[0].retry) = (busy, retry);
        pod.end(GRACE, at(now));
        assert_eq!(step(&mut pod, now), Some(StopPhase::Signal));
        assert_eq!(step(&mut pod, now + GRACE), Some(StopPhase::Kill));
    }
}

#[test]
fn a_failed_signal_is_repeated_and_the_grace_counts_from_the_first() {
    let now = Instant::now();
    let mut pod = running();
    pod.end(GRACE, at(now));
    for tried in [0, 1, 2].map(|after| now + seconds(after)) {
        assert_eq!(step(&mut pod, tried), Some(StopPhase::Signal));
        answer(&mut pod, 0, StopPhase::Signal, false, tried);
        assert_eq!(plan(&pod, READY, tried), Step::Wait(Some(tried + seconds(1))));
    }
    assert_eq!(step(&mut pod, now + GRACE), Some(StopPhase::Kill));
    answer(&mut pod, 0, StopPhase::Kill, false, now + GRACE);
    assert_eq!(step(&mut pod, now + GRACE + seconds(1)), Some(StopPhase::Kill));
}

#[test]
fn a_later_grace_period_brings_sigkill_forward_and_never_back() {
    let now = Instant::now();
    for (first, second, kill_after) in [(30, 5, 5), (5, 30, 5), (30, 1, 2)] {
        let mut pod = running();
        pod.end(seconds(first), at(now));
        assert_eq!(step(&mut pod, now), Some(StopPhase::Signal));
        answer(&mut pod, 0, StopPhase::Signal, true, now);
        pod.end(seconds(second), at(now + seconds(2)));
        // The stop is planned again and again meanwhile, and the deadline does not move.
        for after in 2..kill_after {
            assert_eq!(plan(&pod, READY, now + seconds(after)), Step::Wait(Some(now + seconds(kill_after))));
        }
        assert_eq!(step(&mut pod, now + seconds(kill_after)), Some(StopPhase::Kill), "{first} then {second}");
    }
}

#[test]
fn a_stop_that_has_begun_is_carried_through_when_the_edit_is_taken_back() {
    let now = Instant::now();
    let mut pod = running();
    let (old, mut edited) = (pod.record.pod.clone(), pod.record.pod.clone());
    edited.spec.as_mut().unwrap().containers[0].image = Some("app:2".into());
    pod.update(version(edited));
    pod.containers[0].image = image();
    assert_eq!(step(&mut pod, now), Some(StopPhase::Signal));
    answer(&mut pod, 0, StopPhase::Signal, true, now);
    pod.update(version(old));
    assert!(pod.containers[0].is_current());
    step(&mut pod, now); // Its image is looked for meanwhile.
    assert_eq!(step(&mut pod, now + GRACE), Some(StopPhase::Kill));
}

#[test]
fn a_late_answer_is_not_about_the_successor() {
    let now = Instant::now();
    let mut pod = running();
    pod.end(GRACE, at(now));
    step(&mut pod, now);
    let next = instance(&pod.containers[0], 1);
    pod.containers[0].succeed(next);
    step(&mut pod, now);
    let gone = Outcome::Stopped {
        index: 0,
        id: Some(ContainerId::derive(&pod.record.uid, "a", 0, 0)),
        phase: StopPhase::Signal,
        result: Ok(Some(exit(143))),
    };
    apply(&mut pod, gone, at(now));
    assert!(pod.containers[0].is_running());
    answer(&mut pod, 0, StopPhase::Signal, false, now);
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + GRACE)), "nor is its failure");
}

/// A container of the recreated pod may have the same id, and must not get the exit of this one.
#[test]
fn a_pod_is_not_torn_down_while_an_exit_is_being_recorded() {
    let now = Instant::now();
    let mut pod = running();
    let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
    // Two recordings are in progress.
    pod.exits_being_recorded = vec![id.clone(); 2];
    pod.end(GRACE, at(now));
    // containerd's state is read before the recordings are answered.
    pod.containers[0].instance.as_mut().unwrap().end(exit(143), at(now));
    for _ in 0..2 {
        assert_eq!(plan(&pod, READY, now), Step::Wait(None));
        apply(&mut pod, Outcome::Ended { id: id.clone(), exit: exit(143) }, at(now));
    }
    assert_eq!(plan(&pod, READY, now), Step::Do(vec![Action::TearDown]));
}
