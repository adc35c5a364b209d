#![allow(clippy::unwrap_used)]

use super::*;
use crate::fixtures::{READY, amounts, on_network};
use crate::node_state::NodePressure;
use limpet_model::pod::quantity::Amount;

fn node() -> NodeDescription {
    NodeDescription {
        name: "edge1".to_owned(),
        labels: BTreeMap::from([("site".to_owned(), "lab".to_owned())]),
        provider_id: Some("edge://7".to_owned()),
        taints: vec![NodeTaint { key: "edge".to_owned(), value: String::new(), effect: "NoSchedule".to_owned() }],
        external_cloud: None,
        architecture: "arm64",
        capacity: amounts("4", "1Gi", "1000"),
        allocatable: amounts("3900m", "924Mi", "900"),
        max_pods: 110,
        api_port: Some(10_250),
        runtime_handlers: vec![String::new(), "runsc".to_owned()],
        user_namespaces: [String::new()].into(),
        swap: 1 << 30,
        info: BTreeMap::from([("kernelVersion", "6.12".to_owned())]),
    }
}

fn report() -> NodeReport {
    NodeReport { state: READY, runtime_version: "containerd://2.1.9".to_owned(), ..NodeReport::default() }
}

fn image() -> NodeImage {
    NodeImage { names: vec!["a/b@sha256:c".to_owned(), "a/b:1".to_owned()], size: 70 }
}

fn at(second: i64) -> Timestamp {
    Timestamp::constant(second, 0)
}

/// A condition of a status: status, reason, message.
fn condition(status: &Value, name: &str) -> (String, String, String) {
    let all = status["conditions"].as_array().unwrap();
    let condition = all.iter().find(|condition| condition["type"] == name).unwrap();
    let text = |field: &str| condition[field].as_str().unwrap().to_owned();
    (text("status"), text("reason"), text("message"))
}

#[test]
fn a_node_is_registered_with_its_labels_taints_and_quantities() {
    let document = document(&node(), &report(), at(0));
    let labels = &document["metadata"]["labels"];
    let expected =
        [("kubernetes.io/hostname", "edge1"), ("kubernetes.io/os", "linux"), ("kubernetes.io/arch", "arm64")];
    for (name, value) in expected.into_iter().chain([("site", "lab")]) {
        assert_eq!(labels[name], value);
    }
    assert_eq!(document["spec"]["taints"], json!([{ "key": "edge", "value": "", "effect": "NoSchedule" }]));
    assert_eq!(document["spec"]["providerID"], "edge://7");
    let status = &document["status"];
    let capacity = json!({ "cpu": "4", "memory": "1048576Ki", "ephemeral-storage": "1000", "pods": "110" });
    let allocatable = json!({ "cpu": "3900m", "memory": "946176Ki", "ephemeral-storage": "900", "pods": "110" });
    assert_eq!((&status["capacity"], &status["allocatable"]), (&capacity, &allocatable));
    let mut huge = node();
    huge.capacity[Resource::HugePages(2 << 20)] = Amount::from_units(32 << 20);
    huge.capacity[Resource::HugePages(1 << 30)] = Amount::ZERO;
    let capacity = &super::document(&huge, &report(), at(0))["status"]["capacity"];
    assert_eq!((&capacity["hugepages-2Mi"], &capacity["hugepages-1Gi"]), (&json!("32Mi"), &json!("0")));
    let addresses =
        json!([{ "type": "InternalIP", "address": "192.0.2.1" }, { "type": "Hostname", "address": "edge1" }]);
    assert_eq!(status["addresses"], addresses);
    let info = &status["nodeInfo"];
    assert_eq!(
        (&info["containerRuntimeVersion"], &info["kernelVersion"]),
        (&json!("containerd://2.1.9"), &json!("6.12"))
    );
    assert_eq!((&info["operatingSystem"], &info["architecture"]), (&json!("linux"), &json!("arm64")));
    assert_eq!(status["daemonEndpoints"]["kubeletEndpoint"]["Port"], 10_250);
    let features = |users: bool| json!({ "recursiveReadOnlyMounts": true, "userNamespaces": users });
    let handlers =
        [("", true), ("runsc", false)].map(|(name, users)| json!({ "name": name, "features": features(users) }));
    assert_eq!(status["runtimeHandlers"], json!(handlers));
    assert_eq!(status["declaredFeatures"][0], "ExtendWebSocketsToKubelet");
    assert_eq!(status["declaredFeatures"].as_array().unwrap().len(), 4);
    let ready = ("True", "KubeletReady", "kubelet is posting ready status");
    assert_eq!(condition(status, "Ready"), (ready.0.into(), ready.1.into(), ready.2.into()));
}

