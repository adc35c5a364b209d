//! What probes cost: pods with a startup, a readiness and a liveness probe each, every ten seconds; wake-ups, processor
//! time and memory of limpet and, with `--kubelet`, of a real kubelet, beside what containerd and the shims need for
//! them.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::containerd::Containerd;
use limpet_tests::contender::{Contender, Stage, apply, remove, settle, wait_ready};
use limpet_tests::footprint::{Footprint, pids, processor};
use limpet_tests::grpc_health::HealthServer;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::{measure, wait};
use serde_json::{Value, json};

/// How many pods are probed, and how many run without probes before that.
const PODS: usize = 100;
/// A probe of each kind: at the start, of readiness, of liveness.
const PROBES_OF_POD: usize = 3;
/// How much private memory of limpet a probe may take.
const KIB_OF_PROBE: usize = 4;
/// Every probe's period.
const PERIOD_SECONDS: u32 = 10;
/// How long the effects of the last start may still last.
const SETTLE_TIME: Duration = Duration::from_secs(15);

fn main() -> Result<()> {
    let window = Duration::from_secs(measure::setting(measure::SECONDS_VARIABLE, 60)? as u64);
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    println!(
        "containerd {}.{}, {window:?} each; {PODS} pods of one container on the host network, probed every {PERIOD_SECONDS} s",
        version.0, version.1
    );
    let rows = stage.measure(|stage| measure_all(stage, window))?;
    print(&rows);
    measure::write(env!("CARGO_TARGET_TMPDIR"), "probes", version, rows.iter().map(Row::json).collect())?;
    stage.finish()?;
    check_budget(&rows)
}

/// The handlers with which the pods are probed.
const HANDLERS: [&str; 5] = ["none", "tcpSocket", "httpGet", "grpc", "exec"];

/// The servers to which the probes connect. The pods are on the host's network.
struct Servers {
    tcp: u16,
    http: u16,
    grpc: HealthServer,
}

impl Servers {
    fn start() -> Result<Self> {
        let tcp = serve(drop)?;
        let http = serve(|mut stream| {
            stream.set_read_timeout(Some(Duration::from_secs(1))).ok();
            // The client's request fits into one read.
            if matches!(stream.read(&mut [0; 4_096]), Ok(1..)) {
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok").ok();
            }
        })?;
        Ok(Self { tcp, http, grpc: HealthServer::start()? })
    }
}

/// Answers each connection until the bench ends; returns the port.
fn serve(answer: impl Fn(TcpStream) + Send + 'static) -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    let port = listener.local_addr()?.port();
    thread::spawn(move || listener.incoming().flatten().for_each(answer));
    Ok(port)
}

/// What the processes of one kind cost per second.
struct Row {
    who: &'static str,
    handler: &'static str,
    kind: &'static str,
    private_kib: u64,
    wakes: f64,
    /// Processor time in milliseconds a second.
    busy: f64,
    /// Bytes written to disks a minute.
    written: f64,
}

impl Row {
    fn json(&self) -> Value {
        json!({
            "who": self.who, "probes": self.handler, "kind": self.kind, "private_kib": self.private_kib,
            "wakes_a_second": self.wakes, "busy_ms_a_second": self.busy, "written_bytes_a_minute": self.written,
        })
    }
}

