#![allow(clippy::unwrap_used)]

use std::time::{Duration, Instant};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use limpet_model::pod::compute_resources::{CgroupLimits, pod_limits};
use serde_json::{Value, json};

use super::*;
use crate::fixtures::{READY, exit, instance, now, ready, version};
use crate::outcome::{Failure, Outcome, apply, begin};
use crate::plan::recreate::{RecreationCause, recreation_cause};
use crate::plan::{Action, KillCause, Step, plan};
use crate::state::{Now, StopPhase};

/// A pod with one container with that image and that limit of cpu in hundredths.
fn record(image: &str, cpu: i64) -> Arc<PodRecord> {
    pod_with("Always", image, json!({ "limits": { "cpu": format!("{}m", cpu * 10) } }))
}

fn pod_with(policy: &str, image: &str, resources: Value) -> Arc<PodRecord> {
    let container = json!({ "name": "a", "image": image, "resources": resources });
    let spec: PodSpec = serde_json::from_value(json!({ "restartPolicy": policy, "containers": [container] })).unwrap();
    version(Pod { spec: Some(spec), ..Pod::default() })
}

fn running(record: Arc<PodRecord>) -> PodState {
    let mut pod = ready(PodState::new(record, Timestamp::UNIX_EPOCH));
    pod.containers[0].instance = Some(instance(&pod.containers[0], 0));
    pod
}

fn limits(cpu: i64) -> CgroupLimits {
    pod_limits(record("app:1", cpu).spec())
}

/// The planned actions about resources or a stop, which are begun.
fn next(pod: &mut PodState, now: Instant) -> Vec<Action> {
    let Step::Do(actions) = plan(pod, READY, now) else { return Vec::new() };
    let about = |action: &Action| matches!(action, Action::UpdateCgroup(_) | Action::Resize(_) | Action::Stop(..));
    let actions: Vec<Action> = actions.into_iter().filter(about).collect();
    actions.iter().for_each(|action| begin(pod, action));
    actions
}

fn cgroup_set(pod: &mut PodState, now: Now) {
    apply(pod, Outcome::CgroupUpdated(Ok(())), now);
}

fn outcome(pod: &mut PodState, result: Result<(), Failure>, now: Now) {
    let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
    apply(pod, Outcome::Resized { index: 0, id, result }, now);
}

fn failure(transient: bool) -> Failure {
    Failure { reason: "ResizeError", message: "no".into(), transient }
}

#[test]
fn the_pod_grows_before_its_container_and_shrinks_after_it() {
    let (mut pod, now) = (running(record("app:1", 10)), now());
    pod.update(record("app:1", 20));
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(20))]);
    assert_eq!(next(&mut pod, now.mono), [], "not before that is done");
    cgroup_set(&mut pod, now);
    assert_eq!(next(&mut pod, now.mono), [Action::Resize(0)]);
    assert!(pod.is_updating() && next(&mut pod, now.mono).is_empty(), "once at a time");
    outcome(&mut pod, Ok(()), now);
    assert!(pod.containers[0].is_current() && !pod.is_updating() && next(&mut pod, now.mono).is_empty());
    assert!(pod.containers[0].instance.as_ref().unwrap().resize.is_none(), "nothing is kept of it");
    pod.update(record("app:1", 5));
    let weight = CgroupLimits { cpu_shares: limits(5).cpu_shares, ..limits(20) };
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(weight), Action::Resize(0)]);
    cgroup_set(&mut pod, now);
    outcome(&mut pod, Ok(()), now);
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(5))]);
}

#[test]
fn a_resize_that_fails_is_tried_again_within_a_minute_and_at_once_after_an_edit() {
    let (mut pod, mut now) = (running(record("app:1", 20)), now());
    pod.update(record("app:1", 10));
    for pause in [10, 20, 40, 60, 60] {
        assert!(next(&mut pod, now.mono).contains(&Action::Resize(0)), "{pause}");
        if pod.cgroup.setting.is_some() {
            cgroup_set(&mut pod, now);
        }
        outcome(&mut pod, Err(failure(false)), now);
        let at = now.mono + Duration::from_secs(pause);
        assert_eq!(plan(&pod, READY, now.mono), Step::Wait(Some(at)));
        now.mono = at;
    }
    assert_eq!(next(&mut pod, now.mono), [Action::Resize(0)]);
    outcome(&mut pod, Err(failure(false)), now);
    assert_eq!(next(&mut pod, now.mono), []);
    pod.update(record("app:1", 11));
    assert!(next(&mut pod, now.mono).contains(&Action::Resize(0)));
}

#[test]
fn what_an_edit_in_mid_resize_leads_to() {
    // The next version's image and cpu, whether the resize to 20 succeeds, and what follows: a resize, a stop or
    // nothing.
    let cases = [
        ("app:1", 30, true, "resize"),
        ("app:1", 30, false, "resize"),
        ("app:1", 20, true, ""),
        ("app:1", 10, true, "resize"),
        // It may have been done nevertheless.
        ("app:1", 10, false, "resize"),
        ("app:2", 20, true, "stop"),
        ("app:2", 30, false, "stop"),
    ];
    for (image, cpu, succeeds, expected) in cases {
        let case = format!("{image} {cpu} {succeeds}");
        let (mut pod, now) = (running(record("app:1", 10)), now());
        pod.cgroup.set = Some(limits(100));
        pod.update(record("app:1", 20));
        assert!(next(&mut pod, now.mono).contains(&Action::Resize(0)), "{case}");
        if pod.cgroup.setting.is_some() {
            cgroup_set(&mut pod, now);
        }
        pod.update(record(image, cpu));
        pod.containers[0].image = crate::fixtures::image();
        outcome(&mut pod, if succeeds { Ok(()) } else { Err(failure(true)) }, now);
        let later = now.mono + Duration::from_secs(2);
        let actions = next(&mut pod, later);
        let resizes = actions.contains(&Action::Resize(0));
        let stops = actions.iter().any(|action| matches!(action, Action::Stop(_, _, KillCause::DefinitionChanged)));
        assert_eq!((resizes, stops), (expected == "resize", expected == "stop"), "{case}: {actions:?}");
    }
}

