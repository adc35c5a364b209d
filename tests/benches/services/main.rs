//! What Services cost the agent: its memory with none and with a hundred, and the time from a pod's readiness to a connection
//! through its Service. How fast connections are is measured by the bench `rules` in `agent/services`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::contender::{Contender, Stage};
use limpet_tests::footprint::Footprint;
use limpet_tests::manifest::{self, shell, with};
use limpet_tests::measure::{self, Durations};
use limpet_tests::own_network::{self, NODE};
use limpet_tests::wait;
use serde_json::{Value, json};

/// How many pods there are, each of a Deployment.
const PODS: usize = 10;
/// How many Services there are in the end.
const SERVICES: usize = 100;
/// How long the effects of a change may still last.
const SETTLE_TIME: Duration = Duration::from_secs(15);
/// The most pods whose readiness is followed.
const MOST_RUNS: usize = 20;
/// The time between two tries to connect.
const INTERVAL: Duration = Duration::from_micros(500);

fn main() -> Result<()> {
    own_network::enter()?;
    let runs = measure::setting(measure::RUNS_VARIABLE, MOST_RUNS)?.min(MOST_RUNS);
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!("containerd {}.{}, {PODS} pods, {SERVICES} Services, {runs} pods that get ready", version.0, version.1);
    let (memory, durations) = stage.measure(|stage| {
        let agent = &mut stage.node.agent;
        agent.reconfigure(|settings| settings.limpet.push(format!("nodeIP: {NODE}")))?;
        agent.start()?;
        Ok((memory(&stage.node)?, readiness(&stage.node, runs)?))
    })?;
    for (what, footprint) in &memory {
        println!(
            "{what:<36} {:>8.2} MiB private {:>8.2} MiB PSS",
            footprint.private as f64 / 1024.0,
            footprint.pss as f64 / 1024.0
        );
    }
    print!("{}", durations.table());
    let rows = memory.iter().map(|(what, it)| json!({ "what": what, "private_kib": it.private, "pss_kib": it.pss }));
    let rows = rows.chain(durations.json().as_array().cloned().unwrap_or_default()).collect();
    measure::write(env!("CARGO_TARGET_TMPDIR"), "services", version, rows)?;
    stage.finish()
}

fn deployment(name: &str) -> Value {
    let script = "trap 'exit 0' TERM; httpd -p 8080 -h /tmp; sleep 100000 & wait";
    let probe = json!({ "readinessProbe": { "tcpSocket": { "port": 8080 }, "periodSeconds": 1 } });
    let template = json!({
        "metadata": { "labels": { "app": name } },
        "spec": { "terminationGracePeriodSeconds": 1, "containers": [with(shell("main", script), probe)] },
    });
    json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": { "name": name },
        "spec": { "selector": { "matchLabels": { "app": name } }, "template": template } })
}

fn service(name: &str, app: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": app }, "ports": [{ "port": 80, "targetPort": 8080 }] } })
}

fn write(node: &TestNode, file: &str, documents: &[Value]) -> Result<()> {
    let text: Vec<_> = documents.iter().map(Value::to_string).collect();
    manifest::put(&node.agent.settings().manifests(), file, &text.join("\n---\n"))
}

/// The Services that have endpoints, with their addresses.
fn served(node: &TestNode) -> Result<Vec<(String, SocketAddr)>> {
    let document: Value = serde_json::from_slice(&node.agent.get("/limpet/v1/services")?)?;
    let served = document["services"].as_array().into_iter().flatten();
    let served = served.filter(|it| it["ports"][0]["endpoints"].as_array().is_some_and(|ends| !ends.is_empty()));
    let at = |service: &Value| {
        let address: std::net::IpAddr = service["clusterIPs"][0].as_str()?.parse().ok()?;
        Some((service["name"].as_str()?.to_owned(), SocketAddr::from((address, 80))))
    };
    Ok(served.filter_map(at).collect())
}

