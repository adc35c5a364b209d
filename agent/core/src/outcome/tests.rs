#![allow(clippy::unwrap_used)]

use super::super::adopt::unknown_exit;
use super::super::fixtures::{self, exit, now, record_of, sandbox};
use super::*;
use crate::state::{CONFIG_ERROR, FAILED_MOUNT, FAILED_UNMOUNT};
use limpet_model::source::SourceKind;

fn pod() -> PodState {
    fixtures::pod("Always", &[], &["a"])
}

fn instance(attempt: u32) -> Instance {
    fixtures::instance(&pod().containers[0], attempt)
}

#[test]
fn an_exit_reported_before_its_start_is_not_lost() {
    let mut pod = pod();
    begin(&mut pod, &Action::Start(0));
    assert_eq!(exited(&mut pod, &instance(0).id, 1, exit(4), now()), None);
    let early = apply(&mut pod, Outcome::Started { index: 0, result: Ok(Box::new(instance(0))) }, now());
    assert_eq!(early, Some((instance(0).id, exit(4))));
    assert!(pod.containers[0].is_running());
}

#[test]
fn the_exit_of_an_earlier_attempt_under_the_same_id_does_not_apply_to_the_new_one() {
    let mut pod = pod();
    begin(&mut pod, &Action::Start(0));
    assert_eq!(exited(&mut pod, &instance(0).id, 99, exit(137), now()), None);
    let early = apply(&mut pod, Outcome::Started { index: 0, result: Ok(Box::new(instance(0))) }, now());
    assert_eq!(early, None);
    assert_eq!(exited(&mut pod, &instance(0).id, 99, exit(137), now()), None);
    assert!(pod.containers[0].is_running());
}

#[test]
fn possible_orphans_of_a_failed_start_are_remembered_until_a_start_succeeds() {
    let mut pod = pod();
    let failure = || Failure { reason: "RunContainerError", message: String::new(), transient: true };
    begin(&mut pod, &Action::Start(0));
    apply(&mut pod, Outcome::Started { index: 0, result: Err(failure()) }, now());
    assert_eq!(pod.containers[0].possible_orphan, Some(instance(0).id));
    begin(&mut pod, &Action::Start(0));
    apply(&mut pod, Outcome::Started { index: 0, result: Ok(Box::new(instance(0))) }, now());
    assert_eq!(pod.containers[0].possible_orphan, None);
}

#[test]
fn an_id_that_containerd_does_not_release_is_no_restart() {
    let mut pod = pod();
    let failure = Failure { reason: "RunContainerError", message: String::new(), transient: true };
    let taken = pod.next_id(&pod.containers[0]);
    begin(&mut pod, &Action::Start(0));
    apply(&mut pod, Outcome::IdTaken { index: 0, failure }, now());
    let slot = &pod.containers[0];
    assert_eq!((slot.next_attempt(), slot.busy.is_none()), (0, true), "nothing has restarted");
    assert_ne!(pod.next_id(slot), taken);
}

#[test]
fn an_id_is_used_once() {
    let pod_with = |id_seed| PodState { id_seed, ..pod() };
    let next = |pod: &PodState| pod.next_id(&pod.containers[0]);
    let (mut first, again) = (pod_with(1), pod_with(2));
    assert_ne!(next(&first), next(&again), "the pod is recreated, or another node has its manifest");
    let id = next(&first);
    let failure = Failure { reason: "RunContainerError", message: String::new(), transient: true };
    begin(&mut first, &Action::Start(0));
    apply(&mut first, Outcome::Started { index: 0, result: Err(failure) }, now());
    assert_eq!(next(&first), id, "what a failed start has left is found under its id");
    begin(&mut first, &Action::Discard(0));
    apply(&mut first, Outcome::OrphanRemoved { index: 0, result: Ok(()) }, now());
    assert_ne!(next(&first), id, "a process may have run under it");
}

