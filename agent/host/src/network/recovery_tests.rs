#![allow(clippy::unwrap_used)]
//! Attachments whose record, configuration or plugin has changed since they were made.

use std::collections::BTreeMap;
use std::process::Command;

use serde_json::json;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::kernel::tests::{ip, namespace};
use super::tests::{Scripted, pod, unique_uid};
use super::*;

#[tokio::test]
async fn a_pod_is_not_attached_only_where_its_namespace_could_be_examined() {
    let node = Scripted::new();
    let uid = unique_uid();
    let (missing, pin) = (node.at("missing"), node.at("pin"));
    std::fs::write(&pin, "").unwrap();
    node.network.detach(&uid, &missing).await.unwrap();
    node.network.detach(&uid, &pin).await.unwrap();
    // The file is unreadable, so the interface and its address may still exist.
    let error = node.network.detach(&uid, &pin.join("netns")).await.unwrap_err().to_string();
    assert!(error.contains("cannot look into"), "{error}");
}

/// The interface that a plugin would create in the pod's namespace.
const INTERFACE_OF_POD: [&[&str]; 2] =
    [&["link", "add", "eth0", "type", "veth", "peer", "name", "peer0"], &["addr", "add", "10.1.0.5/16", "dev", "eth0"]];

#[tokio::test]
async fn what_a_damaged_record_does_not_say_is_asked_of_the_kernel() {
    let Some((pin, _alive)) = namespace(|| ()) else { return };
    let node = Scripted::new();
    let uid = unique_uid();
    node.network.attach(&pod(&uid, &pin)).await.unwrap();
    for args in INTERFACE_OF_POD {
        let enter = format!("--net={}", pin.display());
        assert!(Command::new("nsenter").arg(&enter).arg("ip").args(args).status().unwrap().success(), "{args:?}");
    }
    let file = node.at(&format!("state/{uid}"));
    let whole = std::fs::read(&file).unwrap();
    let attachment_now = async || node.network.attachment(&uid, &pin).await;
    let attachment = |is_recorded| {
        Some(Attachment { addresses: PodAddresses { ips: vec!["10.1.0.5".parse().unwrap()] }, is_recorded })
    };
    assert_eq!(attachment_now().await.unwrap(), attachment(true));
    for damage in [&b""[..], b"{", b"\0\0\0", &whole[..whole.len() / 2]] {
        std::fs::write(&file, damage).unwrap();
        assert_eq!(attachment_now().await.unwrap(), attachment(false), "{damage:?}");
    }
    std::fs::remove_file(&file).unwrap();
    assert_eq!(attachment_now().await.unwrap(), attachment(false), "no record");
    // A directory in the file's place cannot be read, and is not replaced.
    std::fs::create_dir(&file).unwrap();
    assert_eq!(attachment_now().await.unwrap(), attachment(true));
    std::fs::remove_dir(&file).unwrap();

    // The record is rewritten, so that the pod can be detached with everything that its plugins need.
    let port = PortMapping { host_port: 80, container_port: 80, protocol: "tcp".to_owned(), host_ip: String::new() };
    let wanted = AttachRequest { ports: vec![port], ..pod(&uid, &pin) };
    node.network.record_again(&wanted).await.unwrap();
    assert_eq!(attachment_now().await.unwrap(), attachment(true));
    node.calls();
    node.network.detach(&uid, &pin).await.unwrap();
    assert_eq!(node.calls(), ["two DEL netns", "one DEL netns"]);
    assert_eq!(node.stdin("one-DEL")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    assert!(std::fs::read_to_string(node.at("args")).unwrap().contains("K8S_POD_NAME=web-node;"));

    // If the kernel cannot be asked, the state is unknown, which differs from not attached.
    std::fs::write(&file, "").unwrap();
    let error = node.network.attachment(&uid, &node.at("netns")).await.unwrap_err().to_string();
    assert!(error.contains("cannot look into "), "{error}");
    std::fs::remove_file(&file).unwrap();
    assert_eq!(node.network.attachment(&uid, &node.at("gone")).await.unwrap(), None);
}

#[tokio::test]
async fn a_namespace_that_is_used_again_is_cleared_first() {
    for record in [Some("{"), None] {
        let Some((pin, _alive)) = namespace(|| INTERFACE_OF_POD.iter().for_each(|args| ip(args))) else { return };
        let node = Scripted::new();
        let uid = unique_uid();
        if let Some(record) = record {
            std::fs::create_dir(node.at("state")).unwrap();
            std::fs::write(node.at(&format!("state/{uid}")), record).unwrap();
        }
        node.network.attach(&pod(&uid, &pin)).await.unwrap();
        assert_eq!(node.calls(), ["two DEL netns", "one DEL netns", "one ADD netns", "two ADD netns"]);
        assert_eq!(kernel::addresses(&pin, INTERFACE).await.unwrap(), None, "the ADD would find eth0");
    }
}

#[tokio::test]
async fn a_pod_whose_attachment_never_came_up_goes_without_a_del() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    for command in ["ADD", "DEL"] {
        std::fs::write(node.at(&format!("fail-two-{command}")), "7").unwrap();
    }
    node.network.attach(&pod(&uid, &netns)).await.unwrap_err();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.network.attached().await.unwrap(), []);
}

