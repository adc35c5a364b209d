#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use limpet_model::container::{ContainerId, ContainerIdentity, ContainerState, FoundContainer, Recorded, Task};
use limpet_model::pod::ephemeral::{add, read, to_record};
use limpet_model::pod::{PodRecord, PodUid, Role};
use limpet_model::probe::ProbeRecord;
use limpet_model::stop_signal::StopSignal;
use serde_json::{Value, json};

use crate::adopt::adopt;
use crate::fixtures::{NoProcesses, READY, exit, image, instance, now, ready, version};
use crate::plan::{Action, Step, plan};
use crate::state::{ImageState, PodState, RetryState};
use crate::status::generate::generate;

fn web(spec: Value) -> PodState {
    let base = json!({ "restartPolicy": "Always", "containers": [{ "name": "main", "image": "app:1" }] });
    let mut merged = base.as_object().unwrap().clone();
    merged.extend(spec.as_object().unwrap().clone());
    let pod: Pod = serde_json::from_value(json!({ "spec": merged })).unwrap();
    let mut pod = ready(PodState::new(version(pod), Timestamp::UNIX_EPOCH));
    pod.containers[0].instance = Some(instance(&pod.containers[0], 0));
    pod
}

fn debugged(pod: &PodState, target: Option<&str>) -> Arc<PodRecord> {
    let container =
        json!({ "name": "debug", "image": "busybox", "imagePullPolicy": "Never", "targetContainerName": target });
    Arc::new(add(&pod.record, read(&container).unwrap()).unwrap())
}

fn actions(pod: &PodState) -> Vec<Action> {
    match plan(pod, READY, Instant::now()) {
        Step::Do(actions) => actions,
        Step::Wait(_) | Step::Finished => Vec::new(),
    }
}

#[test]
fn one_that_is_added_starts_and_touches_nothing_else() {
    let mut pod = web(json!({}));
    pod.add_ephemeral(debugged(&pod, None));
    assert_eq!((pod.containers.len(), pod.containers[1].role), (2, Role::Ephemeral));
    assert_eq!(actions(&pod), [Action::EnsureImage(1)]);
    pod.containers[1].image = image();
    assert_eq!(actions(&pod), [Action::Start(1)]);
}

#[test]
fn it_stays_over_an_edit_that_does_not_know_of_it() {
    let mut pod = web(json!({}));
    let published = Arc::clone(&pod.record);
    pod.add_ephemeral(debugged(&pod, None));
    let mut edited = published.pod.clone();
    edited.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    assert_eq!(pod.update(version(edited)), Vec::<usize>::new());
    assert!(pod.record.container("debug").is_some() && pod.containers.len() == 2);
    // The same, by the apiserver.
    let mut other = web(json!({}));
    let record = debugged(&other, None);
    assert_eq!(other.update(record), Vec::<usize>::new());
    assert_eq!(actions(&other), [Action::EnsureImage(1)]);
}

#[test]
fn it_waits_for_its_target_unless_all_processes_are_shared() {
    let mut pod = web(json!({}));
    pod.add_ephemeral(debugged(&pod, Some("main")));
    pod.containers[1].image = image();
    assert_eq!(actions(&pod), [Action::Start(1)]);
    let mut ended = instance(&pod.containers[0], 0);
    ended.end(exit(1), now());
    pod.containers[0].instance = Some(ended);
    assert!(!actions(&pod).contains(&Action::Start(1)));
    let status = generate(&pod, READY, "BestEffort", now(), None);
    let waiting = status.ephemeral_container_statuses.unwrap()[0].state.clone().unwrap().waiting.unwrap();
    assert_eq!(waiting.reason.as_deref(), Some("CreateContainerConfigError"));
    assert_eq!(waiting.message.as_deref(), Some("waits for container main to run: targetContainerName refers to it"));
    let mut sharing = web(json!({ "shareProcessNamespace": true }));
    sharing.add_ephemeral(debugged(&sharing, Some("main")));
    assert_eq!(sharing.target_of(&sharing.containers[1]), None);
}

