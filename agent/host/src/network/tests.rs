#![allow(clippy::unwrap_used)]
//! Attachments: with the real bridge, host-local and portmap plugins if they are installed and the test runs as root,
//! and with a scripted plugin for faults that the real ones cannot produce.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tokio::sync::mpsc;

use std::net::IpAddr;

use limpet_tests::claim::Subnet;
use limpet_tests::need::{self, need};
use limpet_tests::{cni, tools};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::sandbox::{DEFAULT_SHM_SIZE, SandboxRequest, Sandboxes};

/// A UID that no other test on the machine uses, because running plugins of a UID are killed wherever they run.
pub(super) fn unique_uid() -> PodUid {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    PodUid::new(format!("uid-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)))
}

pub(super) fn pod<'a>(uid: &'a PodUid, netns: &'a Path) -> AttachRequest<'a> {
    AttachRequest { namespace: "default", name: "web-node", ..AttachRequest::nameless(uid, netns) }
}

/// A node with one scripted plugin under two names, `one` and `two`.
pub(super) struct Scripted {
    dir: tempfile::TempDir,
    pub(super) network: Network,
}

impl Scripted {
    pub(super) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["net.d", "bin"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for name in ["one", "two"] {
            install(&dir.path().join("bin").join(name));
        }
        std::fs::write(dir.path().join("netns"), "").unwrap();
        std::fs::write(dir.path().join("result"), r#"{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/16"}]}"#)
            .unwrap();
        let at = |name: &str| dir.path().join(name);
        let network = Network::new(CniSettings { config_dir: at("net.d"), binary_dirs: vec![at("bin")] }, at("state"));
        let node = Self { dir, network };
        node.configure("net", "1.0.0", &["one", "two"]);
        node
    }

    pub(super) fn configure(&self, name: &str, version: &str, plugins: &[&str]) {
        let plugins: Vec<_> = plugins.iter().map(|plugin| json!({"type": plugin})).collect();
        let config = json!({"cniVersion": version, "name": name, "plugins": plugins});
        std::fs::write(self.at("net.d/10-net.conflist"), config.to_string()).unwrap();
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The calls since the last read: plugin, command, and whether a namespace was passed.
    pub(super) fn calls(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.at("log")).unwrap_or_default();
        let _ = std::fs::remove_file(self.at("log"));
        log.lines().map(str::to_owned).collect()
    }

    pub(super) fn stdin(&self, call: &str) -> Value {
        serde_json::from_slice(&std::fs::read(self.at(&format!("stdin-{call}"))).unwrap()).unwrap()
    }
}

/// Has another process write the file: if this one did, a plugin forked at the same time could hold it open for
/// writing, and such a file cannot be executed.
fn install(path: &Path) {
    const SCRIPT: &str = r#"#!/bin/sh
here=$(dirname "$0")/..
name=$(basename "$0")
echo "$name $CNI_COMMAND${CNI_NETNS:+ netns}" >> "$here/log"
echo "$CNI_ARGS $CNI_IFNAME $CNI_CONTAINERID" > "$here/args"
cat > "$here/stdin-$name-$CNI_COMMAND"
if [ -e "$here/fail-$name-$CNI_COMMAND" ]; then
    code=$(cat "$here/fail-$name-$CNI_COMMAND")
    echo '{"code":'${code:-11}',"msg":"busy","details":"later"}'
    exit 1
fi
if [ "$CNI_COMMAND" = ADD ]; then cat "$here/result"; fi
"#;
    use std::io::Write;
    let mut child = Command::new("sh")
        .args(["-c", r#"cat > "$0" && chmod 755 "$0""#])
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(SCRIPT.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
}

#[tokio::test]
async fn an_attachment_is_recorded_checked_and_detached() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    let addresses = node.network.attach(&pod(&uid, &netns)).await.unwrap();
    assert_eq!(addresses.ips, ["10.1.0.5".parse::<IpAddr>().unwrap()]);
    assert_eq!(node.calls(), ["one ADD netns", "two ADD netns"]);
    assert_eq!(node.stdin("one-ADD"), json!({"cniVersion": "1.0.0", "name": "net", "type": "one"}));
    assert_eq!(node.stdin("two-ADD")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    assert_eq!(
        std::fs::read_to_string(node.at("args")).unwrap(),
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-node;K8S_POD_INFRA_CONTAINER_ID={uid};\
             K8S_POD_UID={uid} eth0 {uid}\n"
        )
    );
    let attached = Attachment { addresses: addresses.clone(), is_recorded: true };
    assert_eq!(node.network.attachment(&uid, &netns).await.unwrap(), Some(attached));
    assert_eq!(node.network.attached().await.unwrap(), std::slice::from_ref(&uid));

    // A restarted agent attaches again: CHECK with the recorded result, no ADD.
    let again =
        Network::new(CniSettings { config_dir: node.at("net.d"), binary_dirs: vec![node.at("bin")] }, node.at("state"));
    assert_eq!(again.attach(&pod(&uid, &netns)).await.unwrap(), addresses);
    assert_eq!(node.calls(), ["one CHECK netns", "two CHECK netns"]);
    assert_eq!(node.stdin("one-CHECK")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");

    // The pod is detached with the recorded configuration, although the directory has changed since.
    node.configure("other", "1.0.0", &["two"]);
    again.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.calls(), ["two DEL netns", "one DEL netns"]);
    assert_eq!(node.stdin("one-DEL")["name"], "net");
    assert_eq!(node.stdin("one-DEL")["prevResult"]["ips"][0]["address"], "10.1.0.5/16");
    again.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.calls(), [""; 0]);
    assert_eq!(again.attached().await.unwrap(), []);
}

#[tokio::test]
async fn a_failed_check_attaches_again() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    std::fs::write(node.at("fail-one-CHECK"), "").unwrap();
    node.calls();
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    let wanted = ["one CHECK netns", "two DEL netns", "one DEL netns", "one ADD netns", "two ADD netns"];
    assert_eq!(node.calls(), wanted);
}

#[tokio::test]
async fn old_versions_are_not_checked() {
    let node = Scripted::new();
    node.configure("net", "0.3.1", &["one"]);
    let (uid, netns) = (unique_uid(), node.at("netns"));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.calls(), ["one ADD netns", "one DEL netns"]);
    assert_eq!(node.stdin("one-DEL").get("prevResult"), None);
}

#[tokio::test]
async fn after_a_namespace_change_or_a_reboot_del_has_no_namespace() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    // The record has another boot id, although the path exists again.
    let file = node.at(&format!("state/{uid}"));
    let text = std::fs::read_to_string(&file).unwrap();
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    std::fs::write(&file, text.replace(boot.trim(), "another-boot")).unwrap();
    assert_eq!(node.network.attachment(&uid, &netns).await.unwrap(), None);
    node.calls();
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    assert_eq!(node.calls(), ["two DEL", "one DEL", "one ADD netns", "two ADD netns"]);

    std::fs::remove_file(&netns).unwrap();
    assert_eq!(node.network.attachment(&uid, &netns).await.unwrap(), None);
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.calls(), ["two DEL", "one DEL"]);
    let error = node.network.attach(&pod(&uid, &netns)).await.unwrap_err().to_string();
    assert!(error.contains("cannot stat ") && error.contains("/netns: No such file"), "{error}");
}