fn measure_all(stage: &mut Stage, window: Duration) -> Result<Vec<Row>> {
    let dir = stage.node.dir().to_owned();
    let servers = Servers::start()?;
    let (contenders, containerd) = stage.parts();
    let mut rows = Vec::new();
    for contender in contenders {
        for handler in HANDLERS {
            // Each handler has its own agent, because the burst of a hundred starts leaves its mark on the heap.
            contender.start()?;
            (0..PODS).try_for_each(|number| apply(contender, &probed(number, handler, &servers)))?;
            wait_ready(contender, PODS)?;
            pass(SETTLE_TIME)?;
            let kinds = processes(contender, containerd, &dir)?;
            let before: Vec<_> =
                kinds.iter().map(|(_, pids)| (Footprint::measure_all(pids), processor(pids))).collect();
            pass(window)?;
            for ((kind, pids), (cost, busy_before)) in kinds.into_iter().zip(before) {
                let (after, busy) = (Footprint::measure_all(&pids), processor(&pids).saturating_sub(busy_before));
                rows.push(Row {
                    who: contender.name(),
                    handler,
                    kind,
                    private_kib: after.private,
                    wakes: after.wakes.saturating_sub(cost.wakes) as f64 / window.as_secs_f64(),
                    busy: busy.as_secs_f64() * 1e3 / window.as_secs_f64(),
                    written: after.written.saturating_sub(cost.written) as f64 * 60.0 / window.as_secs_f64(),
                });
            }
            (0..PODS).try_for_each(|number| remove(contender, &name(number)))?;
            settle(contender, containerd)?;
            contender.stop()?;
        }
    }
    Ok(rows)
}

/// Checks that limpet needs no more than its budget above what it needs without probes.
fn check_budget(rows: &[Row]) -> Result<()> {
    let mut of_agent = rows.iter().filter(|row| row.who == "limpet" && row.kind == "agent");
    let without = of_agent.clone().find(|row| row.handler == HANDLERS[0]).context("nothing was measured")?.private_kib;
    let budget = (PODS * PROBES_OF_POD * KIB_OF_PROBE) as u64;
    of_agent.try_for_each(|Row { handler, private_kib, .. }| {
        let more = private_kib.saturating_sub(without);
        ensure!(more <= budget, "probes by {handler} take {more} KiB of private memory, of a budget of {budget}");
        Ok(())
    })
}

fn name(number: usize) -> String {
    format!("probed-{number}")
}

fn probed(number: usize, handler: &str, servers: &Servers) -> Value {
    let action = match handler {
        "exec" => json!({ "exec": { "command": ["true"] } }),
        "tcpSocket" => json!({ "tcpSocket": { "port": servers.tcp } }),
        "httpGet" => json!({ "httpGet": { "port": servers.http, "path": "/healthz" } }),
        "grpc" => json!({ "grpc": { "port": servers.grpc.port } }),
        _ => return pod(&name(number), json!({ "containers": [shell("main", IDLE)] })),
    };
    let probe = with(action, json!({ "periodSeconds": PERIOD_SECONDS, "timeoutSeconds": PERIOD_SECONDS }));
    let probes = json!({ "startupProbe": probe, "readinessProbe": probe, "livenessProbe": probe });
    pod(&name(number), json!({ "containers": [with(shell("main", IDLE), probes)] }))
}

/// Lets time pass. It is measured how little happens, so there is no event to wait for.
fn pass(time: Duration) -> Result<()> {
    let start = std::time::Instant::now();
    while start.elapsed() < time {
        ensure!(!wait::interrupted(), "interrupted");
        thread::sleep(Duration::from_millis(500).min(time));
    }
    Ok(())
}

fn processes(contender: &dyn Contender, containerd: &Containerd, dir: &Path) -> Result<Vec<(&'static str, Vec<u32>)>> {
    let agent = contender.pid().with_context(|| format!("{} does not run", contender.name()))?;
    Ok(vec![
        ("agent", vec![agent]),
        ("shims", pids(dir, "containerd-shim")),
        ("containerd", containerd.pid().into_iter().collect()),
    ])
}

fn print(rows: &[Row]) {
    println!(
        "\n{:<8} {:<10} {:<11} {:>12} {:>10} {:>10} {:>12}",
        "of", "probes", "processes", "private MiB", "wakes/s", "ms/s", "kB/min"
    );
    for Row { who, handler, kind, private_kib, wakes, busy, written } in rows {
        let mib = *private_kib as f64 / 1024.0;
        println!("{who:<8} {handler:<10} {kind:<11} {mib:>12.1} {wakes:>10.1} {busy:>10.1} {:>12.1}", written / 1e3);
    }
}
