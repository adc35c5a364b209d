//! A node whose network is made by static pods: kube-proxy, and a daemon that puts the CNI plugins and their configuration
//! onto the node and stays, as flannel and kindnet do.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::{Image, ImageBuilder};
use limpet_tests::kubeadm::host::{self, Host};
use limpet_tests::kubeadm::{A_WHILE, ADDRESSES, images, initial, proxy_configuration, wait_mirrors};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use super::web;

/// The image of the daemon.
const DAEMON: &str = "registry.test/network-daemon:v1";
/// What the daemon leaves on the node, and where.
const INSTALL: &str = "cp /plugins/* /opt/cni/bin/
    cp /10-static.conflist /etc/cni/net.d/.partial && mv /etc/cni/net.d/.partial /etc/cni/net.d/10-static.conflist
    echo installed; trap 'exit 0' TERM; sleep 100000 & wait";

pub(crate) fn kube_proxy_and_a_network_daemon_are_static_pods(node: &mut TestNode) -> Result<()> {
    let mut host = Host::boot(node, ADDRESSES[0])?;
    images::import_control_plane(host.node)?;
    images::import(host.node)?;
    host.node.import(&[&daemon_image(&host)?])?;
    // This node does not have the network that the other case finds.
    host.shell("for dir in /etc/cni/net.d /opt/cni/bin; do mount -t tmpfs tmpfs $dir; done")?;
    host.give_address()?;
    host.kubeadm(&["init", "--skip-phases=addon", "--config"], &initial(&host))?;
    wait_mirrors(&host)?;

    // Pods on the host's network run; the others wait, and report for what.
    for object in web(host.node.name()) {
        host.apply(&object)?;
    }
    put(&host, &pod("client", json!({ "hostNetwork": false, "containers": [shell("main", IDLE)] })))?;
    let client = format!("client-{}", host.node.name());
    let waits = || host.kubectl(&["describe", "pod", &client]).ok().filter(|said| said.contains("NetworkNotReady"));
    wait::until(A_WHILE, "a pod that waits for the network", waits)
        .with_context(|| host.kubectl(&["describe", "pod", &client]).unwrap_or_default())?;
    let ready = "jsonpath={.status.conditions[?(@.type=='Ready')].status}";
    let ready = host.kubectl(&["get", "node", host.node.name(), "-o", ready])?;
    ensure!(ready == "False", "ready without a network: {ready}");

    put(&host, &kube_proxy(&host)?)?;
    put(&host, &network_daemon())?;
    host.kubectl(&["wait", "--for=condition=Ready", "node", host.node.name(), "--timeout=120s"])?;
    host.kubectl(&["wait", "--for=condition=Ready", "pod", &client, "--timeout=120s"])?;
    host.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let address = host.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.clusterIP}"])?;
    let script = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} 80 | tail -n 1");
    let ask = ["exec", &client, "--", "sh", "-c", &script];
    let answer = || host.kubectl(&ask).ok().filter(|answer| answer.starts_with("web-"));
    wait::until(A_WHILE, "an answer of the Service", answer).with_context(|| {
        let name = format!("kube-proxy-{}", host.node.name());
        format!("{:?}\n{:?}", host.kubectl(&ask), host.kubectl(&["-n", "kube-system", "logs", &name, "--tail=20"]))
    })?;
    // What the daemon and the proxy changed did not restart them.
    let counts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}";
    let counts = host.kubectl(&["-n", "kube-system", "get", "pods", "-l", "part=network", "-o", counts])?;
    ensure!(counts == "0 0", "restarts of kube-proxy and the daemon: {counts}");
    Ok(())
}

/// Writes a manifest to the directory of the control plane's manifests.
fn put(host: &Host<'_>, pod: &Value) -> Result<()> {
    let name = pod["metadata"]["name"].as_str().context("no name")?;
    let file = host.node.dir().join(format!("{name}.json"));
    fs::write(&file, pod.to_string())?;
    let target = format!("/etc/kubernetes/manifests/{name}.yaml");
    host.shell(&format!("cp {} {target}.partial && mv {target}.partial {target}", file.display())).map(drop)
}

/// A pod for the node's network, as authors of such networks write it.
fn of_network(name: &str, spec: Value) -> Value {
    let metadata = json!({ "metadata": { "namespace": "kube-system", "labels": { "part": "network" } } });
    let privileged = json!({ "hostNetwork": true, "priorityClassName": "system-node-critical" });
    with(pod(name, with(privileged, spec)), metadata)
}

/// A volume of the host's directory or file at `path`, and its mount at the same place.
fn host_path(name: &str, path: &str) -> (Value, Value) {
    (json!({ "name": name, "hostPath": { "path": path } }), json!({ "name": name, "mountPath": path }))
}

fn network_daemon() -> Value {
    let (plugins, in_plugins) = host_path("plugins", "/opt/cni/bin");
    let (configuration, in_configuration) = host_path("configuration", "/etc/cni/net.d");
    let main = json!({ "image": DAEMON, "volumeMounts": [in_plugins, in_configuration] });
    let spec = json!({ "containers": [with(shell("main", INSTALL), main)], "volumes": [plugins, configuration] });
    of_network("network-daemon", spec)
}

/// A busybox with the plugins of the tests and the configuration of the node's network.
fn daemon_image(host: &Host<'_>) -> Result<Image> {
    let plugins = host.node.agent.settings().cni_plugins.first().context("no CNI plugins")?.clone();
    let network = host.node.cni.as_ref().context("no pod network")?;
    let configuration = fs::read(network.config_dir.join("10-limpet.conflist"))?;
    let mut builder = ImageBuilder::new(DAEMON).file("10-static.conflist", configuration, 0o644);
    for plugin in ["bridge", "host-local", "loopback"] {
        let file = plugins.join(plugin);
        let content = fs::read(&file).with_context(|| format!("{}", file.display()))?;
        builder = builder.file(&format!("plugins/{plugin}"), content, 0o755);
    }
    builder.build()
}

/// kube-proxy by a kubeconfig and a configuration of the node's, which are written here.
fn kube_proxy(host: &Host<'_>) -> Result<Value> {
    let kubeadm = host::kubeadm()?;
    let config = "/etc/kubernetes/kube-proxy.conf";
    host.shell(&format!(
        "{} kubeconfig user --client-name system:kube-proxy --config {} > {config}",
        kubeadm.display(),
        host.node.dir().join("kubeadm.yaml").display()
    ))?;
    let settings = with(proxy_configuration(), json!({ "clientConnection": { "kubeconfig": config } }));
    let file = host.node.dir().join("kube-proxy.json");
    fs::write(&file, settings.to_string())?;
    host.shell(&format!("cp {} /etc/kubernetes/kube-proxy.yaml", file.display()))?;
    let (kubeconfig, in_kubeconfig) = host_path("kubeconfig", config);
    let (configuration, in_configuration) = host_path("configuration", "/etc/kubernetes/kube-proxy.yaml");
    let container = json!({
        "name": "kube-proxy",
        "image": format!("{}/kube-proxy:{}", images::REPOSITORY, images::VERSION),
        "command": ["kube-proxy", "--config=/etc/kubernetes/kube-proxy.yaml", format!("--hostname-override={}", host.node.name())],
        "securityContext": { "privileged": true },
        "volumeMounts": [in_kubeconfig, in_configuration],
    });
    Ok(of_network("kube-proxy", json!({ "containers": [container], "volumes": [kubeconfig, configuration] })))
}