#[test]
fn a_lost_sandbox_is_recreated_once() {
    let (old, new) = (sandbox(&[]), sandbox(&[]));
    let mut pod = pod();
    pod.sandbox = SandboxState::Ready(Arc::clone(&old));
    begin(&mut pod, &Action::Start(0));
    apply(&mut pod, Outcome::SandboxLost { index: 0, sandbox: Arc::clone(&old) }, now());
    assert!(matches!(pod.sandbox, SandboxState::Absent { dirty: true }) && pod.containers[0].busy.is_none());

    pod.sandbox = SandboxState::Ready(new);
    apply(&mut pod, Outcome::SandboxLost { index: 0, sandbox: old }, now());
    assert!(matches!(pod.sandbox, SandboxState::Ready(_)), "a late report is not about the new one");
}

#[test]
fn an_image_requested_before_an_edit_is_ignored() {
    let mut pod = pod();
    begin(&mut pod, &Action::EnsureImage(0));
    let failure = Failure { reason: "ErrImagePull", message: "no".into(), transient: false };
    let outcome = Outcome::ImageEnsured { index: 0, fingerprint: "old".into(), attempt: 0, result: Err(failure) };
    apply(&mut pod, outcome, now());
    assert!(matches!(pod.containers[0].image, ImageState::Pulling));
}

#[test]
fn pull_failures_back_off_and_transient_ones_do_not() {
    let mut pod = pod();
    let fingerprint = pod.containers[0].fingerprint.clone();
    let mut pauses = Vec::new();
    for transient in [false, false, true] {
        let failure = Failure { reason: "ErrImagePull", message: "no".into(), transient };
        let outcome =
            Outcome::ImageEnsured { index: 0, fingerprint: fingerprint.clone(), attempt: 0, result: Err(failure) };
        let now = now();
        apply(&mut pod, outcome, now);
        let ImageState::Failed(retry) = &pod.containers[0].image else { panic!() };
        pauses.push(retry.retry_at.duration_since(now.mono).as_secs());
    }
    assert_eq!(pauses, [10, 20, 1]);
}

#[test]
fn what_fails_without_an_exit_is_tried_again_after_15_seconds_at_most() {
    const SYNC: [u64; 6] = [10, 15, 15, 15, 15, 15];
    const RESIZE: [u64; 6] = [10, 20, 40, 60, 60, 60];
    const VOLUME: [u64; 6] = [10, 20, 40, 80, 122, 122];
    type Failed = fn(Failure) -> Outcome;
    let started: Failed = |failure| Outcome::Started { index: 0, result: Err(failure) };
    let prepared: Failed = |failure| Outcome::SandboxPrepared(Err(failure));
    let released: Failed = |failure| Outcome::SandboxReleased(Err(failure));
    let torn_down: Failed = |failure| Outcome::TornDown(Err(failure));
    let written: Failed = |failure| Outcome::VolumesUpdated(Err(failure));
    let limited: Failed = |failure| Outcome::CgroupUpdated(Err(failure));
    let rows = [
        (Action::Start(0), started, CONFIG_ERROR, SYNC),
        (Action::Start(0), started, "CreateContainerError", SYNC),
        (Action::PrepareSandbox, prepared, FAILED_MOUNT, SYNC),
        (Action::ReleaseSandbox, released, "FailedKillPod", SYNC),
        (Action::TearDown, torn_down, FAILED_UNMOUNT, SYNC),
        (Action::UpdateVolumes, written, FAILED_MOUNT, VOLUME),
        (Action::UpdateCgroup(pod().record.cgroup_limits), limited, "Failed", RESIZE),
    ];
    for (action, outcome, reason, pauses) in rows {
        let mut pod = pod();
        let now = now();
        for pause in pauses {
            begin(&mut pod, &action);
            apply(&mut pod, outcome(Failure { reason, message: String::new(), transient: false }), now);
            let retries = [&pod.retry, &pod.volumes.retry, &pod.cgroup.retry, &pod.containers[0].retry];
            let mut retries = retries.into_iter().flatten();
            let waits = retries.next().unwrap().retry_at.duration_since(now.mono);
            assert_eq!((waits, retries.next()), (Duration::from_secs(pause), None), "{action:?} {reason}");
        }
    }
}

