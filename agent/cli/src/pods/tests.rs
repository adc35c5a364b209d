#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;
use limpet_wire::pods::{FaultDocument, RejectionDocument};

const NOW: &str = "2026-01-10T00:00:00Z";

fn entry(name: &str, status: Value, note: Option<&str>) -> PodEntry {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": "0123456789abcdef",
                     "creationTimestamp": "2026-01-07T00:00:00Z"},
        "spec": {"containers": [{"name": "a", "image": "busybox:1"}], "nodeName": "edge1"},
        "status": status,
    });
    PodEntry {
        source: "file".to_owned(),
        origin: format!("{name}.yaml"),
        manifest_name: name.to_owned(),
        fingerprint: String::new(),
        note: note.map(str::to_owned),
        pod: serde_json::from_value(pod).unwrap(),
    }
}

fn running(restarts: i32) -> Value {
    json!({"phase": "Running", "podIP": "10.1.0.7", "containerStatuses": [{
        "name": "a", "ready": true, "restartCount": restarts, "image": "", "imageID": "", "state": {"running": {}},
        "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2026-01-09T22:00:00Z"}},
    }]})
}

fn args(arguments: &[&str]) -> PodsArgs {
    #[derive(clap::Parser)]
    struct Parse {
        #[command(flatten)]
        args: PodsArgs,
    }
    <Parse as clap::Parser>::parse_from(["pods"].iter().chain(arguments)).args
}

fn render(arguments: &[&str], pods: &[PodEntry]) -> String {
    let columns = Columns::new(&args(arguments), pods);
    let rows: Vec<_> = pods.iter().map(|entry| columns.row(entry, NOW.parse().unwrap())).collect();
    columns.table().render(&Screen { color: false, quiet: false }, &rows)
}

#[test]
fn the_table_shows_status_and_remarks() {
    let waiting = json!({"phase": "Pending", "containerStatuses": [{
        "name": "a", "ready": false, "restartCount": 0, "image": "", "imageID": "",
        "state": {"waiting": {"reason": "ImagePullBackOff"}},
    }]});
    let pods = [
        entry("modbus-edge1", running(1), Some("newer manifest rejected, see: limpet describe modbus-edge1")),
        entry("camera-edge1", waiting, None),
    ];
    assert_eq!(
        render(&[], &pods),
        "NAME           READY   STATUS             RESTARTS       AGE   SOURCE                   NOTE\n\
         modbus-edge1   1/1     Running            1 (120m ago)   3d    file modbus-edge1.yaml   \
         newer manifest rejected, see: limpet describe modbus-edge1\n\
         camera-edge1   0/1     ImagePullBackOff   0              3d    file camera-edge1.yaml\n"
    );
}

#[test]
fn the_namespace_and_more_columns_are_shown_when_useful() {
    let mut other = entry("b", running(0), None);
    other.pod.metadata.namespace = Some("kube-system".to_owned());
    let pods = [entry("a", running(0), None), other];
    assert!(render(&[], &pods).starts_with("NAMESPACE     NAME   READY"), "two namespaces");
    assert!(render(&["-n", "default"], &pods).starts_with("NAME "), "one was asked for");
    assert!(render(&["-A"], &pods[..1]).starts_with("NAMESPACE"), "asked for");
    assert_eq!(
        render(&["-o", "wide"], &pods[..1]),
        "NAME   READY   STATUS    RESTARTS   AGE   SOURCE        IP         NODE    UID        IMAGES      OWNER    NOTE\n\
         a      1/1     Running   0          3d    file a.yaml   10.1.0.7   edge1   01234567   busybox:1   <none>\n"
    );
    let mut owned = entry("a", running(0), None);
    owned.pod.metadata.annotations = Some([(OWNER_ANNOTATION.to_owned(), "Deployment/web".to_owned())].into());
    assert!(render(&["-o", "wide"], &[owned]).ends_with("busybox:1   Deployment/web\n"));
}

#[test]
fn manifests_and_sources_without_a_row_are_remarked() {
    let fault = |text: &str| FaultDocument {
        severity: "error".to_owned(),
        line: None,
        column: None,
        path: String::new(),
        message: String::new(),
        remedy: String::new(),
        text: text.to_owned(),
    };
    let rejected = |kept: &[&str]| RejectionDocument {
        origin: "web.yaml".to_owned(),
        faults: vec![fault("web.yaml:7:3: spec.containers: required"), fault("more")],
        kept: kept.iter().map(ToString::to_string).collect(),
        accepted: Vec::new(),
    };
    let beside = RejectionDocument { accepted: vec!["default/web-edge1".to_owned()], ..rejected(&[]) };
    let source = SourceDocument {
        source: "http".to_owned(),
        place: "https://fleet.example/pods".to_owned(),
        health: "unavailable".to_owned(),
        detail: "timeout".to_owned(),
        last_good: None,
        next_retry: None,
        remark: None,
        held_updates: Vec::new(),
        pods: 1,
        objects: 0,
        missing: Vec::new(),
        rejected: vec![rejected(&[]), rejected(&["default/web-edge1"]), beside],
    };
    assert_eq!(
        remarks(&[source]),
        [
            "rejected: web.yaml:7:3: spec.containers: required (and 1 more, see: limpet sources); nothing of it runs",
            "rejected: web.yaml:7:3: spec.containers: required (and 1 more, see: limpet sources); its other pods run",
            "source http cannot be read: timeout; its pods keep running",
        ]
    );
    assert_eq!(
        nothing(&[]),
        "No pods, and no manifest directory is configured (staticPodPath); apply some: limpet apply -f FILE"
    );
}

#[test]
fn the_note_of_a_deleted_pod_says_how_its_containers_exited() {
    let note = |status: Value| ended(&entry("web-edge1", status, None));
    let terminated = |code: i32| json!({ "terminated": { "exitCode": code } });
    let container = |name: &str, state| json!({ "name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state });
    let both = json!({ "containerStatuses": [container("side", json!({ "waiting": {} })), container("web", terminated(143))] });
    assert_eq!(note(both), "deleted; web exited with code 143");
    assert_eq!(note(json!({})), "deleted");
}
