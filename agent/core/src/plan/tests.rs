#![allow(clippy::unwrap_used)]

use jiff::Timestamp;

use super::super::fixtures::{self, READY, exit, image, instance, pod, ready, record, version};
use super::super::state::{Now, RetryState};
use super::*;
use crate::state::{ImageState, Life};
use limpet_model::container::ContainerId;
use limpet_model::pod::PodUid;

fn running(pod: &mut PodState, index: usize) {
    let instance = instance(&pod.containers[index], 0);
    pod.containers[index].succeed(instance);
}

fn exited(pod: &mut PodState, index: usize, code: i32, now: Instant) {
    exited_with_pause(pod, index, code, Duration::ZERO, now);
}

fn exited_with_pause(pod: &mut PodState, index: usize, code: i32, pause: Duration, now: Instant) {
    let slot = &mut pod.containers[index];
    let mut instance = instance(slot, 0);
    instance.pause = pause;
    instance.end(exit(code), Now { mono: now, wall: Timestamp::UNIX_EPOCH });
    slot.instance = Some(instance);
}

fn reaped(pod: &mut PodState, index: usize) {
    if let Some(Instance { life: Life::Exited { reaped, .. }, .. }) = &mut pod.containers[index].instance {
        *reaped = true;
    }
}

fn stop(index: usize, cause: KillCause, now: Instant) -> Action {
    Action::Stop(index, Stopping::begin(Duration::from_secs(30), false, now), cause)
}

fn actions(pod: &PodState, now: Instant) -> Vec<Action> {
    match plan(pod, READY, now) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

#[test]
fn sandbox_and_images_are_prepared_concurrently() {
    let pod = pod("Always", &["init"], &["a", "b"]);
    let now = Instant::now();
    assert_eq!(
        actions(&pod, now),
        [Action::PrepareSandbox, Action::EnsureImage(0), Action::EnsureImage(1), Action::EnsureImage(2)]
    );
}

#[test]
fn without_a_network_a_pod_that_needs_one_waits_and_still_pulls_its_images() {
    let state = pod("Always", &[], &["a"]);
    let node = NodeState { network_ready: false, ..READY };
    assert_eq!(plan(&state, node, Instant::now()), Step::Do(vec![Action::EnsureImage(0)]));
    let mut spec = state.record.pod.clone();
    spec.spec.as_mut().unwrap().host_network = Some(true);
    let host = PodState::new(version(spec), Timestamp::UNIX_EPOCH);
    assert_eq!(plan(&host, node, Instant::now()), Step::Do(vec![Action::PrepareSandbox, Action::EnsureImage(0)]));
}

#[test]
fn without_containerd_nothing_is_planned() {
    let node = NodeState { runtime_ready: false, ..READY };
    assert_eq!(plan(&pod("Always", &[], &["a"]), node, Instant::now()), Step::Wait(None));
}

#[test]
fn init_containers_run_in_order_then_all_regular_ones_together() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &["i", "j"], &["a", "b"]));
    assert_eq!(actions(&pod, now), [Action::Start(0)]);
    running(&mut pod, 0);
    assert_eq!(actions(&pod, now), []);
    exited(&mut pod, 0, 0, now);
    assert_eq!(actions(&pod, now), [Action::Start(1)], "the start keeps the shim alive, then the first is cleaned up");
    pod.containers[0].busy = Some(OngoingAction::Reaping);
    assert_eq!(actions(&pod, now), [], "a start waits for a deletion in progress");
    pod.containers[0].busy = None;
    reaped(&mut pod, 0);
    exited(&mut pod, 1, 0, now);
    reaped(&mut pod, 1);
    assert_eq!(actions(&pod, now), [Action::Start(2), Action::Start(3)]);
}

#[test]
fn after_a_shim_may_have_been_killed_one_start_runs_before_the_others() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a", "b"]));
    exited(&mut pod, 0, 137, now);
    exited(&mut pod, 1, 137, now);
    assert_eq!(actions(&pod, now), [Action::Start(0)]);
    pod.containers[0].busy = Some(OngoingAction::Starting(ContainerId::new("a")));
    assert_eq!(actions(&pod, now), []);
    pod.containers[0].busy = None;
    running(&mut pod, 0);
    assert_eq!(actions(&pod, now)[0], Action::Start(1));

    let mut adopted = ready(super::super::fixtures::pod("Always", &[], &["a", "b"]));
    adopted.outlived_connection = true;
    assert_eq!(actions(&adopted, now), [Action::Start(0)]);
}