#[test]
fn conditions_have_kubelets_reasons() {
    let says = |report: &NodeReport, name: &str| {
        let (status, reason, _) = condition(&super::status(&node(), report, &SeenNode::default(), at(0)), name);
        format!("{status} {reason}")
    };
    assert_eq!(says(&report(), "MemoryPressure"), "False KubeletHasSufficientMemory");
    assert_eq!(says(&report(), "DiskPressure"), "False KubeletHasNoDiskPressure");
    assert_eq!(says(&report(), "PIDPressure"), "False KubeletHasSufficientPID");
    let mut short = report();
    short.state.pressure = NodePressure::from_iter(Pressure::ALL);
    assert_eq!(says(&short, "MemoryPressure"), "True KubeletHasInsufficientMemory");
    assert_eq!(says(&short, "DiskPressure"), "True KubeletHasDiskPressure");
    assert_eq!(says(&short, "PIDPressure"), "True KubeletHasInsufficientPID");
    assert_eq!(says(&short, "Ready"), "True KubeletReady");
    let mut down = report();
    (down.state.runtime_ready, down.state.network_ready) = (false, false);
    down.network_problem = Some("no configuration".to_owned());
    assert_eq!(not_ready(&down).unwrap(), "container runtime is down");
    down.state.runtime_ready = true;
    assert_eq!(says(&down, "Ready"), "False KubeletNotReady");
    assert!(not_ready(&down).unwrap().ends_with("reason:NetworkPluginNotReady message:no configuration"));
    down.state.shutting_down = true;
    assert!(not_ready(&down).unwrap().ends_with("message:no configuration, node is shutting down]"));
    let mut leaving = report();
    leaving.state.shutting_down = true;
    assert_eq!(says(&leaving, "Ready"), "False KubeletNotReady");
    assert_eq!(not_ready(&leaving).unwrap(), "node is shutting down");
    assert!(!says_the_same(&report(), &leaving), "it is sent at once");
}

#[test]
fn a_condition_keeps_the_time_of_its_change() {
    let first = document(&node(), &report(), at(100));
    let mut seen = first.clone();
    seen["metadata"]["uid"] = json!("n1");
    let seen = SeenNode::read(&seen).unwrap();
    let mut down = report();
    down.state.runtime_ready = false;
    let patch = status_patch(&node(), &down, &seen, at(200));
    assert_eq!(patch["status"]["capacity"].get("hugepages-2Mi"), None);
    let mut huge = first.clone();
    (huge["metadata"]["uid"], huge["status"]["capacity"]["hugepages-2Mi"]) = (json!("n1"), json!("0"));
    let without = status_patch(&node(), &down, &SeenNode::read(&huge).unwrap(), at(200));
    assert_eq!(without["status"]["allocatable"].get("hugepages-2Mi"), Some(&Value::Null));
    let time = |name: &str, field: &str| {
        let all = patch["status"]["conditions"].as_array().unwrap();
        all.iter().find(|condition| condition["type"] == name).unwrap()[field]
            .as_str()
            .unwrap()
            .parse::<Timestamp>()
            .unwrap()
    };
    assert_eq!((time("Ready", "lastTransitionTime"), time("Ready", "lastHeartbeatTime")), (at(200), at(200)));
    assert_eq!(
        (time("PIDPressure", "lastTransitionTime"), time("PIDPressure", "lastHeartbeatTime")),
        (at(100), at(200))
    );
    assert_eq!(patch["status"]["addresses"][0], json!({ "$patch": "replace" }));
}