#[tokio::test]
async fn a_failed_add_is_undone_and_reported_with_the_plugins_message() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    std::fs::write(node.at("fail-two-ADD"), "").unwrap();
    let error = node.network.attach(&pod(&uid, &netns)).await.unwrap_err();
    assert_eq!(error.to_string(), "network of pod default/web-node: plugin type=\"two\" failed (add): busy; later");
    assert!(matches!(error, NetworkError::Plugin { code: Some(11), .. }));
    assert_eq!(node.calls(), ["one ADD netns", "two ADD netns", "two DEL netns", "one DEL netns"]);
    assert_eq!(node.network.attached().await.unwrap(), []);

    // A failed DEL leaves the record, and the other plugins still get their DEL.
    std::fs::write(node.at("fail-two-DEL"), "").unwrap();
    node.network.attach(&pod(&uid, &netns)).await.unwrap_err();
    assert_eq!(node.calls(), ["one ADD netns", "two ADD netns", "two DEL netns", "one DEL netns"]);
    assert_eq!(node.network.attached().await.unwrap(), std::slice::from_ref(&uid));
    assert!(node.network.detach(&uid, &netns).await.is_err());
    assert_eq!(node.network.attached().await.unwrap(), std::slice::from_ref(&uid));
    std::fs::remove_file(node.at("fail-two-DEL")).unwrap();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.network.attached().await.unwrap(), []);
}

