#![allow(clippy::unwrap_used)]

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use jiff::Timestamp;
use limpet_model::process::ProcessHandle;
use std::time::Instant;

use super::super::fixtures::{self, NoProcesses, exit};
use super::*;
use crate::outcome::{Outcome, apply};
use limpet_model::container::{ContainerIdentity, ContainerState, Recorded};
use limpet_model::pod::PodUid;
use limpet_model::probe::ProbeRecord;
use limpet_model::stop_signal::StopSignal;

fn pod() -> PodState {
    fixtures::pod("Always", &[], &["a"])
}

fn now() -> Now {
    Now { mono: Instant::now(), wall: Timestamp::from_second(1000).unwrap() }
}

fn container(attempt: u32, state: ContainerState, task: Option<Task>) -> FoundContainer {
    let identity = ContainerIdentity {
        namespace: "default".into(),
        pod: "web-node".into(),
        uid: "0123".into(),
        container: "a".into(),
        init: false,
        attempt,
        source: "file".into(),
        origin: "web.yaml".into(),
        fingerprint: "f".into(),
        image: "app:1".into(),
        image_digest: "sha256:1".into(),
        log_path: String::new(),
        backoff_seconds: 40,
        pod_start: None,
        pod_ips: Vec::new(),
        stop_signal: StopSignal::parse("SIGQUIT").unwrap(),
        sandbox: Some("1".into()),
        pod_restarts: 0,
        resized_at: None,
        ephemeral: None,
        devices: Vec::new(),
        user: None,
        start_values: Default::default(),
    };
    FoundContainer {
        id: ContainerId::derive(&PodUid::new("0123"), "a", attempt, 0),
        recorded: Recorded { identity, state, probes: ProbeRecord::default(), manifest: Arc::from(&b"{}"[..]) },
        task,
        has_snapshot: false,
    }
}

fn started() -> ContainerState {
    ContainerState { started_at: Some(Timestamp::from_second(500).unwrap()), ..ContainerState::default() }
}

fn ended(code: i32) -> ContainerState {
    let exit = Exit { finished_at: Timestamp::from_second(990).unwrap(), ..exit(code) };
    ContainerState { exit: Some(exit), ..started() }
}

/// Every process is alive.
#[derive(Debug)]
struct AllAlive;

impl ProcessHandle for AllAlive {
    fn is_alive(&self) -> bool {
        true
    }

    fn ended(self: Arc<Self>) -> Pin<Box<dyn Future<Output = io::Result<()>> + Send>> {
        Box::pin(std::future::pending())
    }
}

impl Processes for AllAlive {
    fn open(&self, _: u32) -> Option<Arc<dyn ProcessHandle>> {
        Some(Arc::new(Self))
    }

    fn in_container(&self, _: &PodUid, _: &ContainerId) -> Option<u32> {
        Some(9)
    }

    fn is_in_container(&self, _: u32, _: &ContainerId) -> bool {
        true
    }
}

fn adopted(containers: Vec<FoundContainer>) -> (PodState, Vec<ContainerId>) {
    let mut pod = pod();
    let removed = adopt(&mut pod, containers, &NoProcesses, now());
    (pod, removed)
}

#[test]
fn a_running_task_is_adopted_with_its_attempt_and_predecessor() {
    let (pod, removed) =
        adopted(vec![container(1, started(), Some(Task::Running { pid: 7 })), container(0, ended(1), None)]);
    let slot = &pod.containers[0];
    assert!(slot.is_running() && removed.is_empty());
    assert_eq!((slot.instance.as_ref().unwrap().attempt, slot.previous.as_ref().unwrap().attempt), (1, 0));
    assert!(matches!(slot.previous.as_ref().unwrap().life, Life::Exited { reaped: true, .. }));
    assert_eq!(pod.start_time, Timestamp::UNIX_EPOCH);
    assert_eq!(slot.instance.as_ref().unwrap().stop_signal.to_string(), "SIGQUIT", "as recorded");
}