#[test]
fn a_cloud_controller_decides_the_addresses_of_an_external_clouds_node() {
    let external = |address: Option<&str>| NodeDescription {
        external_cloud: Some(ExternalCloud {
            given_addresses: address.map(|address| address.parse().unwrap()).into_iter().collect(),
        }),
        ..node()
    };
    let (bare, given) = (external(None), external(Some("192.0.2.7")));
    let registered = |node: &NodeDescription| document(node, &report(), at(0));
    let taint = json!({ "key": UNINITIALIZED, "value": "true", "effect": "NoSchedule" });
    assert_eq!(registered(&bare)["spec"]["taints"][1], taint);
    assert_eq!(registered(&node())["spec"]["taints"].as_array().unwrap().len(), 1);
    let hostname = json!({ "type": "Hostname", "address": "edge1" });
    assert_eq!(registered(&bare)["status"]["addresses"], json!([hostname]));
    let internal = json!({ "type": "InternalIP", "address": "192.0.2.7" });
    assert_eq!(registered(&given)["status"]["addresses"], json!([internal, hostname]));
    assert_eq!(registered(&given)["metadata"]["annotations"][PROVIDED_ADDRESS], "192.0.2.7");
    assert_eq!(registered(&bare)["metadata"]["annotations"], Value::Null);

    // What exists stays, including the controller's.
    let seen = |node: &NodeDescription| {
        let mut document = registered(node);
        document["metadata"]["uid"] = json!("n1");
        SeenNode::read(&document).unwrap()
    };
    let patch = status_patch(&given, &report(), &seen(&given), at(0));
    assert_eq!(patch["status"].get("addresses"), None);
    let unknown = SeenNode { addresses: Vec::new(), ..seen(&given) };
    assert_eq!(status_patch(&given, &report(), &unknown, at(0))["status"]["addresses"][1], internal);

    let annotation = |value: Value| Some(json!({ "metadata": { "annotations": { PROVIDED_ADDRESS: value } } }));
    assert_eq!(seen(&given).metadata_patch(&given, LabelCorrection::OfEveryNode), None);
    assert_eq!(seen(&bare).metadata_patch(&given, LabelCorrection::OfEveryNode), annotation(json!("192.0.2.7")));
    assert_eq!(
        seen(&given).metadata_patch(&node(), LabelCorrection::OfEveryNode),
        annotation(Value::Null),
        "out of date"
    );
}

#[test]
fn an_idle_node_reports_times_alone_and_what_others_change_is_put_right() {
    let report = NodeReport { images: vec![image()], ..report() };
    let created = document(&node(), &report, at(0));
    assert_eq!(created["status"]["images"], json!([{ "names": ["a/b@sha256:c", "a/b:1"], "sizeBytes": 70 }]));
    // Which fields a patch has, if somebody has changed that field of the Node.
    let fields = |changed: &str, value: Value, sent: Option<&NodeReport>| {
        let mut seen = created.clone();
        (seen["metadata"]["uid"], seen["status"][changed]) = (json!("n1"), value);
        let sent = sent.map(|report| SentReport {
            uid: "n1".to_owned(),
            report: report.clone(),
            at: Instant::now(),
            interval: Duration::ZERO,
        });
        let seen = SeenNode::read(&seen).unwrap();
        let heartbeat = heartbeat_patch(&node(), &report, &seen, sent.as_ref(), at(300));
        let patch = heartbeat.unwrap_or_else(|| status_patch(&node(), &report, &seen, at(300)));
        patch["status"].as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
    };
    let all = "addresses allocatable capacity conditions daemonEndpoints declaredFeatures features";
    let (full, with_images) =
        (format!("{all} nodeInfo runtimeHandlers"), format!("{all} images nodeInfo runtimeHandlers"));
    assert_eq!(fields("phase", Value::Null, Some(&report)), "conditions");
    assert_eq!(fields("phase", Value::Null, None), full, "nothing was sent");
    assert_eq!(fields("phase", Value::Null, Some(&self::report())), full, "the report is another one");
    assert_eq!(fields("nodeInfo", json!({}), Some(&report)), full);
    let mut conditions = created["status"]["conditions"].clone();
    conditions[0]["message"] = json!("somebody's");
    assert_eq!(fields("conditions", conditions, Some(&report)), full);
    assert_eq!(fields("images", json!([]), Some(&report)), with_images);
    let mut seen = created.clone();
    seen["metadata"]["uid"] = json!("n1");
    let sent =
        SentReport { uid: "n1".to_owned(), report: report.clone(), at: Instant::now(), interval: Duration::ZERO };
    let idle = heartbeat_patch(&node(), &report, &SeenNode::read(&seen).unwrap(), Some(&sent), at(300)).unwrap();
    assert_eq!(
        idle["status"]["conditions"][0],
        json!({ "type": "MemoryPressure", "lastHeartbeatTime": "1970-01-01T00:05:00Z" })
    );
}