#[tokio::test]
async fn unusable_results_are_errors() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    for (result, reason) in [("{}", "its result has no address for the pod"), ("oops", "its result is no JSON")] {
        std::fs::write(node.at("result"), result).unwrap();
        let error = node.network.attach(&pod(&uid, &netns)).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
        assert_eq!(node.network.attached().await.unwrap(), []);
    }
    std::fs::remove_file(node.at("bin/two")).unwrap();
    let error = node.network.attach(&pod(&uid, &netns)).await.unwrap_err().to_string();
    assert!(error.contains("failed to find plugin \"two\" in ") || error.contains("no JSON"), "{error}");
}

#[tokio::test]
async fn an_add_interrupted_by_a_crash_is_undone() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    // The record before the ADD has completed.
    let file = node.at(&format!("state/{uid}"));
    let mut record: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    record["result"] = Value::Null;
    std::fs::write(&file, record.to_string()).unwrap();
    node.calls();
    assert_eq!(node.network.attached().await.unwrap(), std::slice::from_ref(&uid));
    node.network.attach(&pod(&uid, &netns)).await.unwrap();
    assert_eq!(node.calls(), ["two DEL netns", "one DEL netns", "one ADD netns", "two ADD netns"]);

    // With a damaged record the pod is detached with the current configuration.
    std::fs::write(&file, "{").unwrap();
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.calls(), ["two DEL netns", "one DEL netns"]);
    assert_eq!(node.network.attached().await.unwrap(), []);
}

#[tokio::test]
async fn a_configuration_that_appears_is_noticed() {
    let dir = tempfile::tempdir().unwrap();
    let conf_dir = dir.path().join("cni/net.d");
    let network =
        Network::new(CniSettings { config_dir: conf_dir.clone(), binary_dirs: Vec::new() }, dir.path().join("state"));
    assert_eq!(
        network.status().to_string(),
        format!(
            "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network \
             plugin returns error: cni plugin not initialized: no network config found in {}",
            conf_dir.display()
        )
    );
    let uid = unique_uid();
    assert!(matches!(network.attach(&pod(&uid, dir.path())).await, Err(NetworkError::NotReady(_))));

    let stop = CancellationToken::new();
    let (call, mut calls) = mpsc::unbounded_channel();
    let (watched, until) = (network.clone(), stop.clone());
    let watching = tokio::spawn(async move { watched.watch(until, || call.send(()).unwrap()).await });
    // Each step is one change, because only complete files appear.
    std::fs::create_dir_all(&conf_dir).unwrap();
    let (file, beside) = (conf_dir.join("10-n.conf"), dir.path().join("beside"));
    let put = |name: &str, kind: &str| {
        let config = json!({"cniVersion": "1.0.0", "name": name, "type": kind});
        std::fs::write(&beside, config.to_string()).unwrap();
        std::fs::rename(&beside, &file).unwrap();
    };
    put("n", "ptp");
    calls.recv().await.unwrap();
    assert_eq!(network.status(), NetworkStatus::Ready { name: "n".to_owned() });
    put("n", "bridge");
    calls.recv().await.unwrap();
    assert!(network.status().is_ready(), "another configuration of the same name");
    std::fs::remove_file(&file).unwrap();
    calls.recv().await.unwrap();
    assert!(!network.status().is_ready());
    stop.cancel();
    watching.await.unwrap();
    assert!(calls.recv().await.is_none());
}

/// The directory of the real plugins, installed or unpacked by setup, if they can be used here.
fn real_plugins() -> Option<PathBuf> {
    need::root("links and namespaces")?;
    need(tools::cni_plugins().ok_or("no CNI plugins here; run: cargo xtask setup"))
}

/// Removes the bridge and the mounts when the test ends, however it ends.
struct Cleanup {
    bridge: String,
    sandboxes: PathBuf,
}

impl Drop for Cleanup {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["link", "del", &self.bridge]).stderr(Stdio::null()).status();
        let _ = rustix::mount::unmount(&self.sandboxes, rustix::mount::UnmountFlags::DETACH);
    }
}

fn reserved(data: &Path, prefix: &str) -> Vec<String> {
    let addresses = std::fs::read_dir(data.join("lmpt-test")).unwrap();
    let names = addresses.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort();
    names
}