#[test]
fn a_recorded_exit_is_kept_and_its_back_off_continues() {
    let (pod, _) = adopted(vec![container(0, ended(3), None)]);
    let Life::Exited { exit, retry_at, reaped } = &pod.containers[0].instance.as_ref().unwrap().life else { panic!() };
    assert_eq!((exit.code, *reaped), (3, true));
    // Ten of its forty seconds have passed.
    let left = retry_at.duration_since(Instant::now());
    assert!(left <= Duration::from_secs(30) && left > Duration::from_secs(28), "{left:?}");
}

#[test]
fn an_exited_container_that_still_has_its_snapshot_is_cleaned_up_again() {
    let container_found = FoundContainer { has_snapshot: true, ..container(0, ended(0), None) };
    let (pod, _) = adopted(vec![container_found]);
    let instance = pod.containers[0].instance.as_ref().unwrap();
    assert!(matches!(instance.life, Life::Exited { reaped: false, .. }));
}

#[test]
fn a_missed_exit_is_137_and_restarts_at_once() {
    let (pod, _) = adopted(vec![container(0, started(), None)]);
    let instance = pod.containers[0].instance.as_ref().unwrap();
    let exit = instance.exit().unwrap();
    assert_eq!((exit.code, exit.reason.as_str()), (137, STATUS_UNKNOWN));
    let Life::Exited { retry_at, .. } = instance.life else { panic!() };
    assert!(retry_at <= Instant::now());
}

#[test]
fn the_exit_of_a_task_that_stopped_meanwhile_is_read_from_containerd() {
    let at = Timestamp::from_second(995).unwrap();
    let (pod, _) = adopted(vec![container(0, started(), Some(Task::Stopped { code: 0, at }))]);
    let instance = pod.containers[0].instance.as_ref().unwrap();
    assert_eq!(instance.exit().unwrap().reason, "Completed");
    assert!(matches!(instance.life, Life::Exited { reaped: false, .. }));
}

#[test]
fn a_container_that_never_ran_is_created_again() {
    for task in [None, Some(Task::Created)] {
        let (pod, removed) = adopted(vec![container(0, ContainerState::default(), task)]);
        assert!(pod.containers[0].instance.is_none());
        assert_eq!(removed.len(), 1);
        assert_eq!(pod.next_id(&pod.containers[0]), removed[0], "what is left of it is found under its id");
    }
}

#[test]
fn after_a_reconnect_running_tasks_are_kept_and_missing_ones_have_exited() {
    let (mut pod, _) = adopted(vec![container(0, started(), Some(Task::Running { pid: 7 }))]);
    adopt(&mut pod, vec![container(0, started(), Some(Task::Running { pid: 7 }))], &NoProcesses, now());
    assert!(pod.containers[0].is_running());
    adopt(&mut pod, Vec::new(), &NoProcesses, now());
    assert_eq!(pod.containers[0].instance.as_ref().unwrap().exit().unwrap().code, 137);
}

#[test]
fn a_task_missing_in_containerd_counts_as_running_while_its_process_lives() {
    let mut pod = pod();
    adopt(&mut pod, vec![container(0, started(), Some(Task::Running { pid: 7 }))], &AllAlive, now());
    adopt(&mut pod, vec![container(0, started(), None)], &AllAlive, now());
    assert!(pod.containers[0].is_running());
}

#[test]
fn an_exit_that_is_being_recorded_is_no_missed_one() {
    for containers in [vec![], vec![container(0, started(), None)]] {
        let (mut pod, _) = adopted(vec![container(0, started(), Some(Task::Running { pid: 7 }))]);
        let id = pod.containers[0].instance.as_ref().unwrap().id.clone();
        pod.exits_being_recorded.push(id.clone());
        adopt(&mut pod, containers, &NoProcesses, now());
        assert!(pod.containers[0].is_running(), "its exit is still to come");
        apply(&mut pod, Outcome::Ended { id, exit: exit(0) }, now());
        assert_eq!(pod.containers[0].instance.as_ref().unwrap().exit().map(|exit| exit.code), Some(0));
        assert!(pod.exits_being_recorded.is_empty());
    }
}