#[test]
fn labels_that_every_node_has_are_corrected_and_others_left_alone() {
    let mut seen = document(&node(), &report(), at(0));
    seen["metadata"]["uid"] = json!("n1");
    seen["metadata"]["labels"]["more"] = json!("1");
    assert_eq!(SeenNode::read(&seen).unwrap().metadata_patch(&node(), LabelCorrection::OfEveryNode), None);
    let zone = "topology.kubernetes.io/zone";
    let of_zone = NodeDescription { labels: [(zone.to_owned(), "north".to_owned())].into(), ..node() };
    assert_eq!(
        SeenNode::read(&seen).unwrap().metadata_patch(&of_zone, LabelCorrection::OfEveryNode),
        None,
        "somebody may have changed it"
    );
    let patch = SeenNode::read(&seen).unwrap().metadata_patch(&of_zone, LabelCorrection::WithPlace);
    assert_eq!(patch, Some(json!({ "metadata": { "labels": { zone: "north" } } })));
    seen["metadata"]["labels"]["kubernetes.io/arch"] = json!("amd64");
    seen["metadata"]["labels"]["site"] = json!("elsewhere");
    let patch = SeenNode::read(&seen).unwrap().metadata_patch(&node(), LabelCorrection::OfEveryNode);
    assert_eq!(patch, Some(json!({ "metadata": { "labels": { "kubernetes.io/arch": "arm64" } } })));
    let others = SeenNode::read(&seen).unwrap().metadata_patch(&of_zone, LabelCorrection::None);
    assert_eq!(others, None, "the agent does not register it");
    assert_eq!(SeenNode::read(&json!({ "metadata": {} })), None, "no UID");
}

#[test]
fn the_status_is_sent_on_a_change_for_another_node_object_and_after_the_interval() {
    let (now, every) = (Instant::now(), Duration::from_secs(300));
    let frequencies = Frequencies { report: every, correction: Duration::from_secs(10) };
    let report_due = |sent: Option<&SentReport>, seen: &SeenNode, report: &NodeReport| {
        super::report_due(&node(), sent, seen, report, frequencies)
    };
    let sent = SentReport { uid: "n1".to_owned(), report: report(), at: now, interval: every };
    let seen = |uid: &str, ready: &str| {
        let mut node = document(&node(), &report(), at(0));
        node["metadata"]["uid"] = json!(uid);
        node["status"]["conditions"][3]["status"] = json!(ready);
        SeenNode::read(&node).unwrap()
    };
    let with = |change: fn(&mut NodeReport)| {
        let mut report = report();
        change(&mut report);
        report_due(Some(&sent), &seen("n1", "True"), &report)
    };
    assert_eq!(report_due(None, &seen("n1", "True"), &report()), None, "at once");
    assert_eq!(report_due(Some(&sent), &seen("n2", "True"), &report()), None, "the Node was made again");
    let corrected = report_due(Some(&sent), &seen("n1", "Unknown"), &report());
    let soon = Some(now + Duration::from_secs(10));
    assert_eq!(corrected, soon, "the cluster gave the node up");
    let edited = |edit: fn(&mut Value)| {
        let mut node = document(&node(), &report(), at(0));
        node["metadata"]["uid"] = json!("n1");
        edit(&mut node["status"]);
        report_due(Some(&sent), &SeenNode::read(&node).unwrap(), &report())
    };
    let unchanged = Some(now + every);
    assert_eq!(edited(|_| {}), unchanged);
    assert_eq!(edited(|status| status["allocatable"]["memory"] = json!("968884224")), unchanged, "the same amount");
    assert_eq!(edited(|status| status["capacity"]["example.com/of-others"] = json!("1")), unchanged);
    assert_eq!(edited(|status| status["capacity"]["cpu"] = json!("64")), soon);
    assert_eq!(edited(|status| status["allocatable"] = json!({})), soon);
    assert_eq!(edited(|status| status["capacity"]["hugepages-2Mi"] = json!("0")), soon, "a size that is gone");
    assert_eq!(edited(|status| status["addresses"][0]["address"] = json!("192.0.2.250")), soon);
    assert_eq!(edited(|status| status["volumesInUse"] = json!(["kubernetes.io/csi/a^b"])), soon);
    assert_eq!(with(|_| {}), Some(now + every));
    assert_eq!(with(|report| report.state.network.changes += 1), Some(now + every), "does not show");
    assert_eq!(with(|report| report.state.pressure = NodePressure::from_iter([])), Some(now + every), "nor does this");
    assert_eq!(with(|report| report.state.runtime_ready = false), None);
    assert_eq!(with(|report| report.state.pressure = NodePressure::from_iter([Pressure::Disk])), None);
    assert_eq!(with(|report| report.state = on_network(&["192.0.2.9"])), None);
    assert_eq!(with(|report| report.runtime_version = "containerd://2.2.0".to_owned()), None);
    assert_eq!(with(|report| report.network_problem = Some("gone".to_owned())), None);
    assert_eq!(with(|report| report.images = vec![image()]), None);
    let with_device = |report: &mut NodeReport| {
        report.devices.insert("example.com/serial".to_owned(), DeviceCount { capacity: 2, allocatable: 1 });
    };
    assert_eq!(with(with_device), None);
    assert_eq!(with(|report| report.volumes_in_use = ["kubernetes.io/csi/a^b".to_owned()].into()), None);
}

