//! The order in which the containers of a pod with sidecars end.
#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::*;
use crate::fixtures::{READY, exit, instance, ready, version};
use crate::outcome::{Outcome, apply, begin};
use crate::state::{Life, Now, StopPhase};

const GRACE: Duration = Duration::from_secs(30);

fn at(mono: Instant) -> Now {
    Now { mono, wall: Timestamp::UNIX_EPOCH }
}

fn seconds(count: u64) -> Duration {
    Duration::from_secs(count)
}

/// The sidecars 0 and 1 and the regular container 2, which all run.
fn running(policy: &str) -> PodState {
    let sidecar = |name: &str| json!({ "name": name, "image": "app:1", "restartPolicy": "Always" });
    let pod: Pod = serde_json::from_value(json!({ "spec": {
        "restartPolicy": policy, "terminationGracePeriodSeconds": 30,
        "initContainers": [sidecar("one"), sidecar("two")], "containers": [{ "name": "main", "image": "app:1" }],
    }}))
    .unwrap();
    let mut pod = ready(PodState::new(version(pod), Timestamp::UNIX_EPOCH));
    for slot in &mut pod.containers {
        slot.succeed(instance(slot, 0));
    }
    pod
}

/// Begins the stops that are currently planned, and answers them. Returns the container, its phase, and the time
/// until SIGKILL.
fn stops(pod: &mut PodState, now: Instant) -> Vec<(usize, StopPhase, Duration)> {
    if stops_all(pod, READY) {
        pod.ends_since.get_or_insert(now);
    }
    let Step::Do(actions) = plan(pod, READY, now) else { return Vec::new() };
    let mut stops = Vec::new();
    for action in &actions {
        begin(pod, action);
        if let Action::Stop(index, stopping, _) = action {
            stops.push((*index, stopping.phase, stopping.kill_at().saturating_duration_since(now)));
            let id = pod.containers[*index].instance.as_ref().map(|instance| instance.id.clone());
            apply(pod, Outcome::Stopped { index: *index, id, phase: stopping.phase, result: Ok(None) }, at(now));
        }
    }
    stops
}

fn exits(pod: &mut PodState, index: usize, now: Instant) {
    pod.containers[index].instance.as_mut().unwrap().end(exit(143), at(now));
}

#[test]
fn sidecars_end_one_by_one_after_the_others_within_the_grace_of_the_pod() {
    let now = Instant::now();
    let mut pod = running("Always");
    pod.end(GRACE, at(now));
    assert_eq!(stops(&mut pod, now), [(2, StopPhase::Signal, GRACE)]);
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + GRACE)));
    exits(&mut pod, 2, now + seconds(10));
    assert_eq!(stops(&mut pod, now + seconds(10)), [(1, StopPhase::Signal, seconds(20))]);
    exits(&mut pod, 1, now + seconds(29));
    assert_eq!(stops(&mut pod, now + seconds(29)), [(0, StopPhase::Signal, seconds(2))], "a least time to end");
    assert_eq!(plan(&pod, READY, now + seconds(30)), Step::Wait(Some(now + seconds(31))));
    assert_eq!(stops(&mut pod, now + seconds(31)), [(0, StopPhase::Kill, Duration::ZERO)]);
    exits(&mut pod, 0, now + seconds(31));
    assert_eq!(plan(&pod, READY, now + seconds(31)), Step::Do(vec![Action::TearDown]));
}

#[test]
fn the_hooks_of_sidecars_run_at_once_and_their_signals_wait() {
    let now = Instant::now();
    let mut pod = running("OnFailure");
    pod.containers[0].hooks.pre_stop = true;
    pod.containers[1].hooks.pre_stop = true;
    pod.containers[2].instance.as_mut().unwrap().end(exit(0), at(now));
    assert_eq!(stops(&mut pod, now), [(0, StopPhase::PreStop, GRACE), (1, StopPhase::PreStop, GRACE)]);
    // Both hooks have ended; the signal of the first waits for the second to exit.
    assert_eq!(stops(&mut pod, now + seconds(1)), [(1, StopPhase::Signal, seconds(29))]);
    exits(&mut pod, 1, now + seconds(6));
    assert_eq!(stops(&mut pod, now + seconds(6)), [(0, StopPhase::Signal, seconds(24))]);
    exits(&mut pod, 0, now + seconds(7));
    assert!(stops(&mut pod, now + seconds(7)).is_empty() && is_finished(&pod));
}

#[test]
fn a_hook_of_a_sidecar_that_does_not_end_is_cut_with_the_grace_of_the_pod() {
    let now = Instant::now();
    let mut pod = running("Always");
    pod.containers[0].hooks.pre_stop = true;
    pod.end(GRACE, at(now));
    pod.ends_since = Some(now);
    let Step::Do(actions) = plan(&pod, READY, now) else { panic!("nothing to do") };
    // The stops are begun and not answered.
    actions.iter().for_each(|action| begin(&mut pod, action));
    let phases: Vec<_> = pod.containers.iter().map(|slot| slot.stopping().map(|stopping| stopping.phase)).collect();
    assert_eq!(phases, [Some(StopPhase::PreStop), None, Some(StopPhase::Signal)]);
    assert_eq!(plan(&pod, READY, now + seconds(29)), Step::Wait(Some(now + GRACE)));
    let last =
        [(0, StopPhase::Signal, seconds(2)), (1, StopPhase::Signal, seconds(2)), (2, StopPhase::Kill, Duration::ZERO)];
    assert_eq!(stops(&mut pod, now + GRACE), last);
}

