#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec};
use tokio::time::Instant;

use super::*;
use crate::network::PodAddresses;
use crate::pod::{Fingerprint, PodKey, PodRecord, PodUid};
use crate::runtime::record::ContainerId;
use crate::runtime::sandbox::Sandbox;
use crate::source::SourceKind;
use crate::worker::state::{Life, PodSandbox, Trouble};

const AROUND: Surroundings = Surroundings { runtime_ready: true, network_ready: true };

fn pod(policy: &str, inits: usize, mains: usize) -> PodState {
    let container = |name: String| Container { name, image: Some("app:1".into()), ..Container::default() };
    let spec = PodSpec {
        restart_policy: Some(policy.into()),
        init_containers: Some((0..inits).map(|index| container(format!("i{index}"))).collect()),
        containers: (0..mains).map(|index| container(format!("m{index}"))).collect(),
        ..PodSpec::default()
    };
    let record = PodRecord {
        key: PodKey::new("default", "web-node"),
        uid: PodUid::new("0123"),
        fingerprint: Fingerprint([1; 16]),
        immutable_fingerprint: Fingerprint([1; 16]),
        source: SourceKind::File,
        origin: Arc::from("web.yaml"),
        manifest: Arc::from(&b"{}"[..]),
        pod: Pod { spec: Some(spec), ..Pod::default() },
    };
    let mut state = PodState::new(Arc::new(record), Timestamp::UNIX_EPOCH);
    let addresses = PodAddresses { ips: vec!["10.0.0.2".parse().unwrap()] };
    state.sandbox = SandboxState::Ready(Arc::new(PodSandbox { sandbox: Sandbox::default(), addresses }));
    state
}

/// `None` runs; `Some(code)` ended.
fn put(pod: &mut PodState, index: usize, end: Option<i32>, pause: Duration) {
    let slot = &mut pod.containers[index];
    let mut instance = Instance {
        id: ContainerId::derive(&PodUid::new("0123"), &slot.name, 2),
        attempt: 2,
        fingerprint: slot.fingerprint.clone(),
        image: "registry:5000/app:1".into(),
        image_digest: "sha256:1".into(),
        log_path: PathBuf::new(),
        started_at: Some(Timestamp::UNIX_EPOCH),
        pause,
        out_of_memory: false,
        life: Life::Running { pid: 1, pidfd: None, stopping: None },
    };
    if let Some(code) = end {
        let exit = Exit { code, reason: "Error".into(), message: "bye".into(), finished_at: Timestamp::UNIX_EPOCH };
        instance.end(exit, now());
    }
    slot.instance = Some(instance);
}

fn now() -> Now {
    Now { mono: Instant::now(), wall: Timestamp::UNIX_EPOCH }
}

fn status(pod: &PodState) -> PodStatus {
    generate(pod, AROUND, &["192.0.2.1".parse().unwrap()], "BestEffort", now(), None)
}

#[test]
fn phases_follow_kubelets_table() {
    /// Not made yet, running, or ended with a code.
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
fn a_crash_loop_waits_with_its_last_end_in_sight() {
    let mut pod = pod("Always", 0, 1);
    put(&mut pod, 0, Some(3), Duration::from_secs(20));
    let status = status(&pod).container_statuses.unwrap().remove(0);
    let waiting = status.state.unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.unwrap(), "CrashLoopBackOff");
    assert!(waiting.message.unwrap().starts_with("back-off 20s restarting failed container=m0 pod=web-node_default("));
    assert_eq!(status.last_state.unwrap().terminated.unwrap().exit_code, 3);
    assert_eq!((status.restart_count, status.ready), (2, false));
    assert_eq!(status.image_id, "registry:5000/app@sha256:1");
}

#[test]
fn mains_wait_for_the_init_containers_and_say_so() {
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
fn an_image_that_cannot_be_had_is_the_reason() {
    let mut pod = pod("Always", 0, 1);
    pod.containers[0].image =
        ImageState::Failed(Trouble::after(None, "ErrImagePull", "not found".into(), Instant::now()));
    let state = status(&pod).container_statuses.unwrap().remove(0).state.unwrap().waiting.unwrap();
    assert_eq!((state.reason.as_deref(), state.message.as_deref()), (Some("ErrImagePull"), Some("not found")));
}

#[test]
fn a_condition_keeps_the_time_it_changed() {
    let mut pod = pod("Always", 0, 1);
    put(&mut pod, 0, None, Duration::ZERO);
    let first = status(&pod);
    let later = Now { mono: Instant::now(), wall: Timestamp::from_second(100).unwrap() };
    let second = generate(&pod, AROUND, &[], "BestEffort", later, Some(&first));
    assert_eq!(first.conditions, second.conditions);
    put(&mut pod, 0, Some(1), Duration::from_secs(10));
    let third = generate(&pod, AROUND, &[], "BestEffort", later, Some(&second));
    let ready = third.conditions.unwrap().into_iter().find(|c| c.type_ == "Ready").unwrap();
    assert_eq!((ready.status.as_str(), ready.last_transition_time.unwrap().0), ("False", later.wall));
}
