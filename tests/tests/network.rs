//! The pod network: addresses by CNI, pods that wait for one, names and resolvers.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use families::{a_network_may_have_ipv6_alone, a_pod_has_an_address_of_each_family};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::process::{self, Daemon};
use limpet_tests::{TestNode, case, suite, tools, wait};
use recovery::{
    a_damaged_record_restarts_nothing, a_pod_goes_whose_network_never_worked, a_pod_goes_whose_plugin_was_uninstalled,
};
use serde_json::{Value, json};

#[path = "network/families.rs"]
mod families;
#[path = "network/recovery.rs"]
mod recovery;

fn main() -> ExitCode {
    suite::run([
        case!(a_pod_reaches_another).on(|node| node.cni = true),
        case!(addresses_survive_the_agent).on(|node| node.cni = true),
        case!(a_damaged_record_restarts_nothing).on(|node| node.cni = true),
        case!(a_pod_goes_whose_network_never_worked).on(|node| (node.cni, node.agent) = (true, false)),
        case!(a_pod_goes_whose_plugin_was_uninstalled).on(|node| (node.cni, node.agent) = (true, false)),
        case!(a_finished_pod_keeps_its_address).on(|node| node.cni = true),
        case!(a_pod_waits_for_the_network),
        case!(the_hosts_resolver_is_followed),
        case!(a_port_of_the_node_leads_to_one_pod).on(|node| (node.cni, node.agent) = (true, false)),
        case!(bandwidth_annotations_limit_a_pod).on(|node| (node.cni, node.agent) = (true, false)),
        case!(an_address_that_comes_late_is_known_without_a_restart).on(|node| node.agent = false),
        case!(a_pod_has_an_address_of_each_family).on(|node| (node.cni, node.agent) = (true, false)),
        case!(a_network_may_have_ipv6_alone).on(|node| (node.cni, node.agent) = (true, false)),
        case!(an_orphan_that_stays_attached_keeps_nothing_else).on(|node| node.agent = false),
    ])
}

/// A pod of one container with its own address.
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
    // A static busybox crashes in its wget, which loads name services that are missing.
    let request = format!("printf 'GET /index.html HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {} 8080", address(&server)?);
    let fetch = || node.exec("client", "main", &["/bin/sh", "-c", &request]);
    wait::until_true(wait::SOON, "the server's answer", || fetch().is_ok_and(|page| page.ends_with("\nwelcome\n")))
        .with_context(|| format!("{:?}", fetch()))?;

    ensure!(node.exec("client", "main", &["hostname"])? == format!("{}\n", node.full_name("client")));
    let hosts = node.exec("client", "main", &["cat", "/etc/hosts"])?;
    let client_address = address(&client)?;
    ensure!(
        hosts.lines().any(|line| line.starts_with(&client_address) && line.ends_with(&node.full_name("client"))),
        "{hosts}"
    );
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

fn an_orphan_that_stays_attached_keeps_nothing_else(node: &mut TestNode) -> Result<()> {
    let uid = "0d2f3b51-6c0e-4f7a-9d0b-4c9d3f6a1e77";
    let (root, logs) = (node.agent.settings().root(), node.agent.settings().pod_logs());
    let attachment = root.join("network").join(uid);
    let (volumes, log) = (root.join("pods").join(uid), logs.join(format!("default_web_{uid}")));
    // Its plugin was uninstalled.
    let record = json!({
        "namespace": "default", "name": "web", "uid": uid, "ports": [],
        "network_namespace": { "path": node.dir().join("no-namespace"), "inode": 0, "boot_id": "" },
        "conflist": { "cniVersion": "1.0.0", "name": "old", "plugins": [{ "type": "uninstalled" }] },
        "result": { "cniVersion": "1.0.0", "interfaces": [], "ips": [] },
    });
    fs::create_dir_all(root.join("network"))?;
    fs::write(&attachment, record.to_string())?;
    for directory in [volumes.join("volumes/kubernetes.io~empty-dir/data"), log.join("main")] {
        fs::create_dir_all(&directory)?;
        fs::write(directory.join("file"), "")?;
    }
    node.agent.start()?;
    wait::until_true(wait::SOON, "its directory to be removed", || !volumes.exists())?;
    ensure!(!log.exists(), "its logs are left");
    // Its record stays as long as there is no plugin to detach it.
    fs::remove_file(attachment).ok();
    Ok(())
}