#[test]
fn a_sidecar_that_exits_while_it_waits_for_its_turn_is_not_restarted() {
    let now = Instant::now();
    let mut pod = running("Always");
    pod.end(GRACE, at(now));
    stops(&mut pod, now);
    exits(&mut pod, 1, now);
    assert_eq!(plan(&pod, READY, now + seconds(1)), Step::Wait(Some(now + GRACE)));
}

#[test]
fn when_the_grace_is_over_sidecars_wait_no_more() {
    let now = Instant::now();
    let mut pod = running("Always");
    pod.end(GRACE, at(now));
    stops(&mut pod, now);
    let last =
        [(0, StopPhase::Signal, seconds(2)), (1, StopPhase::Signal, seconds(2)), (2, StopPhase::Kill, Duration::ZERO)];
    assert_eq!(stops(&mut pod, now + GRACE), last);
    exits(&mut pod, 2, now + GRACE);
    let killed = [(0, StopPhase::Kill, Duration::ZERO), (1, StopPhase::Kill, Duration::ZERO)];
    assert_eq!(stops(&mut pod, now + GRACE + seconds(2)), killed);
}

#[test]
fn a_shorter_grace_brings_a_sidecars_sigkill_forward() {
    let now = Instant::now();
    let mut pod = running("Always");
    pod.end(GRACE, at(now));
    stops(&mut pod, now);
    exits(&mut pod, 2, now + seconds(1));
    stops(&mut pod, now + seconds(1));
    pod.end(seconds(5), at(now + seconds(2)));
    assert_eq!(plan(&pod, READY, now + seconds(2)), Step::Wait(Some(now + seconds(5))));
    let killed = [(0, StopPhase::Signal, seconds(2)), (1, StopPhase::Kill, Duration::ZERO)];
    assert_eq!(stops(&mut pod, now + seconds(5)), killed);
}

#[test]
fn the_sidecars_of_a_pod_that_has_finished_share_one_grace() {
    let now = Instant::now();
    let mut pod = running("OnFailure");
    pod.containers[2].instance.as_mut().unwrap().end(exit(0), at(now));
    assert_eq!(stops(&mut pod, now), [(1, StopPhase::Signal, GRACE)]);
    exits(&mut pod, 1, now + seconds(12));
    assert_eq!(stops(&mut pod, now + seconds(12)), [(0, StopPhase::Signal, seconds(18))]);
    exits(&mut pod, 0, now + seconds(13));
    assert!(stops(&mut pod, now + seconds(13)).is_empty() && is_finished(&pod));
}

#[test]
fn the_grace_of_the_pod_counts_from_its_end_and_not_from_an_edit_before() {
    let now = Instant::now();
    let mut pod = running("Always");
    let mut edited = pod.record.pod.clone();
    edited.spec.as_mut().unwrap().containers[0].image = Some("app:2".into());
    pod.update(version(edited));
    pod.containers[2].image = crate::fixtures::image();
    assert_eq!(stops(&mut pod, now), [(2, StopPhase::Signal, GRACE)]);
    pod.end(GRACE, at(now + seconds(10)));
    assert!(stops(&mut pod, now + seconds(10)).is_empty());
    exits(&mut pod, 2, now + seconds(20));
    assert_eq!(stops(&mut pod, now + seconds(20)), [(1, StopPhase::Signal, seconds(20))]);
}

#[test]
fn a_sidecar_with_another_image_is_stopped_by_itself() {
    let now = Instant::now();
    let mut pod = running("Never");
    let mut edited = pod.record.pod.clone();
    edited.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].image = Some("app:2".into());
    let edited = version(edited);
    assert!(recreate::takes_in_place(&pod, &edited));
    pod.update(edited);
    pod.containers[0].image = crate::fixtures::image();
    assert_eq!(stops(&mut pod, now), [(0, StopPhase::Signal, GRACE)]);
    exits(&mut pod, 0, now + seconds(1));
    assert_eq!(plan(&pod, READY, now + seconds(1)), Step::Do(vec![Action::Start(0)]));
}

/// As after the agent's start: the first sidecar has ended meanwhile, and the second was edited and must not start
/// before it.
#[test]
fn an_edited_sidecar_is_replaced_when_the_start_before_it_waits_for_the_cgroup() {
    let now = Instant::now();
    let mut pod = running("Always");
    exits(&mut pod, 0, now);
    let life = &mut pod.containers[0].instance.as_mut().unwrap().life;
    if let Life::Exited { reaped, .. } = life {
        *reaped = true;
    }
    pod.containers[1].instance.as_mut().unwrap().fingerprint = "another".to_owned();
    pod.containers[2].instance = None;
    let first = |pod: &PodState| match plan(pod, READY, now + seconds(600)) {
        Step::Do(actions) => actions,
        other => panic!("{other:?}"),
    };
    assert_eq!(first(&pod)[0], Action::Start(0), "its cgroup has room");
    pod.cgroup.set = None;
    assert_eq!(stops(&mut pod, now + seconds(600)), [(1, StopPhase::Signal, GRACE)]);
}
