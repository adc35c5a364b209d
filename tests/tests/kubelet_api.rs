//! kubelet's API on the network: TLS, callers by their certificates, the read-only port and the health port.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::claim::Port;
use limpet_tests::forwarded::{self, Forwarded};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::process::Daemon;
use limpet_tests::{TestNode, case, cgroup, process, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(callers_by_their_certificates).on(|node| node.agent = false),
        case!(ports_without_certificates).on(|node| node.agent = false),
        case!(figures_are_those_of_the_cgroups).on(|node| (node.agent, node.cni) = (false, true)),
        case!(disks_have_the_figures_of_what_lies_on_them).on(|node| node.agent = false),
        case!(limpet_forwards_ports_of_a_pod_until_it_ends).on(|node| node.cni = true),
    ])
}

/// An authority of client certificates, with its own directory.
struct Authority(PathBuf);

impl Authority {
    fn make(dir: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&dir)?;
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority"]);
        process::checked(command.arg("-keyout").arg(dir.join("ca.key")).arg("-out").arg(dir.join("ca.crt")))?;
        Ok(Self(dir))
    }

    /// Issues a key and a certificate for the subject, in one file.
    fn issue(&self, file: &str, subject: &str) -> Result<PathBuf> {
        let pair = self.0.join(file);
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", subject]);
        command.args(["-addext", "basicConstraints=critical,CA:FALSE"]);
        command.arg("-CA").arg(self.0.join("ca.crt")).arg("-CAkey").arg(self.0.join("ca.key"));
        let certificate = pair.with_extension("crt");
        process::checked(command.arg("-keyout").arg(&pair).arg("-out").arg(&certificate))?;
        let both = [std::fs::read(&pair)?, std::fs::read(&certificate)?].concat();
        std::fs::write(&pair, both)?;
        Ok(pair)
    }
}

/// The status and the body of an answer; an error if there was none.
fn get(url: &str, pair: Option<&Path>) -> Result<(u16, String)> {
    let mut command = Command::new("curl");
    command.args(["-sS", "-k", "--max-time", "60", "-w", "\n%{http_code}", url]);
    if let Some(pair) = pair {
        command.arg("--cert").arg(pair);
    }
    let answer = process::checked(&mut command)?;
    let (body, status) = answer.rsplit_once('\n').unwrap_or_default();
    Ok((status.trim().parse()?, body.to_owned()))
}