#[test]
fn a_record_that_was_forgotten_since_the_state_was_read_does_not_become_the_newest_again() {
    let (mut pod, _) = adopted(vec![container(3, started(), Some(Task::Running { pid: 7 }))]);
    let read_before = vec![container(1, ended(1), None), container(3, started(), Some(Task::Running { pid: 7 }))];
    adopt(&mut pod, read_before, &AllAlive, now());
    let slot = &pod.containers[0];
    assert_eq!((slot.instance.as_ref().unwrap().attempt, slot.stale.len(), slot.next_attempt()), (3, 1, 4));
}

#[test]
fn a_started_container_without_a_task_is_adopted_while_its_process_lives() {
    let mut pod = pod();
    let removed = adopt(&mut pod, vec![container(0, started(), None)], &AllAlive, now());
    let life = &pod.containers[0].instance.as_ref().unwrap().life;
    assert!(matches!(life, Life::Running { pid: 9, process: Some(_), .. }) && removed.is_empty(), "{life:?}");
    // Nothing looks for what is known to have ended, or has never run.
    let mut pod = fixtures::pod("Always", &[], &["a"]);
    adopt(&mut pod, vec![container(0, ended(1), None)], &AllAlive, now());
    assert!(!pod.containers[0].is_running());
    let mut pod = fixtures::pod("Always", &[], &["a"]);
    assert_eq!(adopt(&mut pod, vec![container(0, ContainerState::default(), None)], &AllAlive, now()).len(), 1);
}

#[test]
fn a_pod_without_sandbox_has_the_addresses_of_its_last_start() {
    let recorded = |attempt, started: i64, ips: &[&str], pod_start| {
        let mut ended_container = container(attempt, ended(0), None);
        ended_container.recorded.state.started_at = Some(Timestamp::from_second(started).unwrap());
        ended_container.recorded.identity.pod_ips = ips.iter().map(|ip| ip.parse().unwrap()).collect();
        ended_container.recorded.identity.pod_start = pod_start;
        ended_container
    };
    let first = Timestamp::from_second(100).unwrap();
    let cases: [(Vec<FoundContainer>, &[&str], i64); 4] = [
        (vec![recorded(0, 500, &["10.0.0.2"], Some(first))], &["10.0.0.2"], 100),
        (
            vec![recorded(1, 700, &["10.0.0.9", "fd00::9"], None), recorded(0, 500, &["10.0.0.2"], None)],
            &["10.0.0.9", "fd00::9"],
            700,
        ),
        (vec![recorded(1, 700, &[], None), recorded(0, 500, &["10.0.0.2"], None)], &["10.0.0.2"], 700),
        (vec![recorded(0, 500, &[], None)], &[], 500),
    ];
    for (containers, addresses, start) in cases {
        let mut pod = PodState::new(fixtures::record("Never", &[], &["a"]), now().wall);
        adopt(&mut pod, containers, &NoProcesses, now());
        let known: Vec<String> = pod.addresses().iter().map(ToString::to_string).collect();
        assert_eq!(
            (known.iter().map(String::as_str).collect::<Vec<_>>(), pod.start_time.as_second()),
            (addresses.to_vec(), start)
        );
    }
}

#[test]
fn an_address_known_to_the_agent_is_not_replaced_by_a_record() {
    let mut pod = pod();
    pod.sandbox = crate::state::SandboxState::Ready(fixtures::sandbox(&["10.0.0.7"]));
    pod.set_sandbox(crate::state::SandboxState::Absent { dirty: true });
    let mut old = container(0, ended(0), None);
    old.recorded.identity.pod_ips = vec!["10.0.0.2".parse().unwrap()];
    adopt(&mut pod, vec![old], &NoProcesses, now());
    assert_eq!(pod.addresses(), ["10.0.0.7".parse::<std::net::IpAddr>().unwrap()]);
}

#[test]
fn a_recorded_verdict_ends_the_pod_that_is_adopted() {
    let verdict = limpet_model::verdict::PodVerdict::deadline_exceeded();
    let mut failed = container(0, ended(143), None);
    failed.recorded.state.verdict = Some(verdict.clone());
    let mut adopted = pod();
    adopt(&mut adopted, vec![failed], &NoProcesses, now());
    assert_eq!(adopted.verdict, Some(verdict));
    assert!(adopted.is_failed() && crate::plan::is_finished(&adopted), "it is not run again");
    let mut other = pod();
    adopt(&mut other, vec![container(0, ended(143), None)], &NoProcesses, now());
    assert_eq!(other.verdict, None);
}