#[test]
fn a_failed_init_container_is_restarted_or_fails_the_pod() {
    let now = Instant::now();
    let mut again = ready(pod("Always", &["i"], &["a"]));
    exited(&mut again, 0, 1, now);
    assert_eq!(actions(&again, now), [Action::Start(0)]);

    let mut never = ready(pod("Never", &["i"], &["a"]));
    exited(&mut never, 0, 1, now);
    assert!(is_finished(&never));
    assert_eq!(actions(&never, now), [Action::Reap(0)]);
    reaped(&mut never, 0);
    assert_eq!(actions(&never, now), [Action::ReleaseSandbox]);
}

#[test]
fn an_init_container_fails_the_pod_by_its_own_restart_policy() {
    let now = Instant::now();
    for (of_pod, container_policy, failed) in
        [("Always", "Never", true), ("Never", "OnFailure", false), ("Always", "OnFailure", false)]
    {
        let mut spec = record(of_pod, &["i"], &["a"]).pod.clone();
        spec.spec.as_mut().unwrap().init_containers.as_mut().unwrap()[0].restart_policy = Some(container_policy.into());
        let mut pod = ready(PodState::new(version(spec), Timestamp::UNIX_EPOCH));
        exited(&mut pod, 0, 1, now);
        assert_eq!((init_failed(&pod), is_finished(&pod)), (failed, failed), "{of_pod} {container_policy}");
    }
}

#[test]
fn the_restart_policy_decides_whether_an_exit_restarts() {
    let now = Instant::now();
    for (policy, code, restarts) in
        [("Always", 0, true), ("Always", 1, true), ("OnFailure", 0, false), ("OnFailure", 1, true), ("Never", 1, false)]
    {
        let mut pod = ready(pod(policy, &[], &["a"]));
        exited(&mut pod, 0, code, now);
        let expected = if restarts { vec![Action::Start(0)] } else { vec![Action::Reap(0)] };
        assert_eq!(actions(&pod, now), expected, "{policy} {code}");
        assert_eq!(is_finished(&pod), !restarts, "{policy} {code}");
    }
}

#[test]
fn a_successor_starts_before_its_predecessor_is_cleaned_up() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a"]));
    exited(&mut pod, 0, 1, now);
    assert_eq!(actions(&pod, now), [Action::Start(0)]);
    let next = instance(&pod.containers[0], 1);
    pod.containers[0].succeed(next);
    assert_eq!(actions(&pod, now), [Action::ReapPrevious(0)]);
}

#[test]
fn in_back_off_the_exited_instance_is_cleaned_up_and_the_start_waits() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a"]));
    exited_with_pause(&mut pod, 0, 1, Duration::from_secs(20), now);
    assert_eq!(actions(&pod, now), [Action::Reap(0)]);
    reaped(&mut pod, 0);
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + Duration::from_secs(20))));
    assert_eq!(actions(&pod, now + Duration::from_secs(20)), [Action::Start(0)]);
}

#[test]
fn an_edited_image_is_pulled_before_the_old_process_is_terminated() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a", "b"]));
    running(&mut pod, 0);
    running(&mut pod, 1);
    let mut edited = pod.record.pod.clone();
    edited.spec.as_mut().unwrap().containers[1].image = Some("app:2".into());
    assert_eq!(pod.update(version(edited)), [1]);
    assert_eq!(actions(&pod, now), [Action::EnsureImage(1)]);
    let retry = RetryState::after(None, "ErrImagePull", "no".into(), now);
    pod.containers[1].image = ImageState::Failed(retry);
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + Duration::from_secs(10))), "the old one keeps running");
    pod.containers[1].image = image();
    assert_eq!(actions(&pod, now), [stop(1, KillCause::DefinitionChanged, now)]);
}

#[test]
fn an_edit_of_metadata_touches_no_container() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a", "b"]));
    running(&mut pod, 0);
    exited_with_pause(&mut pod, 1, 1, Duration::from_secs(300), now);
    reaped(&mut pod, 1);
    let before = plan(&pod, READY, now);
    let mut edited = pod.record.pod.clone();
    edited.metadata.labels = Some([("app".to_owned(), "shop".to_owned())].into());
    edited.spec.as_mut().unwrap().active_deadline_seconds = Some(9);
    assert_eq!(pod.update(version(edited)), [0; 0]);
    assert_eq!(plan(&pod, READY, now), before, "not even a back-off restarts");
    assert_eq!(pod.record.pod.metadata.labels.as_ref().unwrap()["app"], "shop");
}

#[test]
fn an_edit_resets_a_crash_back_off() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a"]));
    exited_with_pause(&mut pod, 0, 1, Duration::from_secs(300), now);
    reaped(&mut pod, 0);
    let mut edited = pod.record.pod.clone();
    edited.spec.as_mut().unwrap().containers[0].image = Some("app:2".into());
    pod.update(version(edited));
    pod.containers[0].image = image();
    assert_eq!(actions(&pod, now), [Action::Start(0)]);
    assert_eq!(pod.containers[0].next_pause(), Duration::ZERO);
}