#[tokio::test]
async fn a_corrected_configuration_detaches_what_the_recorded_one_cannot() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    std::fs::write(node.at("fail-two-DEL"), "7").unwrap();
    node.calls();
    node.network.detach(&uid, &netns).await.unwrap_err();
    assert_eq!(node.calls(), ["two DEL netns", "one DEL netns"], "the present configuration is the same");
    node.configure("net", "1.0.0", &["one"]);
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.calls(), ["two DEL netns", "one DEL netns", "one DEL netns"]);
    assert_eq!(node.stdin("one-DEL")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    assert_eq!(node.network.attached().await.unwrap(), []);

    // A busy plugin's DEL is not tried with another configuration. Another network's plugins do not get this result.
    std::fs::remove_file(node.at("fail-two-DEL")).unwrap();
    node.configure("net", "1.0.0", &["two"]);
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    node.configure("other", "1.0.0", &["one"]);
    std::fs::write(node.at("fail-two-DEL"), "11").unwrap();
    node.calls();
    node.network.detach(&uid, &netns).await.unwrap_err();
    assert_eq!(node.calls(), ["two DEL netns"]);
    std::fs::write(node.at("fail-two-DEL"), "7").unwrap();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!((node.calls().len(), node.stdin("one-DEL").get("prevResult")), (2, None));
}

#[tokio::test]
async fn a_pod_whose_plugin_was_uninstalled_goes_and_its_address_is_released_later() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    let (plugin, away) = (node.at("bin/one"), node.at("one"));
    std::fs::rename(&plugin, &away).unwrap();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(
        node.network.attached().await.unwrap(),
        std::slice::from_ref(&uid),
        "the next start of the agent finds it"
    );
    std::fs::rename(&away, &plugin).unwrap();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.network.attached().await.unwrap(), []);
}

#[tokio::test]
async fn a_list_of_the_first_versions_attaches_and_detaches() {
    for version in [None, Some("0.2.0")] {
        let node = Scripted::new();
        let mut config = json!({"name": "net", "plugins": [{"type": "one"}, {"type": "two"}]});
        if let Some(version) = version {
            config["cniVersion"] = json!(version);
        }
        std::fs::write(node.at("net.d/10-net.conflist"), config.to_string()).unwrap();
        std::fs::write(node.at("result"), r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.5/16"}}"#).unwrap();
        let (uid, netns) = (unique_uid(), node.at("netns"));
        let addresses = node.network.attach(&pod(&uid, &netns)).await.unwrap();
        assert_eq!(addresses.ips, ["10.1.0.5".parse::<IpAddr>().unwrap()]);
        assert_eq!(node.stdin("one-ADD")["cniVersion"], version.unwrap_or("0.1.0"));
        assert_eq!(node.stdin("two-ADD")["prevResult"]["ip4"]["ip"], "10.1.0.5/16");
        node.network.detach(&uid, &netns).await.unwrap();
        assert_eq!(node.stdin("one-DEL").get("prevResult"), None);
        assert_eq!(node.network.attached().await.unwrap(), []);
    }
}

#[tokio::test]
async fn only_what_a_plugin_declares_is_recorded_and_a_del_is_told_the_same() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    let annotations = BTreeMap::from([("a".to_owned(), "b".to_owned())]);
    let dns = DnsSettings { servers: vec!["10.0.0.10".to_owned()], ..DnsSettings::default() };
    let wanted = AttachRequest {
        dns: Some(dns),
        annotations: Some(&annotations),
        cgroup_path: Some("/kubepods/pod1".to_owned()),
        ..pod(&uid, &netns)
    };
    node.network.attach(&wanted).await.unwrap();
    let record = std::fs::read_to_string(node.at(&format!("state/{uid}"))).unwrap();
    assert!(["dns", "annotations", "cgroup_path"].iter().all(|field| !record.contains(field)), "{record}");

    let capabilities = json!({"dns": true, "io.kubernetes.cri.pod-annotations": true, "cgroupPath": true});
    let plugins = json!([{"type": "one", "capabilities": capabilities}]);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
    std::fs::write(node.at("net.d/10-net.conflist"), config.to_string()).unwrap();
    let uid = unique_uid();
    node.network.attach(&AttachRequest { uid: &uid, ..wanted }).await.unwrap();
    let told = json!({
        "dns": {"servers": ["10.0.0.10"]}, "io.kubernetes.cri.pod-annotations": {"a": "b"}, "cgroupPath": "/kubepods/pod1",
    });
    assert_eq!(node.stdin("one-ADD")["runtimeConfig"], told);
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.stdin("one-DEL")["runtimeConfig"], told);
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_fails_is_made_again() {
    let dir = tempfile::tempdir().unwrap();
    let conf_dir = dir.path().join("net.d");
    // The symlink leads to itself, so it can be neither watched nor read.
    std::os::unix::fs::symlink(&conf_dir, &conf_dir).unwrap();
    let network =
        Network::new(CniSettings { config_dir: conf_dir.clone(), binary_dirs: Vec::new() }, dir.path().join("state"));
    let (stop, (call, mut calls)) = (CancellationToken::new(), mpsc::unbounded_channel());
    let (watched, until) = (network.clone(), stop.clone());
    let watching = tokio::spawn(async move { watched.watch(until, || call.send(()).unwrap()).await });
    // The clock is virtual; the watch has failed by then.
    tokio::time::sleep(Duration::from_secs(1)).await;
    std::fs::remove_file(&conf_dir).unwrap();
    std::fs::create_dir(&conf_dir).unwrap();
    let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "ptp"});
    std::fs::write(conf_dir.join("10-n.conf"), config.to_string()).unwrap();
    let called = tokio::time::timeout(Duration::from_secs(600), calls.recv()).await;
    assert_eq!(called.ok(), Some(Some(())), "it was never watched again");
    assert!(network.status().is_ready());
    stop.cancel();
    watching.await.unwrap();
}