#[test]
fn reports_that_many_nodes_send_together_are_not_together_the_next_time() {
    let seconds = Duration::from_secs;
    let every = Frequencies { report: seconds(300), correction: seconds(10) };
    // How late, dice, interval.
    let table = [
        (None, 0, 150),
        (None, 500, 300),
        (None, 1_000, 450),
        (None, 1_001, 150),
        (Some(seconds(0)), 0, 300),
        (Some(seconds(10)), 1_000, 300),
        (Some(seconds(11)), 0, 150),
        (Some(seconds(7_200)), 1_000, 450),
    ];
    for (late, dice, interval) in table {
        assert_eq!(report_interval(every, late, dice), seconds(interval), "{late:?} {dice}");
    }
}

#[test]
fn a_boot_and_a_change_of_ready_are_events() {
    let mut node = node();
    node.info.insert("bootID", "b2".to_owned());
    let seen = |boot: &str, ready: Option<&str>| {
        let conditions: Vec<Value> = ready.iter().map(|status| json!({ "type": "Ready", "status": status })).collect();
        let status = json!({ "nodeInfo": { "bootID": boot }, "conditions": conditions });
        SeenNode::read(&json!({ "metadata": { "uid": "n1" }, "status": status })).unwrap()
    };
    let down = NodeReport { state: NodeState { runtime_ready: false, ..READY }, ..report() };
    let sent = |report: &NodeReport| {
        Some(SentReport { uid: "n1".to_owned(), report: report.clone(), at: Instant::now(), interval: Duration::ZERO })
    };
    let (ready, not_ready) = ("Node edge1 status is now: NodeReady", "Node edge1 status is now: NodeNotReady");
    let rebooted = "Node edge1 has been rebooted, boot id: b2";
    let cases: [(&str, _, _, &NodeReport, &[&str]); 8] = [
        ("it is registered", None, None, &report(), &[ready]),
        ("it is registered before containerd is there", None, None, &down, &[not_ready]),
        ("only the agent was restarted", None, Some(seen("b2", Some("True"))), &report(), &[]),
        ("the node was rebooted", None, Some(seen("b1", Some("Unknown"))), &report(), &[rebooted, ready]),
        ("a Node without a status", None, Some(seen("", None)), &report(), &[ready]),
        ("nothing changes", sent(&report()), Some(seen("b1", Some("Unknown"))), &report(), &[]),
        ("containerd is gone", sent(&report()), Some(seen("b2", Some("True"))), &down, &[not_ready]),
        ("and back", sent(&down), Some(seen("b2", Some("True"))), &report(), &[ready]),
    ];
    for (case, sent, seen, report, expected) in cases {
        let events = events(&node, sent.as_ref(), seen.as_ref(), report);
        assert!(events.iter().all(|event| event.is_warning == (event.reason == "Rebooted")), "{case}");
        assert_eq!(events.into_iter().map(|event| event.message).collect::<Vec<_>>(), expected, "{case}");
    }
}
