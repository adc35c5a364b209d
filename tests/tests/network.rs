//! The pod network: addresses by CNI, pods that wait for one, names and resolvers.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple};
use limpet_tests::node::container;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_pod_reaches_another).on(|node| node.cni = true),
        case!(addresses_survive_the_agent).on(|node| node.cni = true),
        case!(a_finished_pod_keeps_its_address).on(|node| node.cni = true),
        case!(a_pod_waits_for_the_network),
        case!(the_hosts_resolver_is_followed),
    ])
}

/// A pod of one container with an address of its own.
fn networked(name: &str, script: &str) -> Value {
    pod(name, json!({ "hostNetwork": false, "containers": [shell("main", script)] }))
}

fn address(pod: &Value) -> Result<String> {
    pod["status"]["podIP"].as_str().map(str::to_owned).with_context(|| format!("no address: {}", pod["status"]))
}

fn a_pod_reaches_another(node: &mut TestNode) -> Result<()> {
    node.apply(&networked("server", "echo welcome > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"))?;
    node.apply(&networked("client", IDLE))?;
    let (server, client) = (node.wait_running("server")?, node.wait_running("client")?);
    // A static busybox crashes in its wget, which asks for name services that are not there.
    let request = format!("printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {} 8080", address(&server)?);
    let fetch = || node.exec("client", "main", &["/bin/sh", "-c", &request]);
    wait::until_true(wait::SOON, "the server's answer", || fetch().is_ok_and(|page| page.ends_with("\nwelcome\n")))
        .with_context(|| format!("{:?}", fetch()))?;

    ensure!(node.exec("client", "main", &["hostname"])? == format!("{}\n", node.full_name("client")));
    let hosts = node.exec("client", "main", &["cat", "/etc/hosts"])?;
    let own = address(&client)?;
    ensure!(hosts.lines().any(|line| line.starts_with(&own) && line.ends_with(&node.full_name("client"))), "{hosts}");
    ensure!(node.exec("client", "main", &["ip", "-o", "-4", "addr", "show", "lo"])?.contains("127.0.0.1"));
    let cni = node.cni.as_ref().context("no network")?;
    ensure!(cni.allocated().len() == 2, "{:?}", cni.allocated());
    for name in ["server", "client"] {
        node.remove(name)?;
        node.wait_gone(name)?;
    }
    node.wait_nothing_runs()
}

fn addresses_survive_the_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&networked("web", IDLE))?;
    let before = address(&node.wait_running("web")?)?;
    node.agent.kill();
    node.agent.start()?;
    let after = address(&node.wait_running("web")?)?;
    ensure!(before == after, "{before} became {after}");
    node.agent.kill();
    node.remove("web")?;
    node.agent.start()?;
    node.wait_nothing_runs()
}

fn a_finished_pod_keeps_its_address(node: &mut TestNode) -> Result<()> {
    let go = node.dir().join("go");
    let mut once = networked("once", "until [ -e /shared/go ]; do sleep 0.1; done");
    once["spec"]["restartPolicy"] = json!("Never");
    once["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "shared", "mountPath": "/shared" }]);
    once["spec"]["volumes"] = json!([{ "name": "shared", "hostPath": { "path": node.dir() } }]);
    node.apply(&once)?;
    let before = address(&node.wait_running("once")?)?;
    fs::write(go, "")?;
    let cni = node.cni.as_ref().context("no network")?;
    wait::until_true(wait::SOON, "the address to be given back", || cni.allocated().is_empty())?;
    let finished = |pod: &Value| pod["status"]["phase"] == "Succeeded";
    let after = node.wait_pod("once", "succeeded", finished)?;
    ensure!(
        address(&after)? == before && after["status"]["podIPs"] == json!([{ "ip": before }]),
        "{}",
        after["status"]
    );
    let start = after["status"]["startTime"].clone();

    node.agent.kill();
    node.agent.start()?;
    let adopted = node.wait_pod("once", "succeeded", finished)?;
    ensure!(address(&adopted)? == before && adopted["status"]["startTime"] == start, "{}", adopted["status"]);
    Ok(())
}

fn a_pod_waits_for_the_network(node: &mut TestNode) -> Result<()> {
    node.apply(&networked("web", IDLE))?;
    node.apply(&simple("host", IDLE))?;
    node.wait_running("host")?;
    let web = node.wait_pod("web", "waiting for a network", |pod| {
        container(pod, "main")["state"]["waiting"]["reason"] == "ContainerCreating"
    })?;
    ensure!(web["status"]["phase"] == "Pending");
    node.wait_event("NetworkNotReady")
}

fn the_hosts_resolver_is_followed(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    let resolver = || node.exec("web", "main", &["cat", "/etc/resolv.conf"]);
    ensure!(resolver()?.contains("nameserver 192.0.2.53"), "{:?}", resolver());
    fs::write(node.agent.settings().resolv_conf(), "nameserver 192.0.2.99\nsearch example.test\n")?;
    wait::until_true(wait::SOON, "the new resolver in the pod", || {
        resolver().is_ok_and(|text| text.contains("192.0.2.99") && !text.contains("192.0.2.53"))
    })?;
    let after = node.wait_running("web")?;
    ensure!(container(&after, "main")["containerID"] == container(&before, "main")["containerID"]);
    Ok(())
}
