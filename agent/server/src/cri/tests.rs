//! Pods of the snapshot as CRI shows them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::container::Run;
use super::*;
use limpet_core::fixtures::observed;
use limpet_core::status::observed::{ObservedContainer, ObservedPod, ObservedPods};
use limpet_model::pod::PodKey;
use limpet_node_api::runtime as cri;

/// The digest of every image in these tests.
const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub(super) fn pods<'a>(pods: impl IntoIterator<Item = &'a Arc<ObservedPod>>) -> ObservedPods {
    ObservedPods::new(pods.into_iter().map(|pod| (pod.record.key.clone(), Arc::clone(pod))).collect())
}

/// A pod with containers, each given by name, id and, if it runs, process.
pub(super) fn running(name: &str, uid: &str, containers: &[(&str, &str, Option<u32>)]) -> Arc<ObservedPod> {
    let status = |(container, id, pid): &(&str, &str, Option<u32>)| {
        let at = "2026-01-02T03:04:05Z";
        let state = match pid {
            Some(_) => json!({"running": {"startedAt": at}}),
            None => json!({"terminated": {
                "containerID": format!("containerd://{id}"), "exitCode": 3, "reason": "Error", "message": "why",
                "startedAt": at, "finishedAt": "2026-01-02T03:04:06Z",
            }}),
        };
        json!({
            "name": container, "image": "docker.io/library/app:v1", "imageID": format!("docker.io/library/app@{DIGEST}"),
            "containerID": format!("containerd://{id}"), "ready": pid.is_some(), "restartCount": 0, "state": state,
        })
    };
    let specs: Vec<_> = containers
        .iter()
        .map(|(container, ..)| {
            let mounts = json!([{"name": "data", "mountPath": "/data", "readOnly": true}]);
            json!({"name": container, "image": "app:v1", "volumeMounts": mounts})
        })
        .collect();
    let pod = observed(json!({
        "metadata": {"name": name, "uid": uid, "labels": {"app": "web"}, "annotations": {"note": "x"}},
        "spec": {"containers": specs, "volumes": [{"name": "data", "hostPath": {"path": "/srv/data"}}]},
        "status": {
            "phase": "Running", "podIP": "10.0.0.7", "podIPs": [{"ip": "10.0.0.7"}, {"ip": "fd00::7"}],
            "startTime": "2026-01-02T03:04:05Z", "containerStatuses": containers.iter().map(status).collect::<Vec<_>>(),
        },
    }));
    let observed = |(container, id, pid): &(&str, &str, Option<u32>)| {
        let log_path = format!("/var/log/pods/default_{name}_{uid}/{container}").into();
        let running = ObservedContainer { id: (*id).to_owned(), pid: *pid, log_path, restart_count: 0 };
        ((*container).to_owned(), running)
    };
    Arc::new(ObservedPod { containers: containers.iter().map(observed).collect(), ..ObservedPod::clone(&pod) })
}

/// The pod with these fields of its status replaced.
pub(super) fn with(pod: &ObservedPod, fields: Value) -> Arc<ObservedPod> {
    let mut status = serde_json::to_value(&pod.status).unwrap();
    status.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    Arc::new(ObservedPod { status: serde_json::from_value(status).unwrap(), ..pod.clone() })
}

