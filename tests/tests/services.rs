//! Services of the node's own: their addresses, names and ports, with a real containerd and a bridge.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::own_network::{NODE, OwnNetwork};
use limpet_tests::{TestNode, case, suite, tools, wait};
use serde_json::{Value, json};

#[path = "services/surroundings.rs"]
mod surroundings;

use surroundings::{
    a_kernel_without_rules_in_bridges_serves_pods_of_one_bridge, a_node_of_a_cluster_serves_none,
    beside_kube_proxy_no_service_is_served, pods_in_the_nodes_network_are_reached_and_reach_services,
};

fn main() -> ExitCode {
    suite::run([
        case!(a_service_is_reached_by_its_name).on(own_network),
        case!(a_pod_reaches_itself_and_the_node_by_ports).on(own_network),
        case!(pods_of_a_set_have_names).on(own_network),
        case!(connections_outlive_the_agent).on(own_network),
        case!(what_cannot_be_served_says_why).on(own_network),
        case!(containers_have_the_variables_of_services).on(own_network),
        case!(pods_in_the_nodes_network_are_reached_and_reach_services).on(own_network),
        case!(beside_kube_proxy_no_service_is_served).on(own_network),
        case!(a_node_of_a_cluster_serves_none).on(own_network),
        case!(a_kernel_without_rules_in_bridges_serves_pods_of_one_bridge).on(own_network),
    ])
}

fn own_network(options: &mut limpet_tests::node::NodeOptions) {
    (options.cni, options.agent) = (true, false);
}

/// A container that answers requests at its port 8080 with its pod's name, and is ready while there is the file `/tmp/ready`.
fn answering() -> Value {
    with(
        shell("main", "hostname > /tmp/index.html; touch /tmp/ready; exec httpd -f -p 8080 -h /tmp"),
        json!({
            "ports": [{ "name": "web", "containerPort": 8080 }],
            "readinessProbe": { "exec": { "command": ["/bin/ls", "/tmp/ready"] }, "periodSeconds": 1, "failureThreshold": 1 },
        }),
    )
}

fn workload(kind: &str, name: &str, replicas: u32) -> Value {
    let template = json!({
        "metadata": { "labels": { "app": name } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [answering()] },
    });
    let selector = json!({ "matchLabels": { "app": name } });
    json!({ "apiVersion": "apps/v1", "kind": kind, "metadata": { "name": name },
        "spec": { "replicas": replicas, "selector": selector, "template": template } })
}

fn service(name: &str, spec: Value) -> Value {
    let ports = json!([{ "name": "http", "port": 80, "targetPort": "web" }]);
    let defaults = json!({ "selector": { "app": name }, "ports": ports });
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name }, "spec": with(defaults, spec) })
}

/// A pod that does nothing by itself.
fn client() -> Value {
    pod("client", json!({ "hostNetwork": false, "containers": [shell("main", "exec sleep 100000")] }))
}

/// Puts the documents into one file.
fn write(node: &TestNode, file: &str, documents: &[Value]) -> Result<()> {
    let text: Vec<String> = documents.iter().map(ToString::to_string).collect();
    node.drop_text(file, &text.join("\n---\n"))
}

/// The Service of that name as `limpet services` has it.
fn shown(node: &TestNode, name: &str) -> Result<Value> {
    let document: Value = serde_json::from_str(&node.agent.cli(&["services", "-o", "json"])?.success()?)?;
    let mut services = document["services"].as_array().into_iter().flatten();
    Ok(services.find(|service| service["name"] == name).cloned().unwrap_or_default())
}

/// Waits until the Service has so many endpoints.
fn wait_endpoints(node: &TestNode, name: &str, count: usize) -> Result<Value> {
    let what = format!("{count} endpoints of {name}");
    let ends = |service: &Value| service["ports"][0]["endpoints"].as_array().map_or(0, Vec::len);
    wait::until(wait::SOON, &what, || shown(node, name).ok().filter(|service| ends(service) == count))
        .with_context(|| format!("{:#}\n{}", shown(node, name).unwrap_or_default(), node.evidence()))
}

/// What a shell runs to read what listens at `HOST PORT`.
fn request(to: &str) -> String {
    // Debian's static wget crashes without a file of services.
    format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {to}")
}

/// The name of the pod that answers the client's request to `HOST PORT`.
fn fetch(node: &TestNode, from: &str, to: &str) -> Result<String> {
    let answer = node.exec(from, "main", &["/bin/sh", "-c", &request(to)])?;
    Ok(answer.trim().rsplit('\n').next().unwrap_or_default().to_owned())
}

