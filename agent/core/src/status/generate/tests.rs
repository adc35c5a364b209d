#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use super::*;
use crate::fixtures::{self, READY, exit, now, on_network, sandbox};
use crate::state::{RefusedResize, ResizeRefusal, RetryState};
use limpet_model::container::ContainerId;
use limpet_model::pod::compute_resources::pod_limits;

/// A pod with an address: its init containers `i0`…, its containers `m0`….
fn pod(policy: &str, inits: usize, mains: usize) -> PodState {
    let names = |letter: &str, count: usize| (0..count).map(|index| format!("{letter}{index}")).collect::<Vec<_>>();
    let (inits, mains) = (names("i", inits), names("m", mains));
    let [inits, mains] = [&inits, &mains].map(|names| names.iter().map(String::as_str).collect::<Vec<_>>());
    let mut state = fixtures::pod(policy, &inits, &mains);
    state.sandbox = SandboxState::Ready(sandbox(&["10.0.0.2"]));
    state
}

/// `None`: running; `Some(code)`: exited.
fn put(pod: &mut PodState, index: usize, end: Option<i32>, pause: Duration) {
    let slot = &mut pod.containers[index];
    let mut instance = Instance { image: "registry:5000/app:1".into(), pause, ..fixtures::instance(slot, 2) };
    if let Some(code) = end {
        instance.end(exit(code), now());
    }
    slot.instance = Some(instance);
}

fn status(pod: &PodState) -> PodStatus {
    generate(pod, on_network(&["192.0.2.1"]), "BestEffort", now(), None)
}

#[test]
fn phases_follow_kubelets_table() {
    /// Not created yet, running, or exited with a code.
    type Main = Option<Option<i32>>;
    let cases: [(&str, &[Main], &str); 9] = [
        ("Always", &[None], "Pending"),
        ("Always", &[Some(None)], "Running"),
        ("Always", &[Some(None), None], "Pending"),
        ("Always", &[Some(Some(0))], "Running"),
        ("OnFailure", &[Some(Some(0))], "Succeeded"),
        ("OnFailure", &[Some(Some(1))], "Running"),
        ("Never", &[Some(Some(0))], "Succeeded"),
        ("Never", &[Some(Some(1)), Some(Some(0))], "Failed"),
        ("Never", &[Some(Some(1)), Some(None)], "Running"),
    ];
    for (policy, mains, phase) in cases {
        let mut pod = pod(policy, 0, mains.len());
        for (index, main) in mains.iter().enumerate() {
            if let Some(end) = main {
                put(&mut pod, index, *end, Duration::ZERO);
            }
        }
        assert_eq!(status(&pod).phase.unwrap(), phase, "{policy} {mains:?}");
    }
}

#[test]
fn a_crash_loop_waits_and_reports_its_last_exit() {
    let mut pod = pod("Always", 0, 1);
    put(&mut pod, 0, Some(3), Duration::from_secs(20));
    let status = status(&pod).container_statuses.unwrap().remove(0);
    let waiting = status.state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.unwrap(), "CrashLoopBackOff");
    assert!(waiting.message.unwrap().starts_with("back-off 20s restarting failed container=m0 pod=web-node_default("));
    assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 3);
    let mut longest = self::pod("Always", 0, 1);
    put(&mut longest, 0, Some(3), Duration::from_secs(300));
    let waiting = self::status(&longest).container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    assert!(waiting.message.unwrap().starts_with("back-off 5m0s restarting"));
    assert_eq!((status.restart_count, status.ready), (2, false));
    assert_eq!(status.image_id, "registry:5000/app@sha256:1");
}

#[test]
fn the_messages_of_all_containers_have_twelve_kibibytes_together() {
    let length = |containers: usize| {
        let mut pod = pod("Never", 0, containers);
        put(&mut pod, 0, Some(3), Duration::ZERO);
        // Each character has two bytes, and none is cut in the middle.
        let message = "ä".repeat(2048);
        if let crate::state::Life::Exited { exit, .. } = &mut pod.containers[0].instance.as_mut().unwrap().life {
            exit.message = message;
        }
        let first = status(&pod).container_statuses.unwrap().remove(0);
        first.state.unwrap().terminated.unwrap().message.unwrap().len()
    };
    assert_eq!([1, 3, 4, 7].map(length), [4096, 4096, 3072, 1754]);
}

