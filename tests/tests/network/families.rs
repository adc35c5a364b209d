//! Pods with IPv6 addresses: together with IPv4 ones in the order of the node's, and alone.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::container;
use limpet_tests::process::{self, Daemon};
use limpet_tests::{TestNode, tools, wait};
use serde_json::{Value, json};

use crate::empty_network;

/// The node's addresses, from those for documentation.
const NODE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 7));
const NODE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 7));

/// A pod that answers with its name: to everybody at the node's port 8081, and to a probe only at its first address.
fn answering(name: &str) -> Value {
    let script = format!(
        "echo $POD_IP $POD_IPS; mkdir /www; hostname > /www/index.html; httpd -p 8080 -h /www; \
         case $POD_IP in *:*) at=[$POD_IP];; *) at=$POD_IP;; esac; httpd -p \"$at:8082\" -h /www; {IDLE}"
    );
    let field = |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let probe = json!({ "httpGet": { "path": "/index.html", "port": 8082 }, "periodSeconds": 1 });
    let main = json!({
        "env": [field("POD_IP", "status.podIP"), field("POD_IPS", "status.podIPs")],
        "ports": [{ "containerPort": 8080, "hostPort": 8081 }],
        "readinessProbe": probe,
    });
    pod(name, json!({ "hostNetwork": false, "containers": [with(shell("main", &script), main)] }))
}

fn inside(network: &Daemon, command: &[&str]) -> Result<String> {
    let target = network.pid().to_string();
    process::checked(Command::new("nsenter").args(["--target", &target, "--net", "--"]).args(command))
}

/// The addresses in the pod's status.
fn addresses(pod: &Value) -> Result<Vec<IpAddr>> {
    let all = pod["status"]["podIPs"].as_array().with_context(|| format!("no addresses: {}", pod["status"]))?;
    all.iter().map(|entry| Ok(entry["ip"].as_str().context("no address")?.parse()?)).collect()
}

/// Runs a pod on a node with these addresses. It has one of each family in the same order, a probe reaches the first,
/// and the node's port leads to it from each of the node's addresses.
fn is_reached_by_all(node: &TestNode, network: &Daemon, name: &str, of_node: &[IpAddr]) -> Result<()> {
    node.apply(&answering(name))?;
    let pod = node.wait_pod(name, "ready", |pod| container(pod, "main")["ready"] == true)?;
    let of_pod = addresses(&pod)?;
    let families = |list: &[IpAddr]| list.iter().map(IpAddr::is_ipv6).collect::<Vec<_>>();
    ensure!(families(&of_pod) == families(of_node), "{of_pod:?} on {of_node:?}");
    let status = &pod["status"];
    let hosts: Vec<Value> = of_node.iter().map(|ip| json!({ "ip": ip.to_string() })).collect();
    ensure!(status["hostIPs"] == json!(hosts) && status["hostIP"] == hosts[0]["ip"], "{status}");
    let written: Vec<String> = of_pod.iter().map(IpAddr::to_string).collect();
    ensure!(status["podIP"] == written[0].as_str(), "{status}");
    let logged = node.logs(name, "main")?;
    ensure!(logged == format!("{} {}\n", written[0], written.join(",")), "{logged:?} with {written:?}");
    let full_name = node.full_name(name);
    let file = node.exec(name, "main", &["cat", "/etc/hosts"])?;
    let named: Vec<&str> = file.lines().filter_map(|line| line.strip_suffix(&format!("\t{full_name}"))).collect();
    // Only in this file IPv4 comes first on every node, as with kubelet and containerd.
    let mut in_file = of_pod.clone();
    in_file.sort_by_key(IpAddr::is_ipv6);
    ensure!(named == in_file.iter().map(IpAddr::to_string).collect::<Vec<_>>(), "{file}");

    let busybox = tools::busybox().context("no busybox")?;
    for address in of_node {
        let request = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | {} nc -w 5 {address} 8081", busybox.display());
        let ask = || inside(network, &["/bin/sh", "-c", &request]);
        let expected = format!("\n{full_name}\n");
        let what = format!("the pod's answer at {address}");
        wait::until_true(wait::SOON, &what, || ask().is_ok_and(|answer| answer.ends_with(&expected)))
            .with_context(|| format!("{:?}", ask()))?;
    }
    let given = || node.cni.as_ref().map(|cni| cni.allocated()).unwrap_or_default();
    ensure!(given().len() == of_node.len(), "{:?}", given());
    node.remove(name)?;
    node.wait_gone(name)?;
    wait::until_true(wait::SOON, "the addresses to be given back", || given().is_empty())?;
    for rules in ["iptables-save", "ip6tables-save"] {
        let rules = inside(network, &[rules, "-t", "nat"])?;
        ensure!(!rules.contains("8081"), "{rules}");
    }
    Ok(())
}

/// The plugin's answers have the IPv6 address first, whatever the order of the node.
pub(crate) fn a_pod_has_an_address_of_each_family(node: &mut TestNode) -> Result<()> {
    let network = empty_network(node)?;
    inside(&network, &["ip", "link", "set", "lo", "up"])?;
    for address in [format!("{NODE_V4}/32"), format!("{NODE_V6}/128")] {
        inside(&network, &["ip", "address", "add", &address, "dev", "lo"])?;
    }
    let cni = node.cni.as_ref().context("no network")?;
    cni.give_from(&[cni.subnet_v6(), cni.subnet()])?;
    cni.forward_ports()?;
    node.agent.move_to_network_of(network.pid());
    for (name, of_node) in [("four", [NODE_V4, NODE_V6]), ("six", [NODE_V6, NODE_V4])] {
        node.agent.reconfigure(|settings| {
            settings.limpet.retain(|line| !line.starts_with("nodeIP"));
            settings.limpet.push(format!("nodeIP: '{},{}'", of_node[0], of_node[1]));
        })?;
        node.agent.start()?;
        is_reached_by_all(node, &network, name, &of_node)?;
        node.agent.kill();
    }
    Ok(())
}

pub(crate) fn a_network_may_have_ipv6_alone(node: &mut TestNode) -> Result<()> {
    let network = empty_network(node)?;
    let address = format!("{NODE_V6}/64");
    for arguments in [
        &["link", "set", "lo", "up"][..],
        &["link", "add", "wan0", "type", "veth", "peer", "name", "wan1"],
        &["link", "set", "wan1", "up"],
        &["link", "set", "wan0", "up"],
        &["address", "add", &address, "dev", "wan0", "nodad"],
        &["-6", "route", "add", "default", "via", "2001:db8::1", "dev", "wan0"],
    ] {
        inside(&network, &[&["ip"], arguments].concat())?;
    }
    let cni = node.cni.as_ref().context("no network")?;
    cni.give_from(&[cni.subnet_v6()])?;
    cni.forward_ports()?;
    node.agent.move_to_network_of(network.pid());
    node.agent.start()?;
    is_reached_by_all(node, &network, "web", &[NODE_V6])
}