#[test]
fn an_image_with_pull_policy_always_is_resolved_at_each_start() {
    let now = Instant::now();
    let mut state = pod("Always", &[], &["a"]);
    let mut spec = state.record.pod.clone();
    spec.spec.as_mut().unwrap().containers[0].image_pull_policy = Some("Always".into());
    state = ready(PodState::new(version(spec), Timestamp::UNIX_EPOCH));
    exited(&mut state, 0, 1, now);
    assert_eq!(actions(&state, now), [Action::EnsureImage(0), Action::Reap(0)]);
}

#[test]
fn a_terminating_pod_waits_for_actions_in_progress() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a"]));
    let id = ContainerId::derive(&PodUid::new("0123"), "a", 0, 0);
    pod.containers[0].busy = Some(OngoingAction::Starting(id));
    pod.end(Duration::from_secs(3), Now { mono: now, wall: Timestamp::UNIX_EPOCH });
    assert_eq!(plan(&pod, READY, now), Step::Wait(None));
}

#[test]
fn containers_that_outlived_their_sandbox_are_terminated_first() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a"]));
    running(&mut pod, 0);
    pod.sandbox = SandboxState::Absent { dirty: true };
    assert_eq!(actions(&pod, now), [stop(0, KillCause::SandboxLost, now)]);
}

#[test]
fn a_newer_version_and_the_end_wait_for_no_pause() {
    let now = fixtures::now();
    let failed = || {
        let mut pod = pod("Always", &[], &["a"]);
        let pause = RetryState::after(None, "FailedMount", "no such directory".into(), now.mono);
        (pod.sandbox, pod.retry) = (SandboxState::Absent { dirty: true }, Some(pause));
        pod
    };
    let next = |pod: &PodState| plan(pod, READY, now.mono);
    assert!(next(&failed()) != Step::Do(vec![Action::PrepareSandbox, Action::EnsureImage(0)]));
    let mut edited = failed();
    edited.update(record("Always", &[], &["a"]));
    assert_eq!(next(&edited), Step::Do(vec![Action::PrepareSandbox, Action::EnsureImage(0)]));
    let mut ended = failed();
    ended.end(Duration::from_secs(30), now);
    assert_eq!(next(&ended), Step::Do(vec![Action::TearDown]));
    // A failed teardown is not repeated without a pause just because the pod is ended once more.
    ended.retry = Some(RetryState::after(None, "FailedKillPod", "busy".into(), now.mono));
    ended.end(Duration::from_secs(30), now);
    assert!(matches!(next(&ended), Step::Wait(Some(_))));
}

/// A pod with a deadline of 60 s that has been active for as long as `active`.
fn with_deadline(policy: &str, active: u64, now: Instant) -> PodState {
    let mut spec = record(policy, &[], &["a"]).pod.clone();
    spec.spec.as_mut().unwrap().active_deadline_seconds = Some(60);
    let mut pod = ready(PodState::new(version(spec), Timestamp::UNIX_EPOCH));
    pod.count_active(Now { mono: now, wall: Timestamp::from_second(i64::try_from(active).unwrap()).unwrap() });
    pod
}

#[test]
fn a_deadline_is_judged_while_the_pod_is_active() {
    let now = Instant::now();
    let away = NodeState { runtime_ready: false, ..READY };
    let over = |prepare: &dyn Fn(&mut PodState), active, conditions| {
        let mut pod = with_deadline("Never", active, now);
        prepare(&mut pod);
        verdict(&pod, conditions, now).is_some()
    };
    let runs = |pod: &mut PodState| running(pod, 0);
    let ends = |pod: &mut PodState| pod.end(Duration::ZERO, Now { mono: now, wall: Timestamp::UNIX_EPOCH });
    assert!(over(&runs, 60, READY) && !over(&runs, 59, READY));
    assert!(over(&|_| {}, 60, READY), "also before its first container");
    assert!(!over(&runs, 60, away), "it may have finished in time");
    assert!(!over(&ends, 60, READY), "it is being terminated");
    assert!(!over(&|pod| exited(pod, 0, 0, now), 60, READY), "it has finished");
    assert!(!over(&|pod| pod.fail(PodVerdict::rejected("SysctlForbidden", "no")), 60, READY));
    // A deadline that is raised in time counts from the same start.
    let mut raised = with_deadline("Never", 59, now);
    let mut spec = raised.record.pod.clone();
    spec.spec.as_mut().unwrap().active_deadline_seconds = Some(100);
    raised.update(version(spec));
    assert_eq!(raised.deadline(), Some(now + Duration::from_secs(41)));
}