#[test]
fn containers_wait_with_pod_initializing_for_the_init_containers() {
    let mut pod = pod("Always", 1, 1);
    put(&mut pod, 0, None, Duration::ZERO);
    let status = status(&pod);
    assert_eq!(status.phase.unwrap(), "Pending");
    let main = &status.container_statuses.unwrap()[0];
    assert_eq!(main.state.as_ref().unwrap().waiting.as_ref().unwrap().reason.as_deref(), Some("PodInitializing"));
    let initialized = status.conditions.unwrap().into_iter().find(|c| c.type_ == "Initialized").unwrap();
    assert_eq!(
        (initialized.status.as_str(), initialized.reason.as_deref()),
        ("False", Some("ContainersNotInitialized"))
    );
    assert_eq!(initialized.message.unwrap(), "containers with incomplete status: [i0]");
}

#[test]
fn a_failed_image_pull_is_the_waiting_reason() {
    let mut pod = pod("Always", 0, 1);
    pod.containers[0].image =
        ImageState::Failed(RetryState::after(None, "ErrImagePull", "not found".into(), Instant::now()));
    let state = status(&pod).container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    assert_eq!((state.reason.as_deref(), state.message.as_deref()), (Some("ErrImagePull"), Some("not found")));
}

#[test]
fn a_condition_keeps_its_transition_time() {
    let mut pod = pod("Always", 0, 1);
    put(&mut pod, 0, None, Duration::ZERO);
    let first = status(&pod);
    let later = Now { mono: Instant::now(), wall: Timestamp::from_second(100).unwrap() };
    let second = generate(&pod, READY, "BestEffort", later, Some(&first));
    assert_eq!(first.conditions, second.conditions);
    put(&mut pod, 0, Some(1), Duration::from_secs(10));
    let third = generate(&pod, READY, "BestEffort", later, Some(&second));
    let ready = third.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.last_transition_time.unwrap().0), ("False", later.wall));
}

#[test]
fn a_pod_keeps_its_addresses_when_its_sandbox_is_released() {
    use crate::outcome::{Outcome, apply, begin};
    use crate::plan::Action;
    let mut pod = pod("Never", 0, 1);
    put(&mut pod, 0, Some(0), Duration::ZERO);
    let ips = |pod: &PodState| status(pod).pod_ips.into_iter().flatten().map(|each| each.ip).collect::<Vec<_>>();
    assert_eq!(ips(&pod), ["10.0.0.2"]);
    begin(&mut pod, &Action::ReleaseSandbox);
    assert_eq!(ips(&pod), ["10.0.0.2"], "while it is being released");
    apply(&mut pod, Outcome::SandboxReleased(Ok(())), now());
    assert_eq!((ips(&pod), status(&pod).pod_ip.as_deref()), (vec!["10.0.0.2".to_owned()], Some("10.0.0.2")));

    // A new sandbox has its own addresses.
    pod.sandbox = SandboxState::Ready(sandbox(&["10.0.0.3", "fd00::3"]));
    let lost = sandbox(&["10.0.0.3"]);
    assert_eq!(ips(&pod), ["10.0.0.3", "fd00::3"]);
    pod.sandbox = SandboxState::Ready(Arc::clone(&lost));
    apply(&mut pod, Outcome::SandboxLost { index: 0, sandbox: lost }, now());
    assert_eq!(ips(&pod), ["10.0.0.3"], "lost, and not made anew yet");
    assert_eq!(ips(&fixtures::pod("Always", &[], &["m0"])), Vec::<String>::new(), "never had any");
}