#[test]
fn the_pod_does_not_shrink_while_a_resize_above_it_is_in_progress() {
    let (mut pod, now) = (running(record("app:1", 10)), now());
    pod.update(record("app:1", 20));
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(20))]);
    cgroup_set(&mut pod, now);
    assert_eq!(next(&mut pod, now.mono), [Action::Resize(0)]);
    pod.update(record("app:1", 10));
    let weight = CgroupLimits { cpu_shares: limits(10).cpu_shares, ..limits(20) };
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(weight)]);
    cgroup_set(&mut pod, now);
    outcome(&mut pod, Ok(()), now);
    assert_eq!(next(&mut pod, now.mono), [Action::Resize(0)]);
    outcome(&mut pod, Ok(()), now);
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(10))]);
}

#[test]
fn a_container_is_not_resized_above_what_its_pod_is_being_lowered_to() {
    let (mut pod, now) = (running(record("app:1", 20)), now());
    pod.update(record("app:1", 10));
    assert_eq!(next(&mut pod, now.mono).len(), 2, "the weight, and the container");
    cgroup_set(&mut pod, now);
    outcome(&mut pod, Ok(()), now);
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(10))]);
    // It is reverted while that is being written.
    pod.update(record("app:1", 20));
    assert_eq!(next(&mut pod, now.mono), []);
    cgroup_set(&mut pod, now);
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(20))]);
    cgroup_set(&mut pod, now);
    assert_eq!(next(&mut pod, now.mono), [Action::Resize(0)]);
}

#[test]
fn a_container_that_is_stopped_or_has_ended_is_not_resized() {
    let (mut pod, now) = (running(record("app:1", 20)), now());
    pod.update(record("app:1", 10));
    pod.end(Duration::from_secs(5), now);
    let actions = next(&mut pod, now.mono);
    assert!(
        matches!(&actions[..], [Action::Stop(_, stopping, _)] if stopping.phase == StopPhase::Signal),
        "{actions:?}"
    );

    let mut pod = running(record("app:1", 20));
    pod.update(record("app:1", 10));
    next(&mut pod, now.mono);
    pod.containers[0].instance.as_mut().unwrap().end(exit(1), now);
    assert!(pod.is_updating(), "its answer may still write to its record");
    outcome(&mut pod, Ok(()), now);
    assert!(!pod.is_resizing() && pod.containers[0].resize().is_none());
    assert!(!pod.containers[0].is_current(), "it may have ended before, with a cgroup as it was");
}

#[test]
fn a_found_container_of_another_version_is_resized_though_the_pods_cgroup_is_not_known() {
    let (mut pod, now) = (running(record("app:1", 10)), now());
    let old = Arc::clone(&pod.record);
    pod.update(record("app:1", 20));
    pod.cgroup.set = None;
    pod.containers[0].instance.as_mut().unwrap().resize = None;
    let desired = Arc::clone(&pod.record);
    pod.containers[0].settle_resize(Some(&old), &desired);
    assert_eq!(next(&mut pod, now.mono), [Action::UpdateCgroup(limits(20))]);
    apply(&mut pod, Outcome::CgroupUpdated(Err(failure(true))), now);
    assert_eq!(next(&mut pod, now.mono), [], "no answer says nothing about the limits");
    let retry_at = pod.cgroup.retry.as_ref().unwrap().retry_at;
    assert_eq!(next(&mut pod, retry_at), [Action::UpdateCgroup(limits(20))]);
    // The container may have more than is recorded on it, and hold that back.
    apply(&mut pod, Outcome::CgroupUpdated(Err(failure(false))), now);
    assert_eq!(next(&mut pod, now.mono), [Action::Resize(0)]);
}

#[test]
fn what_has_finished_for_good_is_recreated_for_resources_and_what_runs_is_not() {
    let resources = |cpu: &str| json!({ "requests": { "cpu": cpu } });
    for (policy, code, expected) in [
        ("Never", None, None),
        ("OnFailure", None, None),
        ("OnFailure", Some(1), None),
        ("Never", Some(1), Some(RecreationCause::ContainerFinished("a".into()))),
    ] {
        let mut pod = running(pod_with(policy, "app:1", resources("1")));
        let other = {
            // Another container keeps the pod from being over.
            let mut other = crate::state::ContainerSlot::new("b", limpet_model::pod::Role::Main, String::new());
            other.instance = Some(instance(&other, 0));
            other
        };
        pod.containers.push(other);
        if let Some(code) = code {
            pod.containers[0].instance.as_mut().unwrap().end(exit(code), now());
        }
        let next = pod_with(policy, "app:1", resources("2"));
        assert!(pod.record.is_same_incarnation(&next), "{policy}");
        assert_eq!(recreation_cause(&pod, &next), expected, "{policy} {code:?}");
    }
}
