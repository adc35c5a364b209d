//! What a cluster of many nodes costs: hollow nodes in one process against one apiserver with its defaults. They join,
//! run pods, lie idle, and come back together from an outage during which a pod of each has ended.

use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::footprint::{Footprint, processor};
use limpet_tests::hollow::{HollowNodes, NODES_VARIABLE, Requests, bound_pod, states};
use limpet_tests::wire::{Traffic, Wire};
use limpet_tests::{agent, measure, process, wait};
use serde_json::{Value, json};

/// Pods of each node that run on.
const PODS: usize = 5;
/// After how many seconds the node ends its last pod, which is during the outage.
const DEADLINE: u64 = 60;
/// How long the apiserver is away after that.
const OUTAGE_DURATION: Duration = Duration::from_secs(30);
/// How long the effects of a start may still last.
const SETTLE_TIME: Duration = Duration::from_secs(15);
/// The interval between reads of the nodes' progress; each costs the apiserver a list of all pods.
const POLL_INTERVAL: Duration = Duration::from_secs(2);
/// A limit that nothing here reaches.
const WAIT_TIMEOUT: Duration = Duration::from_secs(900);
const PODS_PATH: &str = "/api/v1/namespaces/default/pods";

fn main() -> Result<()> {
    wait::end_on_signal();
    let count = measure::setting(NODES_VARIABLE, 1_000)?;
    let window = Duration::from_secs(measure::setting(measure::SECONDS_VARIABLE, 60)? as u64);
    let mut cluster = Cluster::boot()?;
    cluster.add_account()?;
    let wire = Wire::to(cluster.port())?;
    let kubeconfig = cluster.kubeconfig_at(&wire.address())?;
    let dir = PathBuf::from(format!("/dev/shm/limpet-bench-{}", std::process::id()));
    std::fs::create_dir(&dir).with_context(|| format!("{}", dir.display()))?;
    let program = agent::hollow_nodes_program(&["--release"])?;
    println!("{count} hollow nodes of {PODS} pods, one apiserver with its defaults; idle for {window:?}");
    let mut bench = Bench { count, wire, rows: Vec::new() };
    let measured = HollowNodes::start(&program, &kubeconfig, count, &dir, &[])
        .and_then(|hollow| bench.measure(hollow, &mut cluster, window));
    std::fs::remove_dir_all(&dir).ok();
    measured?;
    measure::write_document(env!("CARGO_TARGET_TMPDIR"), "hollow", &json!({ "nodes": count, "rows": bench.rows }))
}

/// The means and the results of the measurement.
struct Bench {
    count: usize,
    wire: Wire,
    rows: Vec<Value>,
}

/// The counts at one moment.
struct Mark {
    at: Instant,
    requests: Requests,
    traffic: Traffic,
    processor: Duration,
}

impl Bench {
    fn measure(&mut self, hollow: HollowNodes, cluster: &mut Cluster, window: Duration) -> Result<()> {
        let result = self.measure_all(&hollow, cluster, window);
        let said = || process::tail(&hollow.log(), 20);
        result.with_context(said)?;
        hollow.stop()
    }

    fn measure_all(&mut self, hollow: &HollowNodes, cluster: &mut Cluster, window: Duration) -> Result<()> {
        let begun = self.mark(hollow, cluster)?;
        until(|| Ok(hollow.ready(cluster, "")? == self.count))?;
        self.row("join", begun, hollow, cluster)?;
        thread::sleep(SETTLE_TIME);
        self.memory("joined", hollow);

        let begun = self.mark(hollow, cluster)?;
        self.create(cluster, 0..PODS, None)?;
        until(|| Ok(states(cluster)?.get("Running") == Some(&(self.count * PODS))))?;
        self.row("start of the pods", begun, hollow, cluster)?;
        thread::sleep(SETTLE_TIME);
        self.memory("with their pods", hollow);

        let begun = self.mark(hollow, cluster)?;
        thread::sleep(window);
        self.row("idle", begun, hollow, cluster)?;

        self.create(cluster, PODS..PODS + 1, Some(DEADLINE))?;
        until(|| Ok(states(cluster)?.get("Running").copied().unwrap_or(0) >= self.count * PODS))?;
        cluster.kill();
        thread::sleep(Duration::from_secs(DEADLINE) + OUTAGE_DURATION);
        self.memory("at the end of the outage", hollow);
        self.come_back(hollow, cluster)?;
        self.memory("after the outage", hollow);

        let begun = self.mark(hollow, cluster)?;
        let mut deleted = false;
        until(|| {
            // One request may not delete many pods within its time limit.
            deleted = deleted || cluster.delete(PODS_PATH).is_ok();
            Ok(deleted && states(cluster)?.is_empty())
        })?;
        self.row("end of the pods", begun, hollow, cluster)
    }