#[test]
fn a_jump_of_the_wall_clock_ends_no_pod() {
    let now = Instant::now();
    let mut pod = with_deadline("Never", 10, now);
    let jumped = Now { mono: now, wall: Timestamp::from_second(2_000_000_000).unwrap() };
    pod.count_active(jumped);
    assert_eq!(pod.deadline(), Some(now + Duration::from_secs(50)));
    // Neither does a clock that is behind.
    let mut behind = pod.clone();
    (behind.start_time, behind.active_since) = (jumped.wall, None);
    behind.count_active(Now { mono: now, wall: Timestamp::UNIX_EPOCH });
    assert_eq!(behind.deadline(), Some(now + Duration::from_secs(60)));
}

#[test]
fn a_failed_pod_ends_with_its_grace_and_runs_nothing_again() {
    let now = Instant::now();
    let mut pod = with_deadline("Always", 10, now);
    running(&mut pod, 0);
    let deadline = now + Duration::from_secs(50);
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(deadline)), "an idle pod wakes at its deadline");
    pod.fail(PodVerdict::deadline_exceeded());
    assert_eq!(actions(&pod, now), [stop(0, KillCause::PodEnds, now)]);
    exited(&mut pod, 0, 143, now);
    assert_eq!(actions(&pod, now), [Action::Reap(0)], "not started again, whatever its policy");
    reaped(&mut pod, 0);
    assert_eq!(actions(&pod, now), [Action::ReleaseSandbox]);
    pod.set_sandbox(SandboxState::Absent { dirty: false });
    assert_eq!(plan(&pod, READY, now), Step::Wait(None));
    assert!(renewed(&pod).is_empty());
    pod.end(Duration::from_secs(3), Now { mono: now, wall: Timestamp::UNIX_EPOCH });
    assert_eq!(actions(&pod, now), [Action::TearDown]);
}

#[test]
fn a_failed_pod_removes_what_a_failed_start_left_before_its_sandbox() {
    let now = Instant::now();
    let mut pod = with_deadline("Always", 10, now);
    let id = ContainerId::derive(&PodUid::new("0123"), "a", 0, 0);
    pod.containers[0].busy = Some(OngoingAction::Starting(id.clone()));
    pod.fail(PodVerdict::deadline_exceeded());
    assert_eq!(plan(&pod, READY, now), Step::Wait(None), "the start in progress is waited for");
    (pod.containers[0].busy, pod.containers[0].possible_orphan) = (None, Some(id));
    assert_eq!(actions(&pod, now), [Action::Discard(0)]);
    pod.containers[0].retry = Some(RetryState::transient("FailedKillPod", "no answer".into(), now));
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + Duration::from_secs(1))));
    (pod.containers[0].possible_orphan, pod.containers[0].retry) = (None, None);
    assert_eq!(actions(&pod, now), [Action::ReleaseSandbox]);
}

#[test]
fn a_start_that_was_found_again_keeps_its_record_when_the_pod_has_finished() {
    let now = Instant::now();
    let mut pod = fixtures::pod("Never", &[], &["a"]);
    pod.sandbox = SandboxState::Ready(fixtures::sandbox(&[]));
    exited(&mut pod, 0, 0, now);
    // Its answer was lost, and containerd's state, which was read again, had the container.
    pod.containers[0].possible_orphan = pod.containers[0].instance.as_ref().map(|instance| instance.id.clone());
    assert_eq!(actions(&pod, now), [Action::Reap(0)]);
    reaped(&mut pod, 0);
    assert_eq!(actions(&pod, now), [Action::ReleaseSandbox]);
}

#[test]
fn what_a_lost_start_may_have_left_is_removed_when_the_cgroup_waits_for_it() {
    let now = Instant::now();
    let mut pod = ready(pod("Always", &[], &["a"]));
    exited(&mut pod, 0, 0, now);
    reaped(&mut pod, 0);
    let id = ContainerId::derive(&PodUid::new("0123"), "a", 1, 0);
    pod.containers[0].possible_orphan = Some(id);
    assert_eq!(actions(&pod, now), [Action::Start(0)], "the start itself removes it");
    let mut begun = pod.clone();
    crate::outcome::begin(&mut begun, &Action::Discard(0));
    begun.containers[0].busy = None;
    assert_eq!(actions(&begun, now), [Action::Discard(0)], "its answer was lost: its id must not be used again");
    // As after the agent's start: it may have been of another version, with other limits.
    pod.cgroup.set = None;
    assert_eq!(actions(&pod, now), [Action::Discard(0)]);
    pod.containers[0].retry = Some(RetryState::transient("FailedKillPod", "no answer".into(), now));
    assert_eq!(plan(&pod, READY, now), Step::Wait(Some(now + Duration::from_secs(1))));
    (pod.containers[0].possible_orphan, pod.containers[0].retry) = (None, None);
    assert!(matches!(actions(&pod, now)[..], [Action::UpdateCgroup(_)]));
}
