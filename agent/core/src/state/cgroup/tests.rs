#![allow(clippy::unwrap_used)]

use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Pod, PodSpec};
use serde_json::json;

use super::super::{Instance, Life, Now, PodState, SandboxState};
use super::*;
use crate::fixtures::{READY, exit, instance, now, ready, version};
use crate::outcome::{Failure, Outcome, apply, begin};
use crate::plan::{Action, KillCause, Step, plan};

/// A pod with one container per CPU limit, and 64 times as much memory. An edit of either restarts it.
fn record(cpus: &[i64]) -> std::sync::Arc<limpet_model::pod::PodRecord> {
    let container = |(index, cpu): (usize, &i64)| {
        let limits = json!({ "cpu": format!("{cpu}m"), "memory": format!("{}Mi", cpu * 64) });
        let policy = |name: &str| json!({ "resourceName": name, "restartPolicy": "RestartContainer" });
        json!({ "name": format!("c{index}"), "image": "app:1", "resources": { "limits": limits },
            "resizePolicy": [policy("cpu"), policy("memory")] })
    };
    let containers: Vec<_> = cpus.iter().enumerate().map(container).collect();
    let spec: PodSpec = serde_json::from_value(json!({ "containers": containers })).unwrap();
    version(Pod { spec: Some(spec), ..Pod::default() })
}

fn running(cpus: &[i64]) -> PodState {
    let mut pod = ready(PodState::new(record(cpus), Timestamp::UNIX_EPOCH));
    for slot in &mut pod.containers {
        slot.instance = Some(instance(slot, 0));
    }
    pod
}

fn edit(pod: &mut PodState, cpus: &[i64]) {
    pod.update(record(cpus));
    let slots = pod.containers.iter_mut();
    slots.for_each(|slot| slot.image = crate::fixtures::image());
}