fn callers_by_their_certificates(node: &mut TestNode) -> Result<()> {
    let (cluster, foreign) = (Authority::make(node.dir().join("own"))?, Authority::make(node.dir().join("foreign"))?);
    let apiserver = cluster.issue("apiserver", "/O=kubeadm:cluster-admins/CN=kube-apiserver-kubelet-client")?;
    let other_node = cluster.issue("node", "/O=system:nodes/CN=system:node:edge2")?;
    let stranger = foreign.issue("stranger", "/O=system:masters/CN=kube-apiserver-kubelet-client")?;
    let trusted = node.dir().join("clients.crt");
    std::fs::copy(cluster.0.join("ca.crt"), &trusted)?;

    let port = Port::claim()?;
    let key = format!(
        "address: 127.0.0.1\nport: {}\nauthentication: {{x509: {{clientCAFile: {}}}}}",
        port.number,
        trusted.display()
    );
    node.agent.reconfigure(|settings| {
        settings.kubelet.push(key);
        settings.limpet.push("serverAllowedNames: [kube-apiserver-kubelet-client]".to_owned());
    })?;
    node.agent.start()?;
    node.apply(&pod("web", json!({ "containers": [shell("main", "echo hello from inside; sleep 1000000")] })))?;
    let web = node.wait_running("web")?;
    let url = |path: &str| format!("https://127.0.0.1:{}{path}", port.number);

    let (status, pods) = wait::until(wait::SOON, "kubelet's API", || get(&url("/pods"), Some(&apiserver)).ok())?;
    let pods: Value = serde_json::from_str(&pods)?;
    ensure!(status == 200 && pods["items"][0]["metadata"]["uid"] == web["metadata"]["uid"], "{status}: {pods}");
    let logs = format!("/containerLogs/default/{}/main?tailLines=1", node.full_name("web"));
    let (status, text) = get(&url(&logs), Some(&apiserver))?;
    ensure!((status, &*text) == (200, "hello from inside\n"), "{status}: {text}");

    for path in ["/stats/summary", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes"] {
        ensure!(get(&url(path), Some(&apiserver))?.0 == 200, "{path} is not served");
    }
    let ports = format!("/portForward/default/{}", node.full_name("web"));
    for path in ["/pods", &logs, &ports, "/metrics", "/metrics/resource", "/stats/summary", "/healthz", "/none"] {
        for (client, why) in [(None, "a client certificate issued by"), (Some(&stranger), "certificate is not valid")] {
            let (status, body) = get(&url(path), client.map(std::path::PathBuf::as_path))?;
            ensure!(status == 401 && body.contains(why), "{path}: {status}: {body}");
        }
        let (status, body) = get(&url(path), Some(&other_node))?;
        ensure!(status == 403 && body.contains("serverAllowedNames does not list it"), "{path}: {status}: {body}");
    }
    for path in ["/limpet/v1/pods", "/api/v1/pods"] {
        ensure!(get(&url(path), Some(&apiserver))?.0 == 404, "{path} is served on the network");
    }

    // The authority is replaced while the agent runs.
    std::fs::copy(foreign.0.join("ca.crt"), &trusted)?;
    ensure!(get(&url("/pods"), Some(&apiserver))?.0 == 401, "an authority that is not trusted any more");
    ensure!(get(&url("/pods"), Some(&stranger))?.0 == 200, "the authority that is trusted now");
    Ok(())
}

fn ports_without_certificates(node: &mut TestNode) -> Result<()> {
    let (read_only, health) = (Port::claim()?, Port::claim()?);
    let keys = format!("address: 127.0.0.1\nreadOnlyPort: {}\nhealthzPort: {}", read_only.number, health.number);
    node.agent.reconfigure(|settings| settings.kubelet.extend(keys.lines().map(str::to_owned)))?;
    node.agent.start()?;
    let status = |port: &Port, path: &str| get(&format!("http://127.0.0.1:{}{path}", port.number), None);
    wait::until(wait::SOON, "both ports", || status(&read_only, "/healthz").and(status(&health, "/healthz")).ok())?;
    let table = [
        (&read_only, "/pods", 200),
        (&read_only, "/metrics", 200),
        (&read_only, "/stats/summary", 200),
        (&read_only, "/metrics/resource", 200),
        (&read_only, "/healthz", 200),
        (&read_only, "/configz", 404),
        (&read_only, "/containerLogs/default/web/main", 404),
        (&read_only, "/portForward/default/web", 404),
        (&health, "/healthz", 200),
        (&health, "/pods", 404),
        (&health, "/metrics", 404),
        (&health, "/stats/summary", 404),
    ];
    for (port, path, expected) in table {
        let (status, body) = status(port, path)?;
        ensure!(status == expected, "{path}: {status} instead of {expected}: {body}");
    }
    Ok(())
}

/// Bytes that the pod `hold` keeps in a variable of its shell.
const HELD: u64 = 24 << 20;