/// Waits until the client gets an answer of a pod whose name begins so.
fn wait_fetched(node: &TestNode, from: &str, to: &str, prefix: &str) -> Result<String> {
    wait::until(wait::SOON, to, || fetch(node, from, to).ok().filter(|name| name.starts_with(prefix)))
        .with_context(|| format!("{:?}\n{}", fetch(node, from, to), node.evidence()))
}

fn a_service_is_reached_by_its_name(node: &mut TestNode) -> Result<()> {
    let network = OwnNetwork::start(node)?;
    network.answer_names()?;
    write(node, "client.yaml", &[client()])?;
    node.wait_running("client")?;
    ensure!(!node.exec("client", "main", &["cat", "/etc/resolv.conf"])?.contains("10.43.0.10"), "without a Service");

    write(node, "web.yaml", &[workload("Deployment", "web", 2), service("web", json!({}))])?;
    let shown = wait_endpoints(node, "web", 2)?;
    let address = shown["clusterIPs"][0].as_str().context("no address")?.to_owned();
    ensure!(address.starts_with("10.43."), "{address}");
    // The running client has the name server, too.
    wait::until_true(wait::SOON, "the name server in the client's file", || {
        let read = node.exec("client", "main", &["cat", "/etc/resolv.conf"]);
        read.is_ok_and(|text| text.contains("nameserver 10.43.0.10") && text.contains("default.svc.cluster.local"))
    })?;
    for host in ["web", "web.default", "web.default.svc.cluster.local", &address] {
        wait_fetched(node, "client", &format!("{host} 80"), "web-")?;
    }
    let looked_up = node.exec("client", "main", &["nslookup", "somewhere.example.com"])?;
    ensure!(looked_up.contains("192.0.2.7"), "the node's name server answers the rest: {looked_up}");
    let page = node.agent.cli(&["describe", "svc/web"])?.success()?;
    ensure!(page.contains(&address) && page.contains("http 80/TCP") && page.contains(":8080"), "{page}");
    let reverse = node.exec("client", "main", &["nslookup", &address])?;
    ensure!(reverse.contains("web.default.svc.cluster.local"), "{reverse}");

    // One that is not ready gets no connections.
    let first = shown["pods"][0].as_str().and_then(|pod| pod.split_once('/')).context("no pod")?.1.to_owned();
    let second = shown["pods"][1].as_str().and_then(|pod| pod.split_once('/')).context("no pod")?.1.to_owned();
    node.agent.cli(&["exec", &first, "--", "rm", "/tmp/ready"])?.success()?;
    wait_endpoints(node, "web", 1)?;
    for _ in 0..20 {
        let answer = fetch(node, "client", "web 80")?;
        ensure!(answer == second, "{answer} of {second}");
    }

    // A port without endpoints is refused at once.
    node.agent.cli(&["exec", &second, "--", "rm", "/tmp/ready"])?.success()?;
    wait_endpoints(node, "web", 0)?;
    let client = node.full_name("client");
    let refused = node.agent.cli(&["exec", &client, "--", "nc", "-w", "20", "web", "80"])?;
    ensure!(refused.stderr.contains("refused"), "{refused:?}");

    node.remove("web")?;
    wait::until_true(wait::SOON, "no addresses of Services", || {
        let addresses = network.run(&["ip", "address", "show", "dev", "lo"]).unwrap_or_default();
        let routes = network.run(&["ip", "route"]).unwrap_or_default();
        !addresses.contains("10.43.0.10") && !routes.contains("10.43.0.0/16")
    })?;
    ensure!(!node.agent.settings().run().join("services").exists(), "the mark stays");
    let resolver = || node.exec("client", "main", &["cat", "/etc/resolv.conf"]);
    wait::until_true(wait::SOON, "the node's name server", || resolver().is_ok_and(|text| !text.contains("10.43.")))
}

