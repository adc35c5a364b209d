//! Services on nodes that differ: pods in the node's own network, kube-proxy or a cluster beside limpet, a kernel without
//! `br_netfilter`.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::own_network::{NODE, OwnNetwork};
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use crate::{answering, client, fetch, request, service, shown, wait_endpoints, wait_fetched, workload, write};

/// Waits until the Services are not served, and returns why.
fn wait_unserved(node: &TestNode) -> Result<String> {
    let document = || -> Option<Value> {
        let reply = node.agent.cli(&["services", "-o", "json"]).ok()?.success().ok()?;
        serde_json::from_str(&reply).ok()
    };
    let why = || document().and_then(|document| document["unserved"].as_str().map(str::to_owned));
    wait::until(wait::SOON, "why Services are not served", why).with_context(|| node.evidence())
}

/// Checks that a pod has neither the name server nor the variables of Services.
fn ensure_untouched(node: &TestNode, name: &str) -> Result<()> {
    let resolver = node.exec(name, "main", &["cat", "/etc/resolv.conf"])?;
    ensure!(!resolver.contains("10.43."), "{resolver}");
    let variables = node.exec(name, "main", &["/bin/sh", "-c", "env"])?;
    ensure!(!variables.contains("WEB_SERVICE_HOST"), "{variables}");
    Ok(())
}

pub(crate) fn pods_in_the_nodes_network_are_reached_and_reach_services(node: &mut TestNode) -> Result<()> {
    let network = OwnNetwork::prepare_host(node)?;
    node.agent.reconfigure(|settings| settings.flags.push(format!("--node-ip={NODE}")))?;
    node.agent.start()?;
    let labels = |app: &str| json!({ "metadata": { "labels": { "app": app } } });
    let host = with(pod("host", json!({ "hostNetwork": true, "containers": [answering()] })), labels("host"));
    let resolving = json!({
        "hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet", "containers": [shell("main", "exec sleep 100000")],
    });
    let node_client = pod("node-client", resolving);
    let services = [service("host", json!({})), service("web", json!({}))];
    write(node, "services.yaml", &services)?;
    write(node, "pods.yaml", &[host, node_client, client(), workload("Deployment", "web", 1)])?;
    let host = wait_endpoints(node, "host", 1)?;
    ensure!(host["ports"][0]["endpoints"][0] == format!("{NODE}:8080"), "{host:#}");
    wait_endpoints(node, "web", 1)?;
    for name in ["client", "node-client"] {
        node.wait_running(name)?;
    }
    // The host name of a pod in the node's network is the machine's.
    let machine = network.run(&["hostname"])?.trim().to_owned();
    wait_fetched(node, "client", "host 80", &machine)?;
    wait_fetched(node, "node-client", "host 80", &machine)?;
    wait_fetched(node, "node-client", "web 80", "web-")?;
    let by_variable = request("$WEB_SERVICE_HOST $WEB_SERVICE_PORT");
    let answer = node.exec("node-client", "main", &["/bin/sh", "-c", &by_variable])?;
    ensure!(answer.trim().rsplit('\n').next().is_some_and(|name| name.starts_with("web-")), "{answer}");
    Ok(())
}

pub(crate) fn beside_kube_proxy_no_service_is_served(node: &mut TestNode) -> Result<()> {
    let network = OwnNetwork::prepare(node)?;
    // As kube-proxy marks its presence with `iptables`.
    network.run(&["iptables", "--table", "nat", "--new-chain", "KUBE-SERVICES"])?;
    node.agent.start()?;
    write(node, "web.yaml", &[service("web", json!({})), client(), workload("Deployment", "web", 1)])?;
    ensure!(wait_unserved(node)?.contains("kube-proxy serves Services on this node"), "{}", wait_unserved(node)?);
    node.wait_event("Services are not served: kube-proxy serves Services on this node")?;
    node.wait_running("client")?;
    ensure_untouched(node, "client")?;
    let text = node.agent.cli(&["services"])?.success()?;
    ensure!(text.contains("not served: kube-proxy"), "{text}");
    let addresses = network.run(&["ip", "address", "show", "dev", "lo"])?;
    ensure!(!addresses.contains("10.43."), "{addresses}");
    Ok(())
}

pub(crate) fn a_node_of_a_cluster_serves_none(node: &mut TestNode) -> Result<()> {
    let network = OwnNetwork::prepare(node)?;
    let kubeconfig = node.dir().join("kubeconfig");
    // Nothing listens there: a node that is offline belongs to its cluster all the same.
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "edge",
        "clusters": [{ "name": "edge", "cluster": { "server": "http://127.0.0.1:1" } }],
        "users": [{ "name": "edge", "user": { "token": "t" } }],
        "contexts": [{ "name": "edge", "context": { "cluster": "edge", "user": "edge" } }],
    });
    fs::write(&kubeconfig, text.to_string())?;
    let flag = format!("--kubeconfig={}", kubeconfig.display());
    node.agent.reconfigure(|settings| settings.flags.push(flag))?;
    node.agent.start()?;
    write(node, "web.yaml", &[service("web", json!({})), client()])?;
    ensure!(wait_unserved(node)?.contains("the node belongs to a cluster"), "{}", wait_unserved(node)?);
    node.wait_event("Services are not served: the node belongs to a cluster")?;
    node.wait_running("client")?;
    ensure_untouched(node, "client")?;
    ensure!(shown(node, "web")?["type"] == "ClusterIP", "{:#}", shown(node, "web")?);
    let addresses = network.run(&["ip", "address", "show", "dev", "lo"])?;
    ensure!(!addresses.contains("10.43."), "{addresses}");
    Ok(())
}

pub(crate) fn a_kernel_without_rules_in_bridges_serves_pods_of_one_bridge(node: &mut TestNode) -> Result<()> {
    let network = OwnNetwork::prepare_host(node)?;
    network.run(&["sh", "-c", "echo 0 > /proc/sys/net/bridge/bridge-nf-call-iptables"])?;
    // The node does not see the kernel's files, as without the module.
    network.run_on_host(&["mount", "-t", "tmpfs", "none", "/proc/sys/net/bridge"])?;
    node.agent.start()?;
    write(node, "web.yaml", &[service("web", json!({})), client(), workload("Deployment", "web", 2)])?;
    wait_endpoints(node, "web", 2)?;
    node.wait_running("client")?;
    wait_fetched(node, "client", "web 80", "web-")?;
    for _ in 0..10 {
        let answer = fetch(node, "client", "web 80")?;
        ensure!(answer.starts_with("web-"), "{answer}");
    }
    ensure!(node.agent.log().contains("load the kernel module br_netfilter"), "{}", node.evidence());
    let written = network.run(&["cat", "/proc/sys/net/bridge/bridge-nf-call-iptables"])?;
    ensure!(written.trim() == "0", "{written}");
    Ok(())
}
