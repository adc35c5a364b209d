#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

fn container(name: &str, ready: bool, restarts: i32, state: Value) -> Value {
    json!({"name": name, "ready": ready, "restartCount": restarts, "image": "", "imageID": "", "state": state})
}

fn running() -> Value {
    json!({"running": {"startedAt": "2026-01-01T00:00:00Z"}})
}

fn waiting(reason: &str) -> Value {
    json!({"waiting": {"reason": reason}})
}

fn terminated(code: i32, reason: &str, signal: i32) -> Value {
    json!({"terminated": {"exitCode": code, "reason": reason, "signal": signal}})
}

/// A pod with these statuses, and the same containers in its spec.
fn pod(phase: &str, init: Vec<Value>, main: Vec<Value>) -> Value {
    let spec_of = |statuses: &[Value]| statuses.iter().map(|each| json!({"name": each["name"]})).collect::<Vec<_>>();
    json!({
        "metadata": {"name": "p"},
        "spec": {"initContainers": spec_of(&init), "containers": spec_of(&main)},
        "status": {"phase": phase, "initContainerStatuses": init, "containerStatuses": main},
    })
}

fn summary(pod: &Value) -> Summary {
    Summary::new(&serde_json::from_value(pod.clone()).unwrap())
}

#[test]
fn status_matches_kubectls() {
    let a = |ready, state| container("a", ready, 0, state);
    let b = |ready, state| container("b", ready, 0, state);
    let pending_main = || vec![a(false, waiting("PodInitializing"))];
    for (expected, ready, pod) in [
        ("Running", "2/2", pod("Running", vec![], vec![a(true, running()), b(true, running())])),
        ("Running", "1/2", pod("Running", vec![], vec![a(true, running()), b(false, running())])),
        ("Pending", "0/0", pod("Pending", vec![], vec![])),
        ("ContainerCreating", "0/1", pod("Pending", vec![], vec![a(false, waiting("ContainerCreating"))])),
        ("ErrImagePull", "0/1", pod("Pending", vec![], vec![a(false, waiting("ErrImagePull"))])),
        (
            "CrashLoopBackOff",
            "1/2",
            pod("Running", vec![], vec![a(false, waiting("CrashLoopBackOff")), b(true, running())]),
        ),
        ("Error", "0/1", pod("Failed", vec![], vec![a(false, terminated(1, "Error", 0))])),
        ("Completed", "0/1", pod("Succeeded", vec![], vec![a(false, terminated(0, "Completed", 0))])),
        ("ExitCode:3", "0/1", pod("Failed", vec![], vec![a(false, terminated(3, "", 0))])),
        ("Signal:9", "0/1", pod("Failed", vec![], vec![a(false, terminated(137, "", 9))])),
        ("NotReady", "1/2", pod("Running", vec![], vec![a(false, terminated(0, "Completed", 0)), b(true, running())])),
        ("Init:0/1", "0/1", pod("Pending", vec![container("i", false, 0, running())], pending_main())),
        ("Init:0/1", "0/1", pod("Pending", vec![container("i", false, 0, waiting("PodInitializing"))], pending_main())),
        (
            "Init:ImagePullBackOff",
            "0/1",
            pod("Pending", vec![container("i", false, 0, waiting("ImagePullBackOff"))], pending_main()),
        ),
        (
            "Init:Error",
            "0/1",
            pod("Pending", vec![container("i", false, 0, terminated(1, "Error", 0))], pending_main()),
        ),
        (
            "Init:ExitCode:2",
            "0/1",
            pod("Pending", vec![container("i", false, 0, terminated(2, "", 0))], pending_main()),
        ),
        (
            "PodInitializing",
            "0/1",
            pod("Pending", vec![container("i", true, 0, terminated(0, "Completed", 0))], pending_main()),
        ),
        (
            "Init:1/2",
            "0/1",
            pod(
                "Pending",
                vec![container("i", true, 0, terminated(0, "Completed", 0)), container("j", false, 0, running())],
                pending_main(),
            ),
        ),
    ] {
        let summary = summary(&pod);
        assert_eq!(summary.status, expected, "{pod}");
        assert_eq!(format!("{}/{}", summary.ready, summary.total), ready, "{expected}");
    }
}

#[test]
fn terminating_pods_and_pods_with_a_reason_are_shown_as_such() {
    let mut terminating = pod("Running", vec![], vec![container("a", true, 0, running())]);
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(summary(&terminating).status, "Terminating");
    terminating["status"]["phase"] = json!("Succeeded");
    assert_ne!(summary(&terminating).status, "Terminating", "a finished pod is not terminating");
    let mut evicted = pod("Failed", vec![], vec![]);
    evicted["status"]["reason"] = json!("Evicted");
    assert_eq!(summary(&evicted).status, "Evicted");
    let mut half_done = pod(
        "Running",
        vec![],
        vec![container("a", false, 0, terminated(0, "Completed", 0)), container("b", true, 0, running())],
    );
    half_done["status"]["conditions"] = json!([{"type": "Ready", "status": "True"}]);
    assert_eq!(summary(&half_done).status, "Running");
    assert_eq!(summary(&json!({"metadata": {"name": "bare"}})).status, "Unknown");
}

#[test]
fn sidecars_count_and_finished_init_containers_do_not() {
    let mut sidecar = container("s", true, 2, running());
    sidecar["started"] = json!(true);
    let mut restarted = container("a", true, 3, running());
    restarted["lastState"] = json!({"terminated": {"exitCode": 1, "finishedAt": "2026-01-01T00:00:05Z"}});
    let mut pod =
        pod("Running", vec![container("i", true, 7, terminated(0, "Completed", 0)), sidecar], vec![restarted]);
    pod["spec"]["initContainers"][1]["restartPolicy"] = json!("Always");
    let summary = summary(&pod);
    assert_eq!((summary.ready, summary.total, summary.restarts), (2, 2, 5));
    assert_eq!(summary.last_restart, Some("2026-01-01T00:00:05Z".parse().unwrap()));
    assert_eq!(summary.tone(), Tone::Good);
}