#[test]
fn the_newest_exited_instance_is_kept_and_older_ones_are_removed() {
    let mut pod = pod();
    for attempt in 0..3 {
        begin(&mut pod, &Action::Start(0));
        apply(&mut pod, Outcome::Started { index: 0, result: Ok(Box::new(instance(attempt))) }, now());
        exited(&mut pod, &instance(attempt).id, 1, exit(1), now());
    }
    let slot = &pod.containers[0];
    assert_eq!(slot.stale.iter().map(|instance| instance.attempt).collect::<Vec<_>>(), [0]);
    assert_eq!(slot.previous.as_ref().unwrap().attempt, 1);
    let written = exit(137);
    apply(&mut pod, Outcome::Reaped { index: 0, id: instance(1).id, result: Ok(written.clone()) }, now());
    assert_eq!(pod.containers[0].previous.as_ref().unwrap().exit(), Some(&written));
    apply(&mut pod, Outcome::Forgotten { index: 0, ids: vec![instance(0).id] }, now());
    assert!(pod.containers[0].stale.is_empty());
}

#[test]
fn an_exit_found_by_a_signal_is_collected_as_every_other_and_an_unknown_one_ends_at_once() {
    let stopped = |exit: Exit| {
        let mut pod = pod();
        pod.containers[0].succeed(instance(0));
        let stopping = Stopping { phase: StopPhase::Kill, ..Stopping::begin(Duration::ZERO, false, Instant::now()) };
        begin(&mut pod, &Action::Stop(0, stopping, KillCause::PodEnds));
        let (id, phase) = (Some(instance(0).id), StopPhase::Kill);
        let early_exit = apply(&mut pod, Outcome::Stopped { index: 0, id, phase, result: Ok(Some(exit)) }, now());
        (pod, early_exit)
    };
    let (pod, exit_seen) = stopped(exit(7));
    assert_eq!(exit_seen, Some((instance(0).id, exit(7))));
    assert!(pod.containers[0].is_running() && pod.containers[0].busy.is_none());
    assert!(
        pod.containers[0].stopping().unwrap().repeat_at.is_some(),
        "SIGKILL is repeated until the exit is collected"
    );
    let (pod, exit_seen) = stopped(unknown_exit(now()));
    assert_eq!(exit_seen, None);
    assert_eq!(pod.containers[0].instance.as_ref().unwrap().exit().unwrap().code, 137);
}

#[test]
fn a_refused_pod_has_no_sandbox_and_is_not_tried_again() {
    use crate::plan::{Step, plan};
    let mut pod = fixtures::pod("Always", &[], &["a"]);
    begin(&mut pod, &Action::PrepareSandbox);
    apply(&mut pod, Outcome::HostLacks(HostLack::AppArmor), now());
    assert!(pod.is_failed());
    assert_eq!(plan(&pod, fixtures::READY, Instant::now()), Step::Do(vec![Action::ReleaseSandbox]));
    begin(&mut pod, &Action::ReleaseSandbox);
    apply(&mut pod, Outcome::SandboxReleased(Ok(())), now());
    assert_eq!(plan(&pod, fixtures::READY, Instant::now()), Step::Wait(None));
}

