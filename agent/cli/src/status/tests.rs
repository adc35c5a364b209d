#![allow(clippy::unwrap_used)]

use serde_json::{Value, json};

use super::*;

/// 2026-01-10T00:00:00Z.
const NOW: Timestamp = Timestamp::constant(1_768_003_200, 0);

fn pod(name: &str, phase: &str, ready: bool, waiting: Option<&str>) -> PodEntry {
    let state = match waiting {
        Some(reason) => json!({ "waiting": { "reason": reason } }),
        None => json!({ "running": {} }),
    };
    let condition = json!({ "type": "Ready", "status": if ready { "True" } else { "False" } });
    let container =
        json!({ "name": "a", "ready": ready, "restartCount": 0, "image": "", "imageID": "", "state": state });
    let pod = json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "containers": [{ "name": "a", "image": "busybox:1" }] },
        "status": { "phase": phase, "conditions": [condition], "containerStatuses": [container] },
    });
    PodEntry {
        source: "file".to_owned(),
        origin: format!("{name}.yaml"),
        manifest_name: name.to_owned(),
        fingerprint: String::new(),
        note: None,
        pod: serde_json::from_value(pod).unwrap(),
    }
}

fn report(status: Value, sources: Value, pods: &[PodEntry]) -> Report {
    Report::new(serde_json::from_value(status).unwrap(), serde_json::from_value(sources).unwrap(), pods, NOW)
}

fn source(kind: &str, health: &str, detail: &str) -> Value {
    json!({ "source": kind, "place": "x", "health": health, "detail": detail, "pods": 1, "rejected": [] })
}

fn shown(report: &Report) -> String {
    render(report, &Screen { color: false, quiet: false }, NOW)
}

#[test]
fn a_node_of_its_own_that_is_well() {
    let status = json!({
        "version": "0.1.0", "node": "edge1", "containerd": true, "certificates": [], "tokens": { "count": 0 },
        "started": "2026-01-07T00:00:00Z", "booted": "2025-12-29T00:00:00Z", "conditions": [],
    });
    let report = report(status, json!([source("file", "good", "inotify")]), &[pod("web", "Running", true, None)]);
    assert_eq!(
        shown(&report),
        "Agent:            limpet 0.1.0 on edge1\n\
         Started:          2026-01-07T00:00:00Z (3d ago)\n\
         Booted:           2025-12-29T00:00:00Z (12d ago)\n\
         containerd:       connected\n\
         Pods:             1: 1 running, 1 ready\n\
         Sources:\n\
         \x20 file:             watching (inotify), 1 pod\n\
         Apiserver:        no apiserver configured\n\
         Credentials:\n\
         \x20 tokens:           none\n\
         Conditions:       none\n"
    );
    assert_eq!(report.attention, [""; 0]);
    assert_eq!(render(&report, &Screen { color: false, quiet: true }, NOW), "", "nothing to say");
}

#[test]
fn a_node_that_is_not_well_says_all_of_it_and_what_needs_attention() {
    let certificate =
        |purpose: &str, from: &str, to: &str| json!({ "purpose": purpose, "notBefore": from, "notAfter": to });
    let status = json!({
        "version": "0.1.0", "node": "edge1", "containerd": false,
        "started": "2026-01-09T23:59:00Z", "conditions": ["DiskPressure"],
        "apiserver": {
            "server": "https://10.0.0.1:6443", "state": "offline", "cause": "certificate expired",
            "message": "Unauthorized (401)", "since": "2026-01-09T18:00:00Z", "lastSync": "2026-01-09T17:59:50Z",
            "unsent": { "statuses": 2, "mirrors": 0, "events": 13 },
        },
        "certificates": [
            certificate("client", "2025-01-09T18:00:00Z", "2026-01-09T18:00:00Z"),
            certificate("serving", "2025-02-01T00:00:00Z", "2026-02-01T00:00:00Z"),
        ],
        "tokens": { "count": 3, "firstExpiry": "2026-01-10T00:42:00Z" },
    });
    let mut file = source("file", "good", "inotify");
    file["rejected"] = json!([{ "origin": "a.yaml", "faults": [], "kept": [] }]);
    let mut api = source("api", "unavailable", "certificate expired: Unauthorized (401)");
    api["remark"] = json!("the database was damaged");
    let pods = [pod("web", "Running", true, None), pod("cam", "Pending", false, Some("ImagePullBackOff"))];
    let report = report(status, json!([file, api]), &pods);
    assert_eq!(
        shown(&report),
        "Agent:            limpet 0.1.0 on edge1\n\
         Started:          2026-01-09T23:59:00Z (60s ago)\n\
         containerd:       not connected\n\
         Pods:             2: 1 running, 1 ready, 1 failing\n\
         Sources:\n\
         \x20 file:             watching (inotify), 1 pod, 1 rejected\n\
         \x20 api:              certificate expired: Unauthorized (401), 1 pod\n\
         Apiserver:        offline since 6h: certificate expired: Unauthorized (401)\n\
         \x20 server:           https://10.0.0.1:6443\n\
         \x20 last sync:        2026-01-09T17:59:50Z (6h ago)\n\
         \x20 unsent:           2 pod statuses, 13 events\n\
         Credentials:\n\
         \x20 client:           certificate expired 6h ago\n\
         \x20 serving:          certificate expires in 22d\n\
         \x20 tokens:           3, the first expires in 42m\n\
         Conditions:       DiskPressure\n\
         \n\
         Needs attention:\n\
         \x20 containerd is not connected; pods keep running, none starts. See: systemctl status containerd\n\
         \x20 the apiserver is offline since 6h: certificate expired: Unauthorized (401); pods keep running\n\
         \x20 the client certificate expired 6h ago\n\
         \x20 the serving certificate expires in 22d and is not renewed\n\
         \x20 the node has DiskPressure; see: limpet events\n\
         \x20 source file: 1 manifest is rejected, see: limpet sources\n\
         \x20 the database was damaged\n\
         \x20 pod default/cam: ImagePullBackOff, see: limpet describe cam\n"
    );
    let document: Value = serde_json::from_str(&DocumentFormat::Json.render(&report).unwrap()).unwrap();
    assert_eq!(document["apiserver"]["cause"], "certificate expired");
    assert_eq!(document["pods"]["failing"][0]["name"], "cam");
    assert_eq!(document["attention"].as_array().unwrap().len(), 8);
    assert_eq!(render(&report, &Screen { color: false, quiet: true }, NOW).lines().count(), 8);
}

#[test]
fn a_certificate_needs_attention_once_its_renewal_is_overdue() {
    let held = |from: &str, to: &str| CertificateDocument {
        purpose: "client".to_owned(),
        not_before: Time(from.parse().unwrap()),
        not_after: Time(to.parse().unwrap()),
    };
    let table = [
        ("2026-01-01T00:00:00Z", "2026-01-12T00:00:00Z", None),
        ("2026-01-01T00:00:00Z", "2026-01-10T01:00:00Z", Some("expires in 60m and is not renewed")),
        ("2026-01-11T00:00:00Z", "2026-01-12T00:00:00Z", Some("is not valid before 2026-01-11T00:00:00Z")),
    ];
    for (from, to, expected) in table {
        let said = attention::certificate(&held(from, to), NOW);
        assert_eq!(said.is_some(), expected.is_some(), "{said:?}");
        assert!(said.unwrap_or_default().contains(expected.unwrap_or_default()));
    }
}