#[tokio::test]
async fn pods_on_a_real_bridge_reach_each_other() {
    let Some(plugins) = real_plugins() else { return };
    let Some(busybox) = need(tools::busybox().ok_or("no static busybox here; run: cargo xtask setup")) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (subnet, bridge) = (Subnet::claim().unwrap(), cni::lone_bridge());
    let reserved = |data: &Path| reserved(data, &subnet.prefix());
    let _cleanup = Cleanup { bridge: bridge.clone(), sandboxes: dir.path().join("run/sandboxes") };
    let sandboxes = Sandboxes::open(&dir.path().join("run")).await.unwrap();
    let (conf_dir, data) = (dir.path().join("net.d"), dir.path().join("ipam"));
    std::fs::create_dir(&conf_dir).unwrap();
    let config = json!({"cniVersion": "1.0.0", "name": "lmpt-test", "plugins": [{
        "type": "bridge", "bridge": bridge,
        "ipam": {"type": "host-local", "dataDir": data, "ranges": [[{"subnet": subnet.cidr()}]]},
    }]});
    std::fs::write(conf_dir.join("10-test.conflist"), config.to_string()).unwrap();
    let network = Network::new(
        CniSettings { config_dir: conf_dir.clone(), binary_dirs: vec![plugins] },
        dir.path().join("state"),
    );

    // A bridge without a fixed address takes its ports' lowest MAC, which the plugin's CHECK rejects, so it gets one.
    let bridge = ["link", "add", &bridge, "address", "02:00:0a:fe:4d:01", "type", "bridge"];
    assert!(Command::new("ip").args(bridge).status().unwrap().success());
    let uids = [unique_uid(), unique_uid()];
    let mut pods = Vec::new();
    for uid in &uids {
        let request = SandboxRequest {
            uid,
            host_network: false,
            host_ipc: false,
            share_processes: false,
            own_users: false,
            hostname: "web",
            sysctls: &[],
            shm_size: DEFAULT_SHM_SIZE,
            labelling: None,
        };
        let netns = sandboxes.create(&request).await.unwrap().sandbox.namespaces.network.unwrap();
        let addresses = network.attach(&pod(uid, &netns)).await.unwrap();
        pods.push((netns, addresses));
    }
    assert_eq!(reserved(&data).len(), 2);
    let ping = Command::new("nsenter")
        .arg(format!("--net={}", pods[0].0.display()))
        .arg(busybox)
        .args(["ping", "-c", "1", "-W", "5", &pods[1].1.ips[0].to_string()])
        .output()
        .unwrap();
    assert!(ping.status.success(), "{ping:?}");

    // The real plugins' CHECK accepts the real state, and nothing is added.
    assert_eq!(network.attach(&pod(&uids[0], &pods[0].0)).await.unwrap(), pods[0].1);
    assert_eq!(reserved(&data).len(), 2);
    // One pod is detached normally; the other's namespace is removed before its DEL.
    network.detach(&uids[0], &pods[0].0).await.unwrap();
    assert_eq!(reserved(&data).len(), 1);
    sandboxes.remove(&uids[1]).await.unwrap();
    std::fs::remove_dir_all(&conf_dir).unwrap();
    network.detach(&uids[1], &pods[1].0).await.unwrap();
    assert_eq!(reserved(&data), [""; 0]);
    sandboxes.remove(&uids[0]).await.unwrap();
    assert_eq!(network.attached().await.unwrap(), []);
}

#[tokio::test]
async fn host_ports_wait_for_a_plugin_that_forwards_them() {
    let node = Scripted::new();
    let (uid, netns) = (unique_uid(), node.at("netns"));
    let port = PortMapping {
        host_port: 80,
        container_port: 8080,
        protocol: "tcp".to_owned(),
        host_ip: "192.0.2.1".to_owned(),
    };
    let wanted = AttachRequest { ports: vec![port], ..pod(&uid, &netns) };
    let error = node.network.attach(&wanted).await.unwrap_err().to_string();
    assert!(error.contains("network \"net\" has none; add the portmap plugin"), "{error}");
    assert_eq!((node.calls(), node.network.attached().await.unwrap()), (vec![], vec![]));

    let plugins = json!([{"type": "one"}, {"type": "two", "capabilities": {"portMappings": true}}]);
    let config = json!({"cniVersion": "1.0.0", "name": "net", "plugins": plugins});
    std::fs::write(node.at("net.d/10-net.conflist"), config.to_string()).unwrap();
    node.network.attach(&wanted).await.unwrap();
    let mappings = json!([{"hostPort": 80, "containerPort": 8080, "protocol": "tcp", "hostIP": "192.0.2.1"}]);
    assert_eq!(node.stdin("two-ADD")["runtimeConfig"]["portMappings"], mappings);
    node.network.detach(&uid, &netns).await.unwrap();
    assert_eq!(node.stdin("two-DEL")["runtimeConfig"]["portMappings"], mappings);
}