fn actions(pod: &PodState, now: Instant) -> Vec<Action> {
    match plan(pod, READY, now) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

fn limits(cpus: &[i64]) -> CgroupLimits {
    record(cpus).cgroup_limits
}

/// The pod's cgroup with the CPU shares of one edit and the limits of another.
fn mixed(shares: &[i64], other: &[i64]) -> CgroupLimits {
    CgroupLimits { cpu_shares: limits(shares).cpu_shares, ..limits(other) }
}

fn done(pod: &mut PodState, action: &Action, now: Now) {
    begin(pod, action);
    apply(pod, Outcome::CgroupUpdated(Ok(())), now);
}

fn end(pod: &mut PodState, index: usize, now: Now) {
    pod.containers[index].instance.as_mut().unwrap().end(exit(143), now);
}

fn reap(instance: &mut Option<Instance>) {
    if let Some(Instance { life: Life::Exited { reaped, .. }, .. }) = instance {
        *reaped = true;
    }
}

fn is_terminate(action: &Action) -> bool {
    matches!(action, Action::Stop(0, _, KillCause::DefinitionChanged))
}

#[test]
fn a_cgroup_grows_before_the_container_is_replaced() {
    let (mut pod, now) = (running(&[100, 50]), now());
    assert_eq!(actions(&pod, now.mono), []);
    edit(&mut pod, &[500, 50]);
    let grow = Action::UpdateCgroup(limits(&[500, 50]));
    assert_eq!(
        actions(&pod, now.mono),
        std::slice::from_ref(&grow),
        "nothing is stopped before its successor has room"
    );
    begin(&mut pod, &grow);
    assert_eq!(actions(&pod, now.mono), []);
    apply(&mut pod, Outcome::CgroupUpdated(Ok(())), now);
    assert!(matches!(&actions(&pod, now.mono)[..], [action] if is_terminate(action)));
    end(&mut pod, 0, now);
    assert_eq!(actions(&pod, now.mono), [Action::Start(0)]);
}

#[test]
fn a_cgroup_shrinks_when_nothing_of_the_old_container_is_left() {
    let (mut pod, now) = (running(&[500, 50]), now());
    edit(&mut pod, &[100, 50]);
    let planned = actions(&pod, now.mono);
    let weigh = Action::UpdateCgroup(mixed(&[100, 50], &[500, 50]));
    assert!(planned[0] == weigh && is_terminate(&planned[1]), "{planned:?}");
    done(&mut pod, &weigh, now);
    end(&mut pod, 0, now);
    assert_eq!(actions(&pod, now.mono), [Action::Start(0)]);
    let next = instance(&pod.containers[0], 1);
    pod.containers[0].succeed(next);
    assert_eq!(actions(&pod, now.mono), [Action::ReapPrevious(0)], "its cgroup is there until it is reaped");
    reap(&mut pod.containers[0].previous);
    let shrink = Action::UpdateCgroup(limits(&[100, 50]));
    assert_eq!(actions(&pod, now.mono), std::slice::from_ref(&shrink));
    done(&mut pod, &shrink, now);
    assert_eq!(actions(&pod, now.mono), []);
}

#[test]
fn a_failed_growth_is_retried_and_stops_no_container() {
    let (mut pod, now) = (running(&[100]), now());
    edit(&mut pod, &[500]);
    let grow = Action::UpdateCgroup(limits(&[500]));
    begin(&mut pod, &grow);
    let failure = Failure { reason: "Failed", message: "no".into(), transient: false };
    apply(&mut pod, Outcome::CgroupUpdated(Err(failure)), now);
    let retry_at = pod.cgroup.retry.as_ref().unwrap().retry_at;
    assert_eq!(plan(&pod, READY, now.mono), Step::Wait(Some(retry_at)));
    assert_eq!(actions(&pod, retry_at), [grow]);
    edit(&mut pod, &[400]);
    assert_eq!(actions(&pod, now.mono), [Action::UpdateCgroup(limits(&[400]))], "a newer version does not wait");
}

#[test]
fn the_cgroup_of_an_adopted_pod_is_set_once_and_follows_the_end_of_older_containers() {
    let (mut pod, now) = (running(&[100]), now());
    pod.cgroup.set = None;
    let update = Action::UpdateCgroup(limits(&[100]));
    assert_eq!(actions(&pod, now.mono), [update]);
    edit(&mut pod, &[200]);
    assert!(matches!(&actions(&pod, now.mono)[..], [action] if is_terminate(action)));
    end(&mut pod, 0, now);
    assert_eq!(actions(&pod, now.mono), [Action::Reap(0)], "what the cgroup allows is not known");
    reap(&mut pod.containers[0].instance);
    let update = Action::UpdateCgroup(limits(&[200]));
    assert_eq!(actions(&pod, now.mono), std::slice::from_ref(&update));
    done(&mut pod, &update, now);
    assert_eq!(actions(&pod, now.mono), [Action::Start(0)]);
}

#[test]
fn a_cgroup_being_written_is_not_removed() {
    let (mut pod, now) = (running(&[100]), now());
    end(&mut pod, 0, now);
    pod.end(std::time::Duration::from_secs(1), now);
    begin(&mut pod, &Action::UpdateCgroup(limits(&[100])));
    assert_eq!(plan(&pod, READY, now.mono), Step::Wait(None));
    apply(&mut pod, Outcome::CgroupUpdated(Ok(())), now);
    assert_eq!(actions(&pod, now.mono), [Action::TearDown]);
    pod.volumes.writing = pod.volumes_version();
    assert_eq!(plan(&pod, READY, now.mono), Step::Wait(None), "nor are volumes");
    assert!(matches!(pod.sandbox, SandboxState::Ready(_)));
}

#[test]
fn a_start_whose_answer_was_lost_may_have_other_limits() {
    let (mut pod, now) = (running(&[500]), now());
    pod.containers[0].instance = None;
    begin(&mut pod, &Action::Start(0));
    let failure = Failure { reason: "Lost", message: "no answer".into(), transient: true };
    apply(&mut pod, Outcome::Started { index: 0, result: Err(failure) }, now);
    edit(&mut pod, &[100]);
    pod.containers[0].retry = None;
    let weigh = Action::UpdateCgroup(mixed(&[100], &[500]));
    assert_eq!(actions(&pod, now.mono), [weigh, Action::Start(0)]);
}

/// Its answer was lost, so it may have been done nevertheless, and what is wanted by then may be what was set before.
#[test]
fn an_update_that_failed_is_done_again_also_after_a_return_to_the_limits_before() {
    let now = now();
    let mut pod = running(&[300]);
    pod.containers[0].instance = None;
    pod.cgroup.set = Some(limits(&[300]));
    edit(&mut pod, &[100]);
    begin(&mut pod, &Action::UpdateCgroup(limits(&[100])));
    let failure = Failure { reason: "FailedKillPod", message: "no answer".into(), transient: true };
    apply(&mut pod, Outcome::CgroupUpdated(Err(failure)), now);
    edit(&mut pod, &[300]);
    assert!(!pod.cgroup_admits(), "it may have the lower limits");
    let later = now.mono + std::time::Duration::from_secs(60);
    assert_eq!(actions(&pod, later)[0], Action::UpdateCgroup(limits(&[300])));
    done(&mut pod, &Action::UpdateCgroup(limits(&[300])), now);
    assert!(pod.cgroup_admits() && pod.due_cgroup_limits().is_none());
}