    /// Starts the apiserver again, and waits until its view is that of the nodes.
    fn come_back(&mut self, hollow: &HollowNodes, cluster: &mut Cluster) -> Result<()> {
        let (outage, traffic) = (process::output("date", &["--utc", "+%Y-%m-%dT%H:%M:%SZ"])?, self.wire.traffic());
        let processor = processor(&[hollow.pid()]);
        cluster.start()?;
        // The apiserver's counts begin again at zero.
        let begun = Mark { at: Instant::now(), requests: Requests::default(), traffic, processor };
        let (mut ready, mut truth) = (None, None);
        until(|| {
            let at = begun.at.elapsed();
            if ready.is_none() && hollow.ready(cluster, outage.trim())? == self.count {
                ready = Some(at);
            }
            let states = states(cluster)?;
            let (running, failed) = (states.get("Running"), states.get("Failed: DeadlineExceeded"));
            if truth.is_none() && running == Some(&(self.count * PODS)) && failed == Some(&self.count) {
                truth = Some(at);
            }
            Ok(ready.is_some() && truth.is_some())
        })?;
        let seconds = |at: Option<Duration>| at.unwrap_or_default().as_secs_f64();
        println!(
            "back: the last node ready after {:.1} s, the last status true after {:.1} s",
            seconds(ready),
            seconds(truth)
        );
        self.rows.push(json!({ "what": "back", "ready_seconds": seconds(ready), "true_seconds": seconds(truth) }));
        self.row("return from the outage", begun, hollow, cluster)
    }

    fn create(&self, cluster: &Cluster, numbers: std::ops::Range<usize>, deadline: Option<u64>) -> Result<()> {
        let pods = numbers.flat_map(|number| (0..self.count).map(move |node| bound_pod(node, number, deadline)));
        cluster.create_all(PODS_PATH, &pods.collect::<Vec<_>>())
    }

    fn mark(&self, hollow: &HollowNodes, cluster: &Cluster) -> Result<Mark> {
        let (requests, traffic, processor) =
            (Requests::fetch(cluster)?, self.wire.traffic(), processor(&[hollow.pid()]));
        Ok(Mark { at: Instant::now(), requests, traffic, processor })
    }

    /// Adds a row with the requests and bytes of each node since `begun`.
    fn row(&mut self, what: &str, begun: Mark, hollow: &HollowNodes, cluster: &Cluster) -> Result<()> {
        let now = self.mark(hollow, cluster)?;
        let took = now.at.duration_since(begun.at);
        let (requests, traffic) = (now.requests.since(&begun.requests), now.traffic - begun.traffic);
        let each = |count: u64| count as f64 / self.count as f64;
        println!(
            "{what:<26} {:>7.1} s  {:>7.1} requests, {:>8.1} kB, {:>5.1} connections, {:>5.0} ms of processor a node; rejected: {:?}",
            took.as_secs_f64(),
            each(requests.total()),
            each(traffic.bytes()) / 1e3,
            each(traffic.connections),
            (now.processor - begun.processor).as_secs_f64() * 1e3 / self.count as f64,
            requests.rejected,
        );
        for (kind, count) in requests.by_kind.iter().filter(|(_, count)| **count * 20 > self.count as u64) {
            println!("    {kind:<40} {:>8.2}", each(*count));
        }
        self.rows.push(json!({
            "what": what, "seconds": took.as_secs_f64(), "requests": requests.by_kind, "rejected": requests.rejected,
            "sent": traffic.sent, "received": traffic.received, "connections": traffic.connections,
            "processor_seconds": (now.processor - begun.processor).as_secs_f64(),
        }));
        Ok(())
    }

    fn memory(&mut self, when: &str, hollow: &HollowNodes) {
        let cost = Footprint::measure(hollow.pid());
        println!(
            "memory {when:<26} {:.0} kB private a node ({} MiB; {} descriptors, {} threads)",
            cost.private as f64 * 1.024 / self.count as f64,
            cost.private >> 10,
            cost.descriptors,
            cost.threads
        );
        self.rows.push(json!({ "what": when, "private_kib": cost.private, "descriptors": cost.descriptors }));
    }
}

/// Waits until `fact` holds, which is checked rarely.
fn until(mut fact: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !fact()? {
        ensure!(begun.elapsed() < WAIT_TIMEOUT, "waited in vain");
        ensure!(!wait::interrupted(), "interrupted");
        thread::sleep(POLL_INTERVAL);
    }
    Ok(())
}