/// A pod that burns CPU and one that holds memory have the figures that their cgroups' files have.
fn figures_are_those_of_the_cgroups(node: &mut TestNode) -> Result<()> {
    let port = Port::claim()?;
    let keys = format!("address: 127.0.0.1\nreadOnlyPort: {}", port.number);
    node.agent.reconfigure(|settings| settings.kubelet.extend(keys.lines().map(str::to_owned)))?;
    node.agent.start()?;
    let limit = json!({ "resources": { "limits": { "memory": "128Mi" } } });
    node.apply(&pod("burn", json!({ "hostNetwork": false, "containers": [shell("main", "while :; do :; done")] })))?;
    let script = format!("x=$(head -c {HELD} /dev/zero | tr '\\0' x); echo ${{#x}}; {IDLE}");
    node.apply(&pod("hold", json!({ "containers": [with(shell("main", &script), limit)] })))?;
    let burn = cgroup::main_process(node, &node.wait_running("burn")?)?;
    let hold = cgroup::main_process(node, &node.wait_running("hold")?)?;
    node.wait_logged("hold", "main", &HELD.to_string())?;
    // The shell still has a second copy when it writes that.
    let settled = || statistic(hold, "total_rss", "anon").is_ok_and(|rss| rss < HELD * 3 / 2);
    wait::until_true(wait::SOON, "the shell to free its buffer", settled)?;

    let page = |path: &str| {
        let (status, body) = get(&format!("http://127.0.0.1:{}{path}", port.number), None)?;
        ensure!(status == 200, "{path}: {status}: {body}");
        Ok(body)
    };
    let summary =
        |query: &str| -> Result<Value> { Ok(serde_json::from_str(&page(&format!("/stats/summary{query}"))?)?) };

    // A single reading gives no use of CPU. The counters are between those of the file before and after.
    let (before, first, after) = (spent(burn)?, summary("")?, spent(burn)?);
    let main = &of_pod(node, &first, "burn")["containers"][0];
    between(before, main["cpu"]["usageCoreNanoSeconds"].as_u64(), after)?;
    ensure!(main["cpu"]["usageNanoCores"].is_null() && main["name"] == "main", "{main}");
    let traffic = &of_pod(node, &first, "burn")["network"];
    ensure!(traffic["name"] == "eth0" && traffic["rxBytes"].is_u64(), "{traffic}");
    ensure!(of_pod(node, &first, "hold")["network"].is_null(), "the node's network is not the pod's");
    let rates = wait::until(wait::SOON, "the use between two requests", || {
        let now = summary("?only_cpu_and_memory=true").ok()?;
        let rate = |pod: &str| of_pod(node, &now, pod)["cpu"]["usageNanoCores"].as_u64();
        Some((rate("burn")?, rate("hold")?))
    })?;
    ensure!(rates.0 > rates.1, "{rates:?}");

    let held = &of_pod(node, &first, "hold")["containers"][0]["memory"];
    let (rss, working_set) = (held["rssBytes"].as_u64(), held["workingSetBytes"].as_u64());
    let in_file = statistic(hold, "total_rss", "anon")?;
    // The kernel counts pages in batches.
    between(in_file.saturating_sub(2 << 20), rss, in_file + (2 << 20)).with_context(|| held.to_string())?;
    ensure!(rss >= Some(HELD) && working_set >= rss, "{held}");
    ensure!(held["availableBytes"].as_u64() == working_set.map(|used| (128 << 20) - used), "{held}");
    let node_memory = &first["node"]["memory"];
    ensure!(
        node_memory["workingSetBytes"].as_u64() > working_set && first["node"]["fs"]["usedBytes"].is_u64(),
        "{first}"
    );

    // The page that metrics-server reads.
    let (before, metrics, after) = (spent(burn)?, page("/metrics/resource")?, spent(burn)?);
    let seconds = series(&metrics, &format!("container_cpu_usage_seconds_total{}", labels(node, "burn")))?;
    between(before, Some((seconds * 1e9) as u64), after + 1_000)?;
    let bytes = series(&metrics, &format!("container_memory_working_set_bytes{}", labels(node, "hold")))?;
    ensure!(bytes >= HELD as f64 && metrics.contains("\nresource_scrape_error 0\n"), "{metrics}");
    let cadvisor = page("/metrics/cadvisor")?;
    ensure!(cadvisor.contains("container_network_receive_bytes_total{interface=\"eth0\""), "{cadvisor}");

    // The table of `limpet top`.
    let table = node.agent.cli(&["top"])?.success()?;
    let row = |pod: &str| {
        let name = node.full_name(pod);
        let line = table.lines().find(|line| line.starts_with(&name)).with_context(|| format!("no {name}: {table}"))?;
        let mut cells = line.split_whitespace().skip(1);
        let cpu = cells.next().and_then(|cell| cell.strip_suffix('m')?.parse::<u64>().ok());
        let memory = cells.next().and_then(|cell| cell.strip_suffix("Mi")?.parse::<u64>().ok());
        cpu.zip(memory).with_context(|| line.to_owned())
    };
    ensure!(row("burn")?.0 > row("hold")?.0 && row("hold")?.1 >= HELD >> 20, "{table}");
    let list: Value = serde_json::from_str(&node.agent.cli(&["top", "containers", "-o", "json"])?.success()?)?;
    ensure!(list["kind"] == "PodMetricsList" && list["items"].as_array().is_some_and(|pods| pods.len() == 2), "{list}");

    // A pod that is gone has no figures.
    node.remove("burn")?;
    node.wait_gone("burn")?;
    ensure!(
        of_pod(node, &summary("")?, "burn").is_null() && !page("/metrics/resource")?.contains("pod=\"burn"),
        "kept"
    );
    Ok(())
}

