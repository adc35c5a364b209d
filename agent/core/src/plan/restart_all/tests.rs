#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerRestartRule, ContainerRestartRuleOnExitCodes};

use super::super::{Step, is_finished, plan, was_initialized};
use super::*;
use crate::fixtures::{READY, exit, instance, pod, ready, version};
use crate::outcome::begin;
use crate::state::{Life, Now, Stopping};
use limpet_model::container::ContainerId;
use limpet_model::pod::PodRecord;

const SIDECAR: usize = 1;
const SOURCE: usize = 2;
const OTHER: usize = 3;

/// An init container, a sidecar, and two regular ones, the first of which restarts all if it exits with 42.
fn record() -> Arc<PodRecord> {
    let mut pod = pod("Never", &["init", "side"], &["source", "other"]).record.pod.clone();
    let spec = pod.spec.as_mut().unwrap();
    spec.init_containers.as_mut().unwrap()[1].restart_policy = Some("Always".into());
    spec.containers[0].restart_policy = Some("Never".into());
    let codes = ContainerRestartRuleOnExitCodes { operator: "In".into(), values: Some(vec![42]) };
    let rule = ContainerRestartRule { action: RESTART_ALL.into(), exit_codes: Some(codes) };
    spec.containers[0].restart_policy_rules = Some(vec![rule]);
    version(pod)
}

/// Sets the newest attempt of a container after so many restarts of all, with its exit code; `None` if it runs.
fn put(pod: &mut PodState, index: usize, restarts: u32, code: Option<i32>, now: Instant) {
    let slot = &mut pod.containers[index];
    slot.busy = None;
    let mut instance = instance(slot, slot.next_attempt());
    instance.pod_restarts = restarts;
    if let Some(code) = code {
        instance.end(exit(code), Now { mono: now, wall: Timestamp::UNIX_EPOCH });
        if let Life::Exited { reaped, .. } = &mut instance.life {
            *reaped = true;
        }
    }
    slot.instance = Some(instance);
}

/// The pod with all containers up except the one that restarts all, which has exited with that code.
fn exited(code: i32, now: Instant) -> PodState {
    let mut pod = ready(PodState::new(record(), Timestamp::UNIX_EPOCH));
    put(&mut pod, 0, 0, Some(0), now);
    put(&mut pod, SIDECAR, 0, None, now);
    put(&mut pod, SOURCE, 0, Some(code), now);
    put(&mut pod, OTHER, 0, None, now);
    pod
}

fn actions(pod: &PodState, now: Instant) -> Vec<Action> {
    match plan(pod, READY, now) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

fn killed(index: usize, now: Instant) -> Action {
    Action::Stop(index, Stopping::begin(Duration::ZERO, true, now), KillCause::AllRestart)
}

#[test]
fn all_are_ended_without_grace_and_then_start_again_in_their_order() {
    let now = Instant::now();
    let later = now + Duration::from_secs(300);
    let mut pod = exited(42, now);
    assert_eq!(actions(&pod, now), [killed(SIDECAR, now), killed(OTHER, now)]);
    assert!(is_ending_all(&pod) && !is_finished(&pod));
    put(&mut pod, OTHER, 0, Some(137), now);
    assert_eq!(actions(&pod, now), [killed(SIDECAR, now)], "nothing starts while something of before runs");
    put(&mut pod, SIDECAR, 0, Some(137), now);
    assert!(!is_ending_all(&pod) && was_initialized(&pod));
    assert_eq!(actions(&pod, later), [Action::Start(0)]);
    put(&mut pod, 0, 1, Some(0), now);
    assert_eq!(actions(&pod, later), [Action::Start(SIDECAR)]);
    put(&mut pod, SIDECAR, 1, None, now);
    assert_eq!(actions(&pod, later), [Action::Start(SOURCE), Action::Start(OTHER)]);
    put(&mut pod, OTHER, 1, None, now);
    assert_eq!(actions(&pod, later), [Action::Start(SOURCE)], "what has started anew is left alone");
    put(&mut pod, SOURCE, 1, Some(42), now);
    assert_eq!((pod_restarts(&pod), actions(&pod, now)), (2, vec![killed(SIDECAR, now), killed(OTHER, now)]));
}

#[test]
fn what_was_started_before_the_exit_was_known_is_ended_too() {
    let now = Instant::now();
    let mut pod = exited(42, now);
    put(&mut pod, SIDECAR, 0, Some(137), now);
    pod.containers[OTHER].instance = None;
    pod.containers[SOURCE].instance = None;
    begin(&mut pod, &Action::Start(OTHER));
    put(&mut pod, SOURCE, 0, Some(42), now);
    assert!(actions(&pod, now).is_empty(), "its start is waited for");
    put(&mut pod, OTHER, 0, None, now);
    assert_eq!(actions(&pod, now), [killed(OTHER, now)]);
    // One that began after the exit continues.
    put(&mut pod, OTHER, 0, Some(137), now);
    put(&mut pod, 0, 1, Some(0), now);
    put(&mut pod, SIDECAR, 1, None, now);
    begin(&mut pod, &Action::Start(OTHER));
    assert!(!is_ending_all(&pod));
    assert_eq!(actions(&pod, now), [Action::Start(SOURCE)]);
}

#[test]
fn what_a_start_whose_answer_was_lost_may_have_left_goes_first() {
    let now = Instant::now();
    let mut pod = exited(42, now);
    put(&mut pod, SIDECAR, 0, Some(137), now);
    put(&mut pod, OTHER, 0, Some(137), now);
    pod.containers[OTHER].possible_orphan = Some(ContainerId::new("lost"));
    assert_eq!(actions(&pod, now), [Action::Discard(OTHER)]);
    pod.containers[OTHER].start_follows = 1;
    assert_eq!(actions(&pod, now), [Action::Start(0)], "its own next start removes that of a start after the exit");
}

#[test]
fn other_codes_and_ends_for_an_edit_restart_nothing_else() {
    let now = Instant::now();
    let pod = exited(1, now);
    assert_eq!((pod_restarts(&pod), actions(&pod, now).is_empty()), (0, true));
    let mut edited = exited(42, now);
    edited.containers[SOURCE].fingerprint = "edited".into();
    assert_eq!(pod_restarts(&edited), 0, "it was ended because it was edited");
    let mut edited = exited(42, now);
    let mut next = edited.record.pod.clone();
    next.spec.as_mut().unwrap().containers[0].image = Some("app:2".into());
    edited.update(version(next));
    assert_eq!(pod_restarts(&edited), 1, "it was edited after it had asked");
}

#[test]
fn an_init_container_may_ask_too_and_an_ephemeral_one_is_left_alone() {
    let now = Instant::now();
    let mut pod = exited(0, now);
    let mut next = pod.record.pod.clone();
    let spec = next.spec.as_mut().unwrap();
    let rules = spec.containers[0].restart_policy_rules.take();
    let init = &mut spec.init_containers.as_mut().unwrap()[0];
    (init.restart_policy, init.restart_policy_rules) = (Some("Never".into()), rules);
    pod.record = version(next);
    put(&mut pod, 0, 0, Some(42), now);
    pod.containers[OTHER].role = Role::Ephemeral;
    assert_eq!(actions(&pod, now), [killed(SIDECAR, now)]);
}