fn a_pod_reaches_itself_and_the_node_by_ports(node: &mut TestNode) -> Result<()> {
    let network = OwnNetwork::start(node)?;
    let ports = json!([{ "name": "http", "port": 8000, "targetPort": "web", "nodePort": 30080 }]);
    let balanced = service("web", json!({ "type": "LoadBalancer", "ports": ports }));
    write(node, "web.yaml", &[workload("Deployment", "web", 1), balanced, client()])?;
    let shown = wait_endpoints(node, "web", 1)?;
    let only = shown["pods"][0].as_str().and_then(|pod| pod.split_once('/')).context("no pod")?.1.to_owned();
    node.wait_running("client")?;
    for to in [format!("{NODE} 30080"), format!("{NODE} 8000"), "web 8000".to_owned()] {
        let answer = wait_fetched(node, "client", &to, "web-")?;
        ensure!(answer == only, "{to}: {answer}");
    }
    let busybox = tools::busybox().context("no busybox")?;
    let address = shown["clusterIPs"][0].as_str().context("no address")?;
    for to in [format!("{NODE} 30080"), format!("{NODE} 8000"), format!("{address} 8000")] {
        let command = request(&to).replace(" nc ", &format!(" {} nc ", busybox.display()));
        let answer = network.run(&["/bin/sh", "-c", &command])?;
        ensure!(answer.trim().ends_with(&only), "from the node, {to}: {answer}");
    }
    let from_itself = node.agent.cli(&["exec", &only, "--", "/bin/sh", "-c", &request("web 8000")])?;
    ensure!(from_itself.stdout.trim().ends_with(&only), "{from_itself:?}");
    Ok(())
}

fn pods_of_a_set_have_names(node: &mut TestNode) -> Result<()> {
    let _network = OwnNetwork::start(node)?;
    let set = with(workload("StatefulSet", "db", 2), json!({ "spec": { "serviceName": "db" } }));
    write(node, "db.yaml", &[set, service("db", json!({ "clusterIP": "None" })), client()])?;
    wait_endpoints(node, "db", 2)?;
    node.wait_running("client")?;
    for ordinal in ["db-0", "db-1"] {
        let answer = wait_fetched(node, "client", &format!("{ordinal}.db 8080"), "db-")?;
        ensure!(answer == ordinal, "{answer}");
    }
    let all = node.exec("client", "main", &["nslookup", "db.default.svc.cluster.local"])?;
    let subnet = node.cni.as_ref().context("no network")?.subnet();
    let prefix = subnet.trim_end_matches("0/24");
    ensure!(all.matches(prefix).count() >= 2, "{all}");
    let text = node.agent.cli(&["services"])?.success()?;
    ensure!(text.contains("None") && text.contains("80/TCP"), "{text}");
    Ok(())
}

fn connections_outlive_the_agent(node: &mut TestNode) -> Result<()> {
    let _network = OwnNetwork::start(node)?;
    let echo = with(
        workload("Deployment", "echo", 1),
        json!({ "spec": { "template": { "spec": { "containers": [shell("main", "exec nc -ll -p 9000 -e /bin/cat")] } } } }),
    );
    let ports = json!([{ "port": 9000 }]);
    write(node, "echo.yaml", &[echo, service("echo", json!({ "ports": ports }))])?;
    let before = wait_endpoints(node, "echo", 1)?;
    // Its input stays open, whoever writes to it.
    let script = "mkfifo /tmp/in; sleep 100000 > /tmp/in & nc echo 9000 < /tmp/in > /tmp/out; echo ended >> /tmp/out; sleep 100000";
    write(
        node,
        "client.yaml",
        &[pod("client", json!({ "hostNetwork": false, "containers": [shell("main", script)] }))],
    )?;
    node.wait_running("client")?;
    let echoed = |node: &TestNode, word: &str| -> Result<()> {
        node.exec("client", "main", &["/bin/sh", "-c", &format!("echo {word} > /tmp/in")])?;
        let output = || node.exec("client", "main", &["cat", "/tmp/out"]);
        wait::until_true(wait::SOON, word, || output().is_ok_and(|text| text.contains(word) && !text.contains("ended")))
            .with_context(|| format!("{:?}\n{}", output(), node.evidence()))
    };
    wait::until_true(wait::SOON, "the pipe", || node.exec("client", "main", &["ls", "/tmp/out"]).is_ok())?;
    echoed(node, "first")?;
    let size = node.agent.log_size();
    node.agent.kill();
    node.agent.start()?;
    wait::until_true(wait::SOON, "the rules of the next agent", || {
        node.agent.log_from(size).contains("rules of Services replaced")
    })?;
    ensure!(wait_endpoints(node, "echo", 1)? == before, "its address has changed");
    echoed(node, "second")
}