/// What a pod writes into its layer, its volumes and its log is in the summary, as it was measured the first time.
fn disks_have_the_figures_of_what_lies_on_them(node: &mut TestNode) -> Result<()> {
    let port = Port::claim()?;
    let keys = format!("address: 127.0.0.1\nreadOnlyPort: {}", port.number);
    node.agent.reconfigure(|settings| settings.kubelet.extend(keys.lines().map(str::to_owned)))?;
    node.agent.start()?;
    let write = |path: &str, mebibytes: u64| format!("head -c {} /dev/zero > {path}; ", mebibytes << 20);
    let script =
        format!("{}{}{}sync; echo written; {IDLE}", write("/layer", 4), write("/data/f", 8), write("/memory/f", 2));
    let mounts = json!([{ "name": "data", "mountPath": "/data" }, { "name": "memory", "mountPath": "/memory" }]);
    node.apply(&pod(
        "store",
        json!({
            "containers": [with(shell("main", &script), json!({ "volumeMounts": mounts }))],
            "volumes": [
                { "name": "data", "emptyDir": {} },
                { "name": "memory", "emptyDir": { "medium": "Memory", "sizeLimit": "16Mi" } },
                { "name": "host", "hostPath": { "path": "/tmp" } },
            ],
        }),
    ))?;
    node.wait_logged("store", "main", "written")?;
    let summary = |query: &str| -> Result<Value> {
        let url = format!("http://127.0.0.1:{}/stats/summary{query}", port.number);
        let (status, body) = wait::until(wait::SOON, "the read-only port", || get(&url, None).ok())?;
        ensure!(status == 200, "{status}: {body}");
        Ok(serde_json::from_str(&body)?)
    };
    let basic = of_pod(node, &summary("?only_cpu_and_memory=true")?, "store");
    ensure!(basic["volume"].is_null() && basic["containers"][0]["rootfs"].is_null(), "{basic}");

    let first = summary("")?;
    let store = of_pod(node, &first, "store");
    let main = &store["containers"][0];
    let bytes = |stats: &Value| stats["usedBytes"].as_u64();
    // The directories themselves take a little.
    let near = |stats: &Value, mebibytes: u64| between(mebibytes << 20, bytes(stats), (mebibytes << 20) + (256 << 10));
    near(&main["rootfs"], 4).with_context(|| store.to_string())?;
    between(1, bytes(&main["logs"]), 64 << 10).with_context(|| store.to_string())?;
    let volumes: Vec<_> = store["volume"].as_array().into_iter().flatten().collect();
    let names: Vec<_> = volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
    ensure!(names == ["data", "memory"], "{store}");
    near(volumes[0], 8).and(near(volumes[1], 2)).with_context(|| store.to_string())?;
    ensure!(volumes[1]["capacityBytes"] == 16 << 20, "{store}");
    near(&store["ephemeral-storage"], 12).with_context(|| store.to_string())?;
    let runtime = &first["node"]["runtime"];
    ensure!(bytes(&runtime["imageFs"]) > bytes(&main["rootfs"]), "{runtime}");
    ensure!(runtime["imageFs"] == runtime["containerFs"] && runtime["imageFs"]["capacityBytes"].is_u64(), "{runtime}");

    node.exec("store", "main", &["/bin/sh", "-c", &write("/data/more", 8)])?;
    let again = of_pod(node, &summary("")?, "store");
    ensure!(again["volume"] == store["volume"], "measured twice in a minute: {again}");
    Ok(())
}

