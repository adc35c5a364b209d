#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{READY, exit, instance, ready, version};
use crate::state::{Life, Now};

fn pod(policy: &str, containers: Value) -> PodState {
    let mut spec = containers;
    spec["restartPolicy"] = policy.into();
    let pod: Pod = serde_json::from_value(json!({ "spec": spec })).unwrap();
    ready(PodState::new(version(pod), Timestamp::UNIX_EPOCH))
}

/// The containers `i`, the sidecar `s`, `j`, then `m`.
fn with_sidecar(policy: &str) -> PodState {
    let sidecar = json!({ "name": "s", "image": "app:1", "restartPolicy": "Always" });
    let plain = |name: &str| json!({ "name": name, "image": "app:1" });
    pod(policy, json!({ "initContainers": [plain("i"), sidecar, plain("j")], "containers": [plain("m")] }))
}

fn run(pod: &mut PodState, index: usize) {
    let next = instance(&pod.containers[index], 0);
    pod.containers[index].succeed(next);
}

fn exited(pod: &mut PodState, index: usize, code: i32, now: Instant) {
    let slot = &mut pod.containers[index];
    let mut instance = instance(slot, 0);
    instance.end(exit(code), Now { mono: now, wall: Timestamp::UNIX_EPOCH });
    if let Life::Exited { reaped, .. } = &mut instance.life {
        *reaped = true;
    }
    slot.instance = Some(instance);
}

fn actions(pod: &PodState, now: Instant) -> Vec<Action> {
    match plan(pod, READY, now) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

#[test]
fn a_sidecar_starts_in_its_turn_and_runs_beside_what_follows() {
    let now = Instant::now();
    let mut pod = with_sidecar("Never");
    assert_eq!(actions(&pod, now), [Action::Start(0)]);
    exited(&mut pod, 0, 0, now);
    assert_eq!(actions(&pod, now), [Action::Start(1)]);
    run(&mut pod, 1);
    assert_eq!(actions(&pod, now), [Action::Start(2)], "it only has to run");
    exited(&mut pod, 1, 1, now);
    run(&mut pod, 2);
    assert_eq!(actions(&pod, now), [Action::Start(1)], "it restarts, whatever the pod's policy");
    run(&mut pod, 1);
    exited(&mut pod, 2, 0, now);
    assert_eq!(actions(&pod, now), [Action::Start(3)]);
}

#[test]
fn a_sidecar_does_not_hold_back_completion_and_is_stopped_then() {
    let now = Instant::now();
    let mut pod = with_sidecar("Never");
    exited(&mut pod, 0, 0, now);
    run(&mut pod, 1);
    exited(&mut pod, 2, 0, now);
    run(&mut pod, 3);
    assert!(!is_finished(&pod) && is_initialized(&pod));
    exited(&mut pod, 3, 0, now);
    assert!(is_finished(&pod));
    assert_eq!(
        actions(&pod, now),
        [Action::Stop(1, Stopping::begin(Duration::from_secs(30), false, now), KillCause::PodEnds)]
    );
    exited(&mut pod, 1, 1, now);
    assert!(is_finished(&pod), "the exit code of a sidecar counts for nothing");
    assert_eq!(actions(&pod, now), [Action::ReleaseSandbox]);
}

#[test]
fn an_ephemeral_container_runs_once_waits_for_nothing_and_holds_nothing_back() {
    let now = Instant::now();
    let plain = |name: &str| json!({ "name": name, "image": "app:1" });
    let containers = json!({
        "initContainers": [plain("i")], "containers": [plain("m")], "ephemeralContainers": [plain("debug")],
    });
    let mut pod = pod("Always", containers);
    assert_eq!(actions(&pod, now), [Action::Start(0), Action::Start(2)]);
    exited(&mut pod, 0, 0, now);
    exited(&mut pod, 2, 1, now);
    assert_eq!(actions(&pod, now), [Action::Start(1)], "a failed one is not restarted");
    assert!(!wants_restart(&pod, &pod.containers[2]) && is_initialized(&pod));
}