#[test]
fn what_a_failed_start_left_is_removed_or_tried_again() {
    let mut pod = fixtures::pod("Always", &[], &["a"]);
    let id = ContainerId::derive(&limpet_model::pod::PodUid::new("0123"), "a", 0, 0);
    pod.containers[0].possible_orphan = Some(id);
    begin(&mut pod, &Action::Discard(0));
    let failure = Failure { reason: "FailedKillPod", message: "no answer".into(), transient: true };
    apply(&mut pod, Outcome::OrphanRemoved { index: 0, result: Err(failure) }, now());
    let slot = &pod.containers[0];
    assert!(slot.busy.is_none() && slot.possible_orphan.is_some() && slot.retry.is_some());
    apply(&mut pod, Outcome::OrphanRemoved { index: 0, result: Ok(()) }, now());
    assert!(pod.containers[0].possible_orphan.is_none() && pod.containers[0].retry.is_none());
}

#[test]
fn what_fails_while_a_driver_of_volumes_comes_is_tried_again_at_once() {
    let failed = |reason| Failure { reason, message: String::new(), transient: false };
    type Failed = fn(Result<(), Failure>) -> Outcome;
    let prepared: Failed = |result| Outcome::SandboxPrepared(result.map(|()| sandbox(&[])));
    let rows: [(Action, Failed, &str, bool); 4] = [
        (Action::TearDown, Outcome::TornDown, FAILED_UNMOUNT, true),
        (Action::ReleaseSandbox, Outcome::SandboxReleased, FAILED_UNMOUNT, true),
        (Action::PrepareSandbox, prepared, FAILED_MOUNT, true),
        (Action::TearDown, Outcome::TornDown, "FailedKillPod", false),
    ];
    for (action, outcome, reason, at_once) in rows {
        for comes in [true, false] {
            let mut pod = pod();
            begin(&mut pod, &action);
            if comes {
                pod.take_driver_change();
            }
            apply(&mut pod, outcome(Err(failed(reason))), now());
            assert_eq!(pod.retry.is_none(), comes && at_once, "{action:?} {reason} {comes}");
        }
    }
    let mut pod = pod();
    begin(&mut pod, &Action::Start(0));
    pod.take_driver_change();
    let failure = failed(crate::state::CONFIG_ERROR);
    apply(&mut pod, Outcome::Started { index: 0, result: Err(failure) }, now());
    assert!(pod.containers[0].retry.is_none());
}

#[test]
fn what_the_host_lacks_is_looked_for_again_unless_no_try_would_help_or_a_controller_makes_another_pod() {
    let rows = [
        (HostLack::SelinuxLabels, "SELinux", None),
        (HostLack::AppArmor, "AppArmor", None),
        (HostLack::AppArmorProfile("web".into()), "AppArmor", Some(10)),
        (HostLack::AppArmorUnknown("busy".into()), "AppArmor", Some(10)),
        (HostLack::Devices("gone".into()), "UnexpectedAdmissionError", Some(1)),
        (HostLack::Processors("too few".into()), "UnexpectedAdmissionError", Some(1)),
        (HostLack::WholeCores("half a core".into()), "SMTAlignmentError", Some(1)),
    ];
    for (lack, reason, again) in rows {
        for source in [SourceKind::File, SourceKind::Push, SourceKind::Http, SourceKind::Api] {
            let record = record_of("web", source, serde_json::json!({ "containers": [{ "name": "a" }] }));
            let (mut pod, now) = (PodState::new(record, now().wall), now());
            begin(&mut pod, &Action::PrepareSandbox);
            apply(&mut pod, Outcome::HostLacks(lack.clone()), now);
            assert_eq!(pod.sandbox, SandboxState::Absent { dirty: true }, "{lack:?}");
            let again = again.filter(|_| source != SourceKind::Api).map(Duration::from_secs);
            let retry = pod.retry.as_ref().map(|retry| (retry.reason, retry.retry_at.duration_since(now.mono)));
            assert_eq!(retry, again.map(|pause| (reason, pause)), "{lack:?} {source}");
            let refused = pod.verdict.as_ref().map(|verdict| (&*verdict.reason, verdict.is_final()));
            assert_eq!(refused, again.is_none().then_some((reason, true)), "{lack:?} {source}");
        }
    }
}