#[test]
fn a_verdict_is_the_reason_and_the_message_of_the_status() {
    use limpet_model::node::Pressure;
    use limpet_model::verdict::{Eviction, PodVerdict};
    let deadline = || PodVerdict::deadline_exceeded();
    let rejected = || PodVerdict::rejected("SysctlForbidden", "forbidden sysctl: \"kernel.x\" not allowlisted");
    let waiting = || PodVerdict::waiting("OutOfpods", "Node has too many pods".to_owned());
    // The container as in `phases_follow_kubelets_table`, the verdict; phase, terminated with a code, listed
    // containers.
    type Case = (Option<Option<i32>>, PodVerdict, &'static str, Option<i32>, usize);
    let pressure = Eviction { pressure: Pressure::Memory, grace_seconds: 0 };
    let evicted = || PodVerdict::evicted_under_pressure(pressure, "The node was low on resource: memory. ".to_owned());
    let cases: [Case; 7] = [
        (None, waiting(), "Pending", None, 0),
        (None, rejected(), "Failed", None, 0),
        (None, deadline(), "Failed", Some(137), 1),
        (None, evicted(), "Failed", Some(137), 1),
        (Some(None), deadline(), "Running", None, 1),
        (Some(Some(143)), deadline(), "Failed", Some(143), 1),
        (Some(Some(0)), deadline(), "Failed", Some(0), 1),
    ];
    for (main, verdict, phase, code, listed) in cases {
        let mut pod = pod("Always", 0, 1);
        if let Some(end) = main {
            put(&mut pod, 0, end, Duration::from_secs(10));
        }
        pod.verdict = Some(verdict.clone());
        let status = status(&pod);
        assert_eq!(status.phase.as_deref(), Some(phase), "{main:?} {verdict:?}");
        assert_eq!((status.reason.as_deref(), status.message), (Some(&*verdict.reason), Some(verdict.message)));
        let containers = status.container_statuses.unwrap_or_default();
        let state = containers.first().and_then(|status| status.state.as_ref()?.terminated.as_ref());
        assert_eq!((state.map(|ended| ended.exit_code), containers.len()), (code, listed), "{main:?}");
    }
    // One container has run, and the other never has.
    let mut half = pod("Always", 0, 2);
    put(&mut half, 0, Some(0), Duration::from_secs(10));
    half.verdict = Some(deadline());
    let code = |it: ContainerStatus| it.state.and_then(|state| state.terminated).map(|ended| ended.exit_code);
    let codes: Vec<_> = status(&half).container_statuses.into_iter().flatten().map(code).collect();
    assert_eq!(codes, [Some(0), Some(137)]);
    // A sidecar that is being started may still run.
    for (verdict, after) in [(Some(deadline()), "Failed"), (None, "Succeeded")] {
        let mut ending = pod("Never", 0, 2);
        ending.containers[1].role = Role::Sidecar;
        put(&mut ending, 0, Some(0), Duration::from_secs(10));
        put(&mut ending, 1, Some(1), Duration::from_secs(10));
        ending.verdict = verdict;
        assert_eq!(status(&ending).phase.as_deref(), Some(after));
        ending.containers[1].busy = Some(OngoingAction::Starting(ContainerId::new("starting")));
        assert_eq!(status(&ending).phase.as_deref(), Some("Running"), "before it is {after}");
    }
    assert_eq!(
        (status(&pod("Always", 0, 1)).reason, rejected().message.starts_with("Pod was rejected: ")),
        (None, true)
    );
}

#[test]
fn the_last_status_of_a_terminated_pod_has_a_terminal_phase_and_its_exits() {
    // A container that never ran has kubelet's exit code.
    let cases: [(Option<Option<i32>>, &str, i32); 3] =
        [(Some(Some(0)), "Succeeded", 0), (Some(Some(143)), "Failed", 143), (None, "Failed", 137)];
    for (main, phase, code) in cases {
        let mut pod = pod("Always", 0, 1);
        if let Some(end) = main {
            put(&mut pod, 0, end, Duration::ZERO);
        }
        pod.end(Duration::from_secs(1), now());
        assert_ne!(status(&pod).phase.as_deref(), Some(phase), "while it is torn down");
        pod.set_sandbox(SandboxState::Gone);
        let last = status(&pod);
        assert_eq!(last.phase.as_deref(), Some(phase), "{main:?}");
        let terminated = last.container_statuses.unwrap().remove(0).state.unwrap().terminated;
        assert_eq!(terminated.map(|ended| ended.exit_code), Some(code));
    }
}

#[test]
fn a_container_is_shown_as_running_once_its_post_start_hook_is_over() {
    let shown = |post_start: PostStart, previous: bool| {
        let mut pod = pod("Always", 0, 1);
        put(&mut pod, 0, None, Duration::ZERO);
        let slot = &mut pod.containers[0];
        slot.instance.as_mut().unwrap().post_start = post_start;
        slot.previous = previous.then(|| {
            let mut before = fixtures::instance(slot, 1);
            before.end(exit(1), now());
            before
        });
        let status = status(&pod);
        let container = status.container_statuses.unwrap().remove(0);
        let waiting = container.state.unwrap().waiting.map(|waiting| waiting.reason.unwrap());
        let last = container.last_state.unwrap().terminated.is_some();
        (status.phase.unwrap(), waiting.unwrap_or_default(), container.ready, container.started.unwrap(), last)
    };
    let expected = |phase: &str, waiting: &str, up, last| (phase.to_owned(), waiting.to_owned(), up, up, last);
    let now = now().mono;
    assert_eq!(shown(PostStart::Done, false), expected("Running", "", true, false));
    assert_eq!(shown(PostStart::Due(now), false), expected("Pending", "ContainerCreating", false, false));
    assert_eq!(shown(PostStart::Running, true), expected("Running", "ContainerCreating", false, true));
    let failed = PostStart::Failed("it said no".into());
    assert_eq!(shown(failed, false), expected("Pending", "PostStartHookError", false, false));
}

#[test]
fn a_stop_signal_is_shown_where_something_asks_for_it() {
    let mut pod = pod("Always", 0, 1);
    put(&mut pod, 0, None, Duration::ZERO);
    let shown = |pod: &PodState| status(pod).container_statuses.unwrap().remove(0).stop_signal;
    assert_eq!(shown(&pod), None);
    pod.containers[0].instance.as_mut().unwrap().stop_signal = StopSignal::parse("SIGQUIT").unwrap();
    assert_eq!(shown(&pod).as_deref(), Some("SIGQUIT"));
}

#[test]
fn the_user_of_the_first_process_is_shown_once_it_is_known() {
    let mut pod = pod("Always", 0, 1);
    put(&mut pod, 0, None, Duration::ZERO);
    let shown = |pod: &PodState| status(pod).container_statuses.unwrap().remove(0).user;
    assert_eq!(shown(&pod), None);
    let user = ContainerUser { uid: 7, gid: 8, groups: vec![8, 9] };
    pod.containers[0].instance.as_mut().unwrap().user = Some(Arc::new(user));
    let linux = shown(&pod).unwrap().linux.unwrap();
    assert_eq!((linux.uid, linux.gid, linux.supplemental_groups.as_deref()), (7, 8, Some(&[8, 9][..])));
}

#[test]
fn readiness_and_start_of_containers_are_those_of_their_probes() {
    use k8s_openapi::api::core::v1::{Container, Probe};
    use limpet_model::probe::ProbeKind;
    let probe = || Some(Probe { success_threshold: Some(1), ..Probe::default() });
    let spec = Container { readiness_probe: probe(), startup_probe: probe(), ..Container::default() };
    let mut pod = pod("Always", 0, 2);
    put(&mut pod, 0, None, Duration::ZERO);
    put(&mut pod, 1, None, Duration::ZERO);
    pod.containers[1].instance.as_mut().unwrap().probes =
        crate::probe::Probes::begin(&spec, Duration::ZERO, now().mono);
    let seen = |pod: &PodState| {
        let status = status(pod);
        let containers = status.container_statuses.unwrap();
        let started_and_ready = |index: usize| (containers[index].started, containers[index].ready);
        let conditions = status.conditions.unwrap().into_iter();
        let conditions =
            conditions.filter(|condition| condition.type_ == "Ready" || condition.type_ == "ContainersReady");
        let conditions =
            conditions.map(|condition| (condition.status, condition.reason, condition.message)).collect::<Vec<_>>();
        assert_eq!((conditions.len(), &conditions[0]), (2, &conditions[1]));
        (started_and_ready(0), started_and_ready(1), conditions[0].clone())
    };
    let ready = ("True".to_owned(), None, None);
    let unready = (
        "False".to_owned(),
        Some("ContainersNotReady".to_owned()),
        Some("containers with unready status: [m1]".to_owned()),
    );
    let plain = (Some(true), true);
    assert_eq!(seen(&pod), (plain, (Some(false), false), unready.clone()));
    let take = |pod: &mut PodState, kind, passed| {
        pod.containers[1].instance.as_mut().unwrap().probes.as_mut().unwrap().apply_result(kind, Some(passed));
    };
    take(&mut pod, ProbeKind::Startup, true);
    assert_eq!(seen(&pod), (plain, (Some(true), false), unready.clone()));
    take(&mut pod, ProbeKind::Readiness, true);
    assert_eq!(seen(&pod), (plain, plain, ready));
    for _ in 0..3 {
        take(&mut pod, ProbeKind::Readiness, false);
    }
    assert_eq!(seen(&pod), (plain, (Some(true), false), unready));
}

#[test]
fn a_sidecar_counts_for_readiness_and_holds_back_a_final_phase() {
    let sidecar = serde_json::json!({ "name": "s", "restartPolicy": "Always" });
    let spec = serde_json::json!({ "spec": {
        "restartPolicy": "Never", "initContainers": [sidecar], "containers": [{ "name": "m" }],
    }});
    let mut pod = PodState::new(fixtures::version(serde_json::from_value(spec).unwrap()), Timestamp::UNIX_EPOCH);
    pod.sandbox = SandboxState::Ready(sandbox(&["10.0.0.2"]));
    // The sidecar's and the main container's state; the phase, and whether the pod is initialised and ready.
    type Instance = Option<Option<i32>>;
    let cases: [(Instance, Instance, &str, [&str; 2]); 6] = [
        (None, None, "Pending", ["False", "False"]),
        (Some(None), None, "Pending", ["True", "False"]),
        (Some(None), Some(None), "Running", ["True", "True"]),
        (Some(Some(1)), Some(None), "Running", ["True", "False"]),
        (Some(None), Some(Some(0)), "Running", ["True", "False"]),
        (Some(Some(1)), Some(Some(0)), "Succeeded", ["True", "False"]),
    ];
    for (side, main, phase, conditions) in cases {
        for (index, state) in [side, main].into_iter().enumerate() {
            pod.containers[index].instance = None;
            if let Some(end) = state {
                put(&mut pod, index, end, Duration::ZERO);
            }
        }
        let status = status(&pod);
        let condition = |name: &str| {
            status
                .conditions
                .iter()
                .flatten()
                .find(|condition| condition.type_ == name)
                .map(|condition| condition.status.clone())
                .unwrap()
        };
        assert_eq!(status.phase.as_deref(), Some(phase), "{side:?} {main:?}");
        assert_eq!([condition("Initialized"), condition("Ready")], conditions, "{side:?} {main:?}");
    }
}

#[test]
fn a_resize_that_is_refused_is_pending() {
    let mut pod = fixtures::ready(fixtures::pod("Always", &[], &["a"]));
    pod.containers[0].instance = Some(fixtures::instance(&pod.containers[0], 0));
    let condition = |pod: &PodState| {
        let pending =
            status(pod).conditions.unwrap().into_iter().find(|condition| condition.type_ == "PodResizePending");
        pending.map(|condition| (condition.status, condition.reason.unwrap(), condition.message.unwrap()))
    };
    assert_eq!(condition(&pod), None);
    for (refusal, reason) in [(ResizeRefusal::Deferred, "Deferred"), (ResizeRefusal::Infeasible, "Infeasible")] {
        let desired = Arc::clone(&pod.record);
        pod.refused_resize = Some(Box::new(RefusedResize { desired, refusal, message: "too much".into() }));
        assert_eq!(condition(&pod), Some(("True".into(), reason.into(), "too much".into())));
    }
}

#[test]
fn a_resize_is_in_progress_with_what_the_container_has_until_it_is_done() {
    let version = |cpu: &str, policy: &str| {
        let resources = serde_json::json!({ "limits": { "cpu": cpu } });
        let policy = serde_json::json!([{ "resourceName": "cpu", "restartPolicy": policy }]);
        let container =
            serde_json::json!({ "name": "a", "image": "app:1", "resources": resources, "resizePolicy": policy });
        let spec = serde_json::from_value(serde_json::json!({ "containers": [container] })).unwrap();
        fixtures::version(k8s_openapi::api::core::v1::Pod { spec: Some(spec), ..Default::default() })
    };
    let (record, restarting) = (|cpu| version(cpu, "NotRequired"), |cpu| version(cpu, "RestartContainer"));
    let condition = |pod: &PodState| {
        let in_progress =
            status(pod).conditions.unwrap().into_iter().find(|condition| condition.type_ == "PodResizeInProgress");
        in_progress.map(|condition| (condition.status, condition.reason, condition.message))
    };
    let shown = |pod: &PodState| {
        let resources = status(pod).container_statuses.unwrap()[0].resources.clone();
        resources.map(|resources| resources.limits.unwrap()["cpu"].0.clone())
    };
    let mut pod = fixtures::ready(PodState::new(record("1"), Timestamp::UNIX_EPOCH));
    pod.containers[0].instance = Some(fixtures::instance(&pod.containers[0], 0));
    assert_eq!((condition(&pod), shown(&pod)), (None, None));
    pod.update(record("2"));
    assert_eq!((condition(&pod), shown(&pod)), (Some(("True".into(), None, None)), Some("1".into())));
    let resize = pod.containers[0].instance.as_mut().unwrap().resize.as_mut().unwrap();
    resize.retry = Some(RetryState::transient("ResizeError", "too much".into(), Instant::now()));
    let failed = Some(("True".into(), Some("Error".into()), Some("too much".into())));
    assert_eq!((condition(&pod), shown(&pod)), (failed, Some("1".into())));
    pod.update(record("1"));
    assert_eq!((condition(&pod), shown(&pod)), (None, None), "an edit back");
    // Where the policy requires a restart, until the successor runs.
    pod.update(restarting("3"));
    assert_eq!((condition(&pod), shown(&pod)), (Some(("True".into(), None, None)), Some("1".into())));
    let exit = Exit { code: 0, reason: "Completed".into(), message: String::new(), finished_at: Timestamp::UNIX_EPOCH };
    pod.containers[0].instance.as_mut().unwrap().end(exit, now());
    assert_eq!(shown(&pod), Some("1".into()));
    let successor = fixtures::instance(&pod.containers[0], 1);
    pod.containers[0].succeed(successor);
    // The pod's own cgroup is last.
    assert_eq!((condition(&pod), shown(&pod)), (Some(("True".into(), None, None)), None));
    pod.cgroup.set = Some(pod_limits(pod.record.spec()));
    assert_eq!((condition(&pod), shown(&pod)), (None, None));
}

#[test]
fn readiness_gates_are_asked_once_all_containers_are_ready() {
    let mut pod = pod("Always", 0, 1);
    let with = |pod: &PodState, conditions: serde_json::Value| {
        let mut record = pod.record.pod.clone();
        let gates = serde_json::json!([{"conditionType": "a.io/x"}, {"conditionType": "a.io/y"}]);
        record.spec.as_mut().unwrap().readiness_gates = serde_json::from_value(gates).unwrap();
        let status = serde_json::json!({ "conditions": conditions });
        record.status = serde_json::from_value(status).unwrap();
        fixtures::version(record)
    };
    let condition_of = |pod: &PodState, name: &str| {
        let condition = status(pod).conditions.unwrap().into_iter().find(|condition| condition.type_ == name).unwrap();
        (condition.status, condition.reason.unwrap_or_default(), condition.message.unwrap_or_default())
    };
    let text = |status: &str, reason: &str, message: &str| (status.to_owned(), reason.to_owned(), message.to_owned());
    pod.record = with(&pod, serde_json::json!([]));
    assert_eq!(condition_of(&pod, "Ready").1, "ContainersNotReady");
    put(&mut pod, 0, None, Duration::ZERO);
    let missing = "corresponding condition of pod readiness gate \"a.io/x\" does not exist., \
                   corresponding condition of pod readiness gate \"a.io/y\" does not exist.";
    assert_eq!(condition_of(&pod, "Ready"), text("False", "ReadinessGatesNotReady", missing));
    assert_eq!(condition_of(&pod, "ContainersReady"), text("True", "", ""));
    let conditions =
        |x: &str| serde_json::json!([{"type": "a.io/x", "status": x}, {"type": "a.io/y", "status": "True"}]);
    pod.record = with(&pod, conditions("False"));
    let shut = "the status of pod readiness gate \"a.io/x\" is not \"True\", but False";
    assert_eq!(condition_of(&pod, "Ready"), text("False", "ReadinessGatesNotReady", shut));
    pod.record = with(&pod, conditions("True"));
    assert_eq!(condition_of(&pod, "Ready"), text("True", "", ""));
}