/// The nanoseconds of CPU time in the file of a process' cgroup.
fn spent(pid: u32) -> Result<u64> {
    let text = cgroup::value(pid, "cpuacct", "cpuacct.usage", "cpu.stat")?;
    match text.lines().find_map(|line| line.strip_prefix("usage_usec ")) {
        Some(microseconds) => Ok(microseconds.parse::<u64>()? * 1_000),
        None => Ok(text.parse()?),
    }
}

/// A line of the `memory.stat` of a process' cgroup.
fn statistic(pid: u32, v1: &str, v2: &str) -> Result<u64> {
    let text = cgroup::value(pid, "memory", "memory.stat", "memory.stat")?;
    let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    Ok(value(v1).or_else(|| value(v2)).with_context(|| text.clone())?.parse()?)
}

fn between(low: u64, value: Option<u64>, high: u64) -> Result<()> {
    ensure!(value.is_some_and(|value| (low..=high).contains(&value)), "{value:?} is not in {low}..={high}");
    Ok(())
}

fn of_pod(node: &TestNode, summary: &Value, pod: &str) -> Value {
    let name = node.full_name(pod);
    let pods = summary["pods"].as_array().into_iter().flatten();
    pods.into_iter().find(|pod| pod["podRef"]["name"] == name).cloned().unwrap_or_default()
}

fn labels(node: &TestNode, pod: &str) -> String {
    format!("{{container=\"main\",namespace=\"default\",pod=\"{}\"}} ", node.full_name(pod))
}

/// The value of a series, whose name, labels and space are `start`.
fn series(page: &str, start: &str) -> Result<f64> {
    let line =
        page.lines().find_map(|line| line.strip_prefix(start)).with_context(|| format!("no {start} in {page}"))?;
    let (value, time) = line.split_once(' ').context("without a time")?;
    ensure!(time.parse::<u64>().is_ok(), "{line}");
    Ok(value.parse()?)
}

fn limpet_forwards_ports_of_a_pod_until_it_ends(node: &mut TestNode) -> Result<()> {
    node.apply(&forwarded::server("web"))?;
    node.wait_logged("web", "main", "serves")?;
    let forward = |ports: &str| node.agent.cli_command(&["port-forward", "web", ports, "--address", "127.0.0.1"]);
    let log = node.dir().join("port-forward.log");
    let forwarded = Forwarded::start(&mut forward(&format!(":{}", forwarded::PORT))?, &log)?;
    forwarded.check(node, "web")?;

    // A port without a listener is reported, and the others keep working.
    let log = node.dir().join("port-forward-nobody.log");
    let nobody = Port::claim()?;
    let unserved = Daemon::start(&mut forward(&format!("{}:81", nobody.number))?, &log)?;
    let address = format!("127.0.0.1:{}", nobody.number);
    wait::until(wait::SOON, "the forwarded port", || std::net::TcpStream::connect(&address).ok())?;
    let said = format!("error: an error occurred forwarding {} -> 81: error forwarding port 81 to pod", nobody.number);
    wait::until_true(wait::SOON, "the error", || unserved.log().contains(&said))?;
    forwarded.check(node, "web")?;

    node.remove("web")?;
    node.wait_gone("web")?;
    wait::until_true(wait::SOON, "the end of both", || {
        [forwarded.log(), unserved.log()].iter().all(|log| log.ends_with("error: lost connection to pod\n"))
    })
}
