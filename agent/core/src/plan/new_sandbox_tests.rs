#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::*;
use crate::fixtures::{READY, exit, instance, pod, ready};
use crate::outcome::{Outcome, apply, begin};
use crate::state::{Life, Now, PodSandbox};
use limpet_model::sandbox::Sandbox;

fn sandbox(id: Option<&str>) -> SandboxState {
    let sandbox = Sandbox { id: id.map(str::to_owned), ..Sandbox::default() };
    SandboxState::Ready(Arc::new(PodSandbox { sandbox, ..PodSandbox::default() }))
}

/// Sets the container's newest attempt in that sandbox, with its exit code; `None` if it runs.
fn put(pod: &mut PodState, index: usize, sandbox: Option<&str>, code: Option<i32>, now: Instant) {
    let slot = &mut pod.containers[index];
    let mut instance = instance(slot, slot.next_attempt());
    instance.pause = Duration::from_secs(40);
    instance.sandbox = sandbox.map(str::to_owned);
    if let Some(code) = code {
        instance.end(exit(code), Now { mono: now, wall: Timestamp::UNIX_EPOCH });
        if let Life::Exited { reaped, .. } = &mut instance.life {
            *reaped = true;
        }
    }
    slot.instance = Some(instance);
}

/// Two init containers and a regular one, all of which have exited in sandbox 1.
fn after_reboot(policy: &str, code: i32, now: Instant) -> PodState {
    let mut pod = ready(pod(policy, &["i", "j"], &["a"]));
    put(&mut pod, 0, Some("1"), Some(0), now);
    put(&mut pod, 1, Some("1"), Some(0), now);
    put(&mut pod, 2, Some("1"), Some(code), now);
    pod
}