fn the_hosts_resolver_is_followed(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let before = node.wait_running("web")?;
    let resolver = |node: &TestNode| node.exec("web", "main", &["cat", "/etc/resolv.conf"]);
    ensure!(resolver(node)?.contains("nameserver 192.0.2.53"), "{:?}", resolver(node));
    fs::write(node.agent.settings().resolv_conf(), "nameserver 192.0.2.99\nsearch example.test\n")?;
    wait::until_true(wait::SOON, "the new resolver in the pod", || {
        resolver(node).is_ok_and(|text| text.contains("192.0.2.99") && !text.contains("192.0.2.53"))
    })?;
    // A change while no agent runs is not lost.
    node.agent.kill();
    fs::write(node.agent.settings().resolv_conf(), "nameserver 192.0.2.7\n")?;
    node.agent.start()?;
    wait::until_true(wait::SOON, "the newest resolver in the pod", || {
        resolver(node).is_ok_and(|text| text == "nameserver 192.0.2.7\n")
    })?;
    let after = node.wait_running("web")?;
    ensure!(container(&after, "main")["containerID"] == container(&before, "main")["containerID"]);
    Ok(())
}

/// Makes a network namespace with only a loopback interface, which a process holds.
fn empty_network(node: &TestNode) -> Result<Daemon> {
    let mut command = Command::new("unshare");
    // By the node's directory in its environment a later run finds the process if this one is killed.
    command.args(["--net", "sleep", "100000"]).env("LIMPET_TEST_NODE", node.dir());
    let holder = Daemon::start(&mut command, &node.dir().join("network.log"))?;
    let here = fs::read_link("/proc/self/ns/net")?;
    let theirs = || fs::read_link(format!("/proc/{}/ns/net", holder.pid()));
    wait::until_true(wait::SOON, "a network namespace", || theirs().is_ok_and(|theirs| theirs != here))?;
    Ok(holder)
}

fn an_address_that_comes_late_is_known_without_a_restart(node: &mut TestNode) -> Result<()> {
    let network = empty_network(node)?;
    let ip = |args: &[&str]| {
        let mut command = Command::new("nsenter");
        process::checked(command.args(["--target", &network.pid().to_string(), "--net", "--", "ip"]).args(args))
    };
    node.agent.move_to_network_of(network.pid());
    node.agent.start()?;
    let agent = node.agent.pid();
    let env = json!([{ "name": "HOST_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.hostIP" } } }]);
    node.apply(&pod("web", json!({ "containers": [with(shell("main", IDLE), json!({ "env": env }))] })))?;
    node.apply(&simple("plain", IDLE))?;
    let plain = node.wait_running("plain")?;
    ensure!(plain["status"]["hostIP"].is_null() && plain["status"]["podIP"].is_null(), "{}", plain["status"]);
    let message = "waits for the node to have an address: env HOST_IP refers to status.hostIP";
    node.wait_pod("web", "waiting for an address", |pod| {
        let waiting = &container(pod, "main")["state"]["waiting"];
        waiting["reason"] == "CreateContainerConfigError" && waiting["message"] == message
    })?;
    node.wait_event(message)?;

    ip(&["link", "add", "wan0", "type", "veth", "peer", "name", "wan1"])?;
    ip(&["link", "set", "wan1", "up"])?;
    ip(&["link", "set", "wan0", "up"])?;
    ip(&["addr", "add", "198.51.100.7/24", "dev", "wan0"])?;
    ip(&["route", "add", "default", "via", "198.51.100.1"])?;
    let has = |pod: &Value, address: &str| pod["status"]["hostIP"] == address && pod["status"]["podIP"] == address;
    node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["/bin/sh", "-c", "echo $HOST_IP"])? == "198.51.100.7\n");
    let known = node.wait_pod("plain", "the node's address", |pod| has(pod, "198.51.100.7"))?;
    ensure!(container_id(&known, "main")? == container_id(&plain, "main")?, "it was restarted");

    ip(&["addr", "replace", "203.0.113.9/24", "dev", "wan0"])?;
    ip(&["route", "replace", "default", "via", "203.0.113.1"])?;
    node.wait_pod("web", "the node's new address", |pod| has(pod, "203.0.113.9"))?;
    ensure!(node.agent.pid() == agent);
    Ok(())
}

/// A pod that answers requests at the node's port 8081 with its name.
fn answering(name: &str) -> Value {
    let serve = with(
        shell("main", "hostname > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"),
        json!({ "ports": [{ "containerPort": 8080, "hostPort": 8081 }] }),
    );
    pod(name, json!({ "hostNetwork": false, "containers": [serve] }))
}