fn what_cannot_be_served_says_why(node: &mut TestNode) -> Result<()> {
    let _network = OwnNetwork::start(node)?;
    let at = |name: &str, address: &str| service(name, json!({ "clusterIP": address }));
    write(node, "a.yaml", &[at("a", "10.43.0.20"), at("far", "192.0.2.1")])?;
    let fault = |name: &str| -> Result<String> {
        let said = || shown(node, name).ok().and_then(|service| service["fault"].as_str().map(str::to_owned));
        wait::until(wait::SOON, &format!("what is wrong with {name}"), said)
    };
    ensure!(fault("far")?.contains("not in the valid range"), "{}", fault("far")?);
    let apply = |document: &Value| node.agent.cli_with_input(&["apply", "-f", "-"], document.to_string().as_bytes());
    ensure!(apply(&at("b", "10.43.0.20"))?.success()? == "service/b created\n");
    ensure!(fault("b")?.contains("already allocated"), "{}", fault("b")?);
    node.wait_event("clusterIP 10.43.0.20: the provided IP is already allocated")?;
    let refused = apply(&service("c", json!({ "selector": null })))?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("spec.selector: required"), "{refused:?}");
    ensure!(node.agent.cli(&["delete", "service", "b"])?.success()? == "service \"b\" deleted\n");
    wait::until_true(wait::SOON, "the end of b", || shown(node, "b").is_ok_and(|service| service.is_null()))
}

fn containers_have_the_variables_of_services(node: &mut TestNode) -> Result<()> {
    let _network = OwnNetwork::start(node)?;
    let ports =
        json!([{ "name": "http", "port": 80, "targetPort": "web" }, { "name": "dns", "port": 53, "protocol": "UDP" }]);
    let my_web = service("my-web", json!({ "clusterIP": "10.43.0.20", "ports": ports }));
    let idle = |name: &str, links: bool| {
        pod(name, json!({ "enableServiceLinks": links, "containers": [shell("main", "exec sleep 100000")] }))
    };
    let elsewhere = with(service("far", json!({})), json!({ "metadata": { "namespace": "elsewhere" } }));
    let headless = service("none", json!({ "clusterIP": "None" }));
    // The pod may be first to start: it waits for the addresses.
    write(node, "all.yaml", &[idle("links", true), idle("plain", false), my_web, elsewhere, headless])?;
    let variables = |node: &TestNode, name: &str| -> Result<Vec<String>> {
        let text = node.exec(name, "main", &["/bin/sh", "-c", "env | grep -E '_(SERVICE|PORT)' | sort"]);
        Ok(text.unwrap_or_default().lines().map(str::to_owned).collect())
    };
    for name in ["links", "plain"] {
        node.wait_running(name)?;
    }
    let expected = [
        "MY_WEB_PORT=tcp://10.43.0.20:80",
        "MY_WEB_PORT_53_UDP=udp://10.43.0.20:53",
        "MY_WEB_PORT_53_UDP_ADDR=10.43.0.20",
        "MY_WEB_PORT_53_UDP_PORT=53",
        "MY_WEB_PORT_53_UDP_PROTO=udp",
        "MY_WEB_PORT_80_TCP=tcp://10.43.0.20:80",
        "MY_WEB_PORT_80_TCP_ADDR=10.43.0.20",
        "MY_WEB_PORT_80_TCP_PORT=80",
        "MY_WEB_PORT_80_TCP_PROTO=tcp",
        "MY_WEB_SERVICE_HOST=10.43.0.20",
        "MY_WEB_SERVICE_PORT=80",
        "MY_WEB_SERVICE_PORT_DNS=53",
        "MY_WEB_SERVICE_PORT_HTTP=80",
    ];
    ensure!(variables(node, "links")? == expected, "{:#?}", variables(node, "links")?);
    ensure!(variables(node, "plain")?.is_empty(), "{:#?}", variables(node, "plain")?);
    // A Service that comes later restarts nothing, and its variables are those of later starts.
    write(node, "late.yaml", &[service("late", json!({}))])?;
    wait_endpoints(node, "late", 0)?;
    ensure!(variables(node, "links")? == expected, "{:#?}", variables(node, "links")?);
    write(node, "later.yaml", &[idle("later", true)])?;
    let later = node.wait_running("later")?;
    ensure!(later["status"]["containerStatuses"][0]["restartCount"] == 0, "{later:#}");
    let has = variables(node, "later")?;
    ensure!(has.iter().any(|line| line.starts_with("LATE_SERVICE_HOST=10.43.")), "{has:#?}");
    let links = node.wait_running("links")?;
    ensure!(links["status"]["containerStatuses"][0]["restartCount"] == 0, "{links:#}");
    Ok(())
}