fn actions(pod: &PodState, now: Instant) -> Vec<Action> {
    match plan(pod, READY, now) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

#[test]
fn in_a_new_sandbox_all_init_containers_run_again_in_order_and_then_the_others() {
    let now = Instant::now();
    let mut pod = after_reboot("Always", 137, now);
    pod.sandbox = SandboxState::Absent { dirty: true };
    assert_eq!(actions(&pod, now), [Action::PrepareSandbox]);
    pod.sandbox = sandbox(Some("2"));
    assert_eq!(actions(&pod, now), [Action::Start(0)], "no back-off follows a success");
    assert_eq!(pod.containers[0].next_pause(), Duration::ZERO);
    put(&mut pod, 0, Some("2"), Some(0), now);
    assert_eq!(actions(&pod, now), [Action::Start(1)]);
    assert!(was_initialized(&pod) && !is_initialized(&pod), "the phase does not go back to Pending");
    put(&mut pod, 1, Some("2"), Some(0), now);
    let later = now + Duration::from_secs(300);
    assert_eq!(actions(&pod, later), [Action::Start(2)]);
    put(&mut pod, 2, Some("2"), Some(1), now);
    assert_eq!(actions(&pod, later), [Action::Start(2)], "a crash runs no init container again");
}

#[test]
fn in_the_sandbox_they_ran_in_none_runs_again() {
    let now = Instant::now();
    let later = now + Duration::from_secs(300);
    // Without ids, both are of an earlier version.
    for id in [Some("1"), None] {
        let mut pod = ready(pod("Always", &["i", "j"], &["a"]));
        pod.sandbox = sandbox(id);
        put(&mut pod, 0, id, Some(0), now);
        put(&mut pod, 1, id, Some(0), now);
        put(&mut pod, 2, id, Some(137), now);
        assert_eq!(actions(&pod, later), [Action::Start(2)], "{id:?}");
    }
    let mut recorded_without = ready(pod("Always", &["i"], &["a"]));
    recorded_without.sandbox = sandbox(Some("2"));
    put(&mut recorded_without, 0, None, Some(0), now);
    put(&mut recorded_without, 1, None, Some(137), now);
    assert_eq!(actions(&recorded_without, now), [Action::Start(0)], "a sandbox with an id is newer");
}

#[test]
fn a_pod_that_has_finished_does_not_run_again() {
    let now = Instant::now();
    for (policy, code, finished) in
        [("Never", 0, true), ("Never", 137, true), ("OnFailure", 0, true), ("OnFailure", 137, false)]
    {
        let mut pod = after_reboot(policy, code, now);
        pod.sandbox = SandboxState::Absent { dirty: false };
        assert_eq!(is_finished(&pod), finished, "{policy} {code}");
        assert_eq!(actions(&pod, now).is_empty(), finished, "{policy} {code}");
    }
}

#[test]
fn an_init_container_that_fails_in_the_new_sandbox_fails_a_pod_with_policy_never() {
    let now = Instant::now();
    let mut pod = ready(pod("Never", &["i"], &["a", "b"]));
    put(&mut pod, 1, Some("1"), Some(0), now);
    pod.sandbox = sandbox(Some("2"));
    put(&mut pod, 0, Some("2"), Some(1), now);
    assert!(init_failed(&pod) && is_finished(&pod));
}

#[test]
fn a_sandbox_that_cannot_be_examined_ends_nothing_and_is_examined_again() {
    let now = Now { mono: Instant::now(), wall: Timestamp::UNIX_EPOCH };
    let mut pod = pod("Always", &["i"], &["a", "b"]);
    put(&mut pod, 0, Some("1"), Some(0), now.mono);
    put(&mut pod, 1, Some("1"), None, now.mono);
    put(&mut pod, 2, Some("1"), Some(1), now.mono);
    pod.containers[2].image = crate::fixtures::image();
    let unknown = || {
        let failure = crate::outcome::Failure { reason: "R", message: "no answer".into(), transient: false };
        Outcome::SandboxExamined(Err(failure))
    };
    apply(&mut pod, unknown(), now);
    assert!(pod.sandbox.may_exist() && is_initialized(&pod));
    let Step::Wait(Some(due)) = plan(&pod, READY, now.mono) else { panic!("it waits for the next look") };
    assert_eq!(due - now.mono, Duration::from_secs(10));

    let later = now.mono + Duration::from_secs(50);
    assert_eq!(actions(&pod, later), [Action::ExamineSandbox], "what has exited does not start before it is known");
    begin(&mut pod, &Action::ExamineSandbox);
    assert_eq!(actions(&pod, later), []);
    let mut again = pod.clone();
    apply(&mut again, unknown(), Now { mono: later, ..now });
    assert!(again.retry.is_some_and(|retry| retry.pause == Duration::from_secs(15)), "it is not long unknown");

    // It ends nevertheless, once nobody observes it.
    let mut ended = pod.clone();
    running_none(&mut ended, now);
    ended.end(Duration::ZERO, now);
    assert_eq!(plan(&ended, READY, later), Step::Wait(None));
    ended.sandbox = SandboxState::Unknown;
    assert_eq!(plan(&ended, READY, later), Step::Do(vec![Action::TearDown]));

    let SandboxState::Ready(whole) = sandbox(Some("1")) else { unreachable!() };
    let mut known = pod.clone();
    apply(&mut known, Outcome::SandboxExamined(Ok(Some(whole))), now);
    let goes_on = matches!(actions(&known, later)[..], [Action::UpdateCgroup(_), ..]) && known.retry.is_none();
    assert!(goes_on, "as with any pod that was found");
    apply(&mut pod, Outcome::SandboxExamined(Ok(None)), now);
    assert!(matches!(actions(&pod, later)[..], [Action::Stop(1, _, KillCause::SandboxLost)]));
}

/// Every container has exited.
fn running_none(pod: &mut PodState, now: Now) {
    for slot in &mut pod.containers {
        slot.instance.iter_mut().for_each(|instance| instance.end(exit(0), now));
    }
}