#[test]
fn a_pod_is_a_sandbox_with_its_own_labels_and_kubelets() {
    let web = running("web", "1", &[("main", "a", Some(7))]);
    let status = sandbox::status(&web);
    assert_eq!(status.id, sandbox::item(&web).id);
    assert!(status.id.len() == 64 && status.id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{}", status.id);
    assert_eq!(status.state, cri::PodSandboxState::SandboxReady as i32);
    let labels = [
        ("app", "web"),
        ("io.kubernetes.pod.name", "web"),
        ("io.kubernetes.pod.namespace", "default"),
        ("io.kubernetes.pod.uid", "1"),
    ];
    assert_eq!(status.labels, labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    assert_eq!(status.annotations["note"], "x");
    let network = status.network.unwrap();
    assert_eq!((&*network.ip, &*network.additional_ips[0].ip), ("10.0.0.7", "fd00::7"));
    assert_eq!(status.created_at, 1_767_323_045_000_000_000);

    for (fields, state) in [
        (json!({"phase": "Succeeded"}), cri::PodSandboxState::SandboxNotready),
        (json!({"phase": "Pending"}), cri::PodSandboxState::SandboxReady),
    ] {
        assert_eq!(sandbox::state(&with(&web, fields.clone())), state, "{fields}");
    }
    let waiting = with(&running("web", "1", &[]), json!({"phase": "Pending", "podIP": null}));
    assert_eq!(sandbox::state(&waiting), cri::PodSandboxState::SandboxNotready, "it has no network yet");
}

#[test]
fn a_container_is_shown_with_image_log_and_mounts() {
    let web = running("web", "1", &[("main", "a", Some(7))]);
    let runs = Run::all(&web);
    let [run] = &runs[..] else { panic!("one run") };
    let (item, status) = (run.item(), run.status());
    assert_eq!((item.state, status.state), (1, 1), "running");
    assert_eq!((&*item.image_ref, &*item.image.unwrap().image), (DIGEST, DIGEST));
    assert_eq!(status.image_ref, format!("docker.io/library/app@{DIGEST}"));
    assert_eq!(status.image.unwrap().image, "docker.io/library/app:v1");
    assert_eq!(status.log_path, "/var/log/pods/default_web_1/main/0.log");
    let mount = &status.mounts[0];
    assert_eq!((&*mount.container_path, &*mount.host_path, mount.readonly), ("/data", "/srv/data", true));
    assert_eq!(status.started_at, 1_767_323_045_000_000_000);
    assert_eq!((status.finished_at, status.exit_code), (0, 0));
}

#[test]
fn a_container_that_waits_for_its_restart_has_ended_and_one_that_was_restarted_has_two_runs() {
    let ended = running("web", "1", &[("main", "a", None)]);
    let of_a = serde_json::to_value(&ended.status).unwrap()["containerStatuses"][0]["state"].clone();
    let status = |state: Value, id: &str| {
        json!({"containerStatuses": [{
            "name": "main", "image": "app:v1", "imageID": format!("app@{DIGEST}"), "ready": false, "restartCount": 0,
            "containerID": format!("containerd://{id}"), "state": state, "lastState": of_a,
        }]})
    };
    let waits = with(&ended, status(json!({"waiting": {"reason": "CrashLoopBackOff"}}), "a"));
    let runs = Run::all(&waits);
    let [run] = &runs[..] else { panic!("one run") };
    let shown = run.status();
    assert_eq!((shown.state, shown.exit_code, &*shown.reason, &*shown.message), (2, 3, "Error", "why"));
    assert_eq!(shown.finished_at - shown.started_at, 1_000_000_000);

    let mut again = ObservedPod::clone(&with(&ended, status(json!({"running": {}}), "b")));
    let main = again.containers.get_mut("main").unwrap();
    (main.id, main.pid, main.restart_count) = ("b".to_owned(), Some(8), 1);
    let runs = Run::all(&again);
    let shown: Vec<_> =
        runs.iter().map(|run| (run.id, run.state() as i32, run.item().metadata.unwrap().attempt)).collect();
    assert_eq!(shown, [("b", 1, 1), ("a", 2, 0)]);
    assert!(runs[1].status().log_path.ends_with("/main/0.log"), "{}", runs[1].status().log_path);
}

#[test]
fn filters_and_shortened_ids_select() {
    let web = running("web", "1", &[("main", "aa1", Some(7)), ("side", "ab2", None)]);
    let db = running("db", "2", &[("main", "bc3", Some(8))]);
    let all = pods([&web, &db]);
    let ids = |filter: cri::ContainerFilter| -> Vec<_> {
        selection::containers(&all, Some(&filter)).map(|run| run.id.to_owned()).collect()
    };
    let none = cri::ContainerFilter::default;
    let labels = [("io.kubernetes.pod.name".to_owned(), "web".to_owned())].into();
    assert_eq!(ids(none()), ["bc3", "aa1", "ab2"]);
    assert_eq!(ids(cri::ContainerFilter { id: "a".into(), ..none() }), ["aa1", "ab2"]);
    assert_eq!(ids(cri::ContainerFilter { state: Some(cri::ContainerStateValue { state: 2 }), ..none() }), ["ab2"]);
    assert_eq!(ids(cri::ContainerFilter { pod_sandbox_id: identity::sandbox_id(&db)[..13].into(), ..none() }), ["bc3"]);
    assert_eq!(ids(cri::ContainerFilter { label_selector: labels, ..none() }), ["aa1", "ab2"]);
    let by_label = |value: &str| cri::PodSandboxFilter {
        label_selector: [("io.kubernetes.pod.uid".to_owned(), value.to_owned())].into(),
        ..cri::PodSandboxFilter::default()
    };
    assert_eq!(selection::pods(&all, Some(&by_label("2"))).count(), 1);
    assert_eq!(selection::pods(&all, Some(&by_label("3"))).count(), 0);

    assert_eq!(selection::container(&all, "b").unwrap().id, "bc3");
    for (id, why) in [("a", "more than one"), ("c", "not found"), ("", "not found")] {
        let status = selection::container(&all, id).unwrap_err();
        assert!(status.code() == tonic::Code::NotFound && status.message().contains(why), "{id}: {status}");
    }
    let pod = selection::pod(&all, &identity::sandbox_id(&web)).unwrap();
    assert_eq!(pod.record.key, PodKey::new("default", "web"));
}