#[test]
fn only_what_this_agent_has_started_has_its_hook_still_to_be_run() {
    let now = now();
    for (answer_lost, expected) in [(true, PostStart::Due(now.mono)), (false, PostStart::Done)] {
        let mut pod = pod();
        let orphan = container(0, started(), Some(Task::Running { pid: 7 }));
        pod.containers[0].hooks.post_start = true;
        pod.containers[0].possible_orphan = answer_lost.then(|| orphan.id.clone());
        adopt(&mut pod, vec![orphan], &AllAlive, now);
        assert_eq!(pod.containers[0].instance.as_ref().unwrap().post_start, expected);
    }
}

#[test]
fn a_container_is_as_ready_as_its_record_says() {
    use limpet_model::probe::ProbeKind;
    // The record, and whether the container has started, is ready, and must be ended.
    let record = |started, ready, failed| ProbeRecord { started, ready, failed };
    let cases = [
        (record(false, false, None), (false, false, None)),
        (record(true, false, None), (true, false, None)),
        (record(true, true, None), (true, true, None)),
        (record(true, true, Some(ProbeKind::Liveness)), (true, true, Some(ProbeKind::Liveness))),
    ];
    let mut spec = pod().record.pod.clone();
    let main = &mut spec.spec.as_mut().unwrap().containers[0];
    let probe = || Some(k8s_openapi::api::core::v1::Probe::default());
    (main.liveness_probe, main.readiness_probe, main.startup_probe) = (probe(), probe(), probe());
    for (probes, expected) in cases {
        let mut pod = PodState::new(crate::fixtures::version(spec.clone()), Timestamp::UNIX_EPOCH);
        let mut running = container(1, started(), Some(Task::Running { pid: 7 }));
        running.recorded.probes = probes;
        adopt(&mut pod, vec![running], &NoProcesses, now());
        let instance = pod.containers[0].instance.as_ref().unwrap();
        let failed = instance.failed_probe().map(|(kind, _)| kind);
        assert_eq!((instance.is_started(), instance.is_ready(), failed), expected);
    }
    // A container that was ended for its probe, and exited with 0 while no agent was running, has failed.
    let mut pod = PodState::new(crate::fixtures::version(spec), Timestamp::UNIX_EPOCH);
    let mut recreated = container(1, ended(0), None);
    recreated.recorded.probes = record(true, true, Some(ProbeKind::Liveness));
    adopt(&mut pod, vec![recreated], &NoProcesses, now());
    assert!(pod.containers[0].instance.as_ref().unwrap().failed_probe().is_some());
}

#[test]
fn a_container_that_was_not_resized_yet_is_found_with_the_version_written_on_it() {
    let record = |cpu: &str| {
        let manifest = serde_json::json!({ "metadata": { "name": "web" }, "spec": { "containers": [
            { "name": "a", "image": "app:1", "resources": { "limits": { "cpu": cpu } } },
        ]}});
        let source = limpet_model::source::SourceKind::File;
        let record = restore(manifest.to_string().as_bytes(), "web.yaml", source, "edge1").unwrap();
        Arc::new(PodRecord { uid: PodUid::new("0123"), ..record })
    };
    let fingerprint = |cpu: &str| PodState::new(record(cpu), Timestamp::UNIX_EPOCH).containers[0].fingerprint.clone();
    // The version written on the container, and whether it is resized to that of cpu 2.
    for (cpu, resized) in [("1", true), ("2", false)] {
        let mut edited = container(0, started(), Some(Task::Running { pid: 7 }));
        edited.recorded.identity.fingerprint = fingerprint(cpu);
        edited.recorded.manifest = Arc::clone(&record(cpu).manifest);
        let mut pod = PodState::new(record("2"), Timestamp::UNIX_EPOCH);
        adopt(&mut pod, vec![edited], &AllAlive, now());
        let slot = &pod.containers[0];
        assert_eq!((slot.resize().is_some(), slot.is_current()), (resized, !resized), "{cpu}");
    }
}