/// The agent's memory with pods alone, with one Service, and with a hundred.
fn memory(node: &TestNode) -> Result<Vec<(String, Footprint)>> {
    let pid = node.agent.pid().context("the agent does not run")?;
    let apps: Vec<_> = (0..PODS).map(|number| deployment(&format!("app-{number}"))).collect();
    write(node, "apps.yaml", &apps)?;
    wait::until_true(wait::SOON * 2, "all pods", || {
        node.pods().is_ok_and(|pods| limpet_tests::contender::ready(&pods) == PODS)
    })?;
    let mut rows = Vec::new();
    for count in [0, 1, SERVICES] {
        let services: Vec<_> =
            (0..count).map(|number| service(&format!("svc-{number}"), &format!("app-{}", number % PODS))).collect();
        if count > 0 {
            write(node, "services.yaml", &services)?;
        }
        wait::until_true(wait::SOON, "all Services", || served(node).is_ok_and(|served| served.len() == count))?;
        wait::pass(SETTLE_TIME)?;
        rows.push((format!("{PODS} pods, {count} Services"), Footprint::measure(pid)));
    }
    Ok(rows)
}

/// From the readiness of a pod, as the agent's own watch shows it, to a connection through its Service. All Services of
/// [`memory`] are there.
fn readiness(node: &TestNode, runs: usize) -> Result<Durations> {
    let mut durations = Durations::default();
    write(node, "late-service.yaml", &[service("late", "late")])?;
    let address = || -> Result<SocketAddr> {
        let document: Value = serde_json::from_slice(&node.agent.get("/limpet/v1/services")?)?;
        let mut services = document["services"].as_array().into_iter().flatten();
        let late = services.find(|it| it["name"] == "late").context("no Service")?;
        Ok(SocketAddr::from((late["clusterIPs"][0].as_str().context("no address")?.parse::<std::net::IpAddr>()?, 80)))
    };
    let address = wait::until(wait::SOON, "the Service's address", || address().ok())?;
    for _ in 0..runs {
        let socket = node.agent.settings().socket();
        let watch = thread::spawn(move || seen_ready(&socket, "late-"));
        write(node, "late.yaml", &[deployment("late")])?;
        let connected = first_connection(address)?;
        let ready = watch.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        // The watch may learn of it later than the kernel.
        durations.add(
            "a pod gets ready",
            "readiness -> connection",
            "limpet",
            &[connected.saturating_duration_since(ready)],
        );
        std::fs::remove_file(node.agent.settings().manifests().join("late.yaml"))?;
        wait::until_true(wait::SOON, "the pod's end", || node.pods().is_ok_and(|pods| pods.len() == PODS))?;
    }
    Ok(durations)
}

fn first_connection(address: SocketAddr) -> Result<Instant> {
    wait::until_every(INTERVAL, wait::SOON, "a connection", || {
        TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok().map(|_| Instant::now())
    })
}

/// The moment at which the agent shows a pod as ready whose name begins so.
fn seen_ready(socket: &Path, prefix: &str) -> Result<Instant> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(wait::soon()))?;
    stream.write_all(b"GET /limpet/v1/pods?watch=1 HTTP/1.0\r\nHost: limpet\r\n\r\n")?;
    for line in BufReader::new(stream).lines() {
        let line = line?;
        let at = Instant::now();
        let Ok(change) = serde_json::from_str::<Value>(&line) else { continue };
        let pod = &change["entry"]["pod"];
        let is_it = pod["metadata"]["name"].as_str().is_some_and(|name| name.starts_with(prefix));
        let conditions = pod["status"]["conditions"].as_array().into_iter().flatten();
        if is_it && conditions.into_iter().any(|it| it["type"] == "Ready" && it["status"] == "True") {
            return Ok(at);
        }
    }
    ensure!(false, "the watch has ended");
    Ok(Instant::now())
}