#[test]
fn neither_its_end_nor_its_image_changes_what_is_said_of_the_pod() {
    let mut pod = web(json!({}));
    pod.add_ephemeral(debugged(&pod, None));
    let status = |pod: &PodState| generate(pod, READY, "BestEffort", now(), None);
    let ready = |status: &k8s_openapi::api::core::v1::PodStatus| {
        let conditions = status.conditions.iter().flatten();
        conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True")
    };
    let failed = RetryState::after(None, "ErrImagePull", "not found".to_owned(), Instant::now());
    pod.containers[1].image = ImageState::Failed(failed);
    let pulling = status(&pod);
    assert_eq!((pulling.phase.as_deref(), ready(&pulling)), (Some("Running"), true));
    let debug = &pulling.ephemeral_container_statuses.as_ref().unwrap()[0];
    let waiting = debug.state.as_ref().unwrap().waiting.as_ref().unwrap();
    assert_eq!((waiting.reason.as_deref(), debug.ready, debug.started), (Some("ErrImagePull"), false, None));
    let mut ended = instance(&pod.containers[1], 0);
    ended.end(exit(3), now());
    pod.containers[1].instance = Some(ended);
    let over = status(&pod);
    assert_eq!((over.phase.as_deref(), ready(&over)), (Some("Running"), true));
    let debug = &over.ephemeral_container_statuses.as_ref().unwrap()[0];
    assert_eq!(debug.state.as_ref().unwrap().terminated.as_ref().unwrap().exit_code, 3);
    assert_eq!(actions(&pod), [Action::Reap(1)], "it is not run again");
}

fn container_found(pod: &PodState, state: ContainerState, task: Option<Task>) -> FoundContainer {
    let definition = to_record(debugged(pod, None).ephemeral_of("debug").unwrap());
    let identity = ContainerIdentity {
        namespace: "default".into(),
        pod: "web-node".into(),
        uid: "0123".into(),
        container: "debug".into(),
        init: false,
        attempt: 0,
        source: "file".into(),
        origin: "web.yaml".into(),
        fingerprint: String::new(),
        image: "busybox".into(),
        image_digest: "sha256:1".into(),
        log_path: String::new(),
        backoff_seconds: 0,
        pod_start: None,
        pod_ips: Vec::new(),
        stop_signal: StopSignal::default(),
        sandbox: None,
        pod_restarts: 0,
        resized_at: None,
        ephemeral: definition,
        devices: Vec::new(),
        user: None,
        start_values: Default::default(),
    };
    FoundContainer {
        id: ContainerId::derive(&PodUid::new("0123"), "debug", 0, 0),
        recorded: Recorded { identity, state, probes: ProbeRecord::default(), manifest: Arc::from(&b"{}"[..]) },
        task,
        has_snapshot: true,
    }
}

#[test]
fn a_later_agent_finds_it_by_its_own_record_and_does_not_run_it_again() {
    let started = ContainerState { started_at: Some(Timestamp::UNIX_EPOCH), ..ContainerState::default() };
    let cases = [
        (started.clone(), Some(Task::Running { pid: 7 }), true),
        (started, None, false),
        // Its start was not recorded, and it may have run.
        (ContainerState::default(), None, false),
    ];
    for (state, task, runs) in cases {
        let mut pod = web(json!({}));
        let main = pod.containers[0].instance.take();
        let container = container_found(&pod, state, task);
        assert!(adopt(&mut pod, vec![container], &NoProcesses, now()).is_empty());
        pod.containers[0].instance = main;
        assert_eq!((pod.containers.len(), pod.containers[1].is_running()), (2, runs), "{task:?}");
        assert!(!actions(&pod).iter().any(|action| matches!(action, Action::Start(1) | Action::EnsureImage(1))));
    }
    let mut pod = web(json!({}));
    let container = container_found(&pod, ContainerState::default(), Some(Task::Created));
    assert_eq!(adopt(&mut pod, vec![container], &NoProcesses, now()).len(), 1, "it certainly never ran");
}