fn a_port_of_the_node_leads_to_one_pod(node: &mut TestNode) -> Result<()> {
    // The rules are in a network namespace of the test.
    let network = empty_network(node)?;
    let inside = |command: &[&str]| {
        let target = network.pid().to_string();
        process::checked(Command::new("nsenter").args(["--target", &target, "--net", "--"]).args(command))
    };
    let busybox = tools::busybox().context("no busybox")?;
    let request = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | {} nc -w 5 198.51.100.7 8081", busybox.display());
    inside(&["ip", "link", "set", "lo", "up"])?;
    inside(&["ip", "address", "add", "198.51.100.7/32", "dev", "lo"])?;
    node.agent.move_to_network_of(network.pid());
    node.agent.start()?;
    let (first, second) = (node.full_name("first"), node.full_name("second"));
    let answers = |name: &str| {
        let ask = || inside(&["/bin/sh", "-c", &request]);
        let expected = format!("\n{name}\n");
        wait::until_true(wait::SOON, "the pod's answer", || ask().is_ok_and(|answer| answer.ends_with(&expected)))
            .with_context(|| format!("{:?}, rules: {:?}", ask(), inside(&["iptables-save", "-t", "nat"])))
    };

    node.apply(&answering("first"))?;
    node.wait_event("hostPort needs a plugin with the portMappings capability")?;
    node.cni.as_ref().context("no network")?.forward_ports()?;
    node.wait_running("first")?;
    answers(&first)?;

    node.apply(&answering("second"))?;
    let message = format!("8081/TCP is taken by pod default/{first}");
    let waits = |pod: &Value| {
        let status = &pod["status"];
        let said = status["message"].as_str().is_some_and(|text| text.contains(&message));
        status["phase"] == "Pending" && status["reason"] == "NodePorts" && said
    };
    node.wait_pod("second", "waiting for the port", waits)?;
    node.wait_event("Predicate NodePorts failed")?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("second", "waiting for the port", waits)?;
    answers(&first)?;

    node.remove("first")?;
    node.wait_running("second")?;
    answers(&second)?;
    node.remove("second")?;
    node.wait_gone("second")?;
    let rules = inside(&["iptables-save", "-t", "nat"])?;
    ensure!(!rules.contains("8081"), "{rules}");
    Ok(())
}

/// The rates of the token buckets on a device, in bytes a second.
fn rates(device: &str) -> Result<Vec<u64>> {
    let said = process::output("tc", &["-j", "qdisc", "show", "dev", device])?;
    let disciplines: Vec<Value> = serde_json::from_str(&said).with_context(|| said.clone())?;
    let buckets = disciplines.iter().filter(|discipline| discipline["kind"] == "tbf");
    Ok(buckets.filter_map(|bucket| bucket["options"]["rate"].as_u64()).collect())
}

/// The names of this machine's network devices.
fn devices() -> Result<BTreeSet<String>> {
    let entries = fs::read_dir("/sys/class/net").context("/sys/class/net")?;
    entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
}

fn bandwidth_annotations_limit_a_pod(node: &mut TestNode) -> Result<()> {
    let cni = node.cni.as_ref().context("no network")?;
    cni.limit_bandwidth()?;
    let ports = Path::new("/sys/class/net").join(cni.bridge()).join("brif");
    node.agent.start()?;
    let before = devices()?;
    let mut limited = networked("limited", IDLE);
    limited["metadata"]["annotations"] =
        json!({ "kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "16M" });
    node.apply(&limited)?;
    node.wait_running("limited")?;
    let port = fs::read_dir(&ports)?.next().context("the bridge has no port")??.file_name();
    let port = port.to_string_lossy().into_owned();
    // What the pod sends goes through a device that the plugin makes.
    let sending: Vec<String> =
        devices()?.into_iter().filter(|name| name.starts_with("bwp") && !before.contains(name)).collect();
    ensure!(sending.len() == 1, "{sending:?}");
    ensure!(
        rates(&port)? == [1_000_000] && rates(&sending[0])? == [2_000_000],
        "{:?} {:?}",
        rates(&port)?,
        rates(&sending[0])?
    );

    node.remove("limited")?;
    node.wait_gone("limited")?;
    ensure!(!devices()?.contains(&sending[0]), "{} is left", sending[0]);
    node.wait_nothing_runs()
}
