//! What being a node of a cluster costs: requests and bytes while nothing happens and for each pod, memory with a live
//! connection, what is written while there is none, and how long the cluster's view is untrue after its return; of
//! limpet and, with `--kubelet`, of a real kubelet, in turns, against one apiserver.

mod table;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::audit::Audit;
use limpet_tests::cluster::{Cluster, condition};
use limpet_tests::containerd::Containerd;
use limpet_tests::contender::{Contender, Stage, ready};
use limpet_tests::footprint::{Footprint, pids, processor};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::wire::{Traffic, Wire};
use limpet_tests::{measure, wait};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use table::Row;

/// How many pods are idle, and change while there is no connection.
const PODS: usize = 50;
/// How many pods are created and deleted.
const CHANGING_PODS: usize = 10;
/// How long the effects of the last change may still last.
const SETTLE_TIME: Duration = Duration::from_secs(60);
/// A limit that nothing here reaches.
const WAIT_TIMEOUT: Duration = Duration::from_secs(300);
/// The interval between reads of the cluster's state.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
const PODS_PATH: &str = "/api/v1/namespaces/default/pods";
const LEASES_PATH: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases";

fn main() -> Result<()> {
    let window = Duration::from_secs(measure::setting(measure::SECONDS_VARIABLE, 60)? as u64);
    let mut stage = Stage::set()?;
    let version = stage.node.containerd.version();
    let dir = stage.node.dir().to_owned();
    let audit = Audit::prepare(&dir)?;
    let cluster = Cluster::boot_with(&audit.flags().each_ref().map(String::as_str))?;
    cluster.add_account()?;
    let wire = Wire::to(cluster.port())?;
    stage.admit(&cluster, &wire.address())?;
    println!("containerd {}.{}, {PODS} API pods, {window:?} of idleness each", version.0, version.1);
    let mut bench = Bench { cluster, wire, audit, dir, window, rows: Vec::new() };
    stage.measure(|stage| {
        let (contenders, containerd) = stage.parts();
        contenders.into_iter().try_for_each(|contender| bench.measure(contender, containerd))
    })?;
    print!("{}", table::text(&bench.rows));
    let rows = bench.rows.iter().map(Row::json).collect();
    measure::write(env!("CARGO_TARGET_TMPDIR"), "sync", version, rows)?;
    let within = table::check_budgets(&bench.rows, measure::is_dist()?);
    drop(bench);
    stage.finish()?;
    within
}

/// The means and the results of the measurement.
struct Bench {
    cluster: Cluster,
    wire: Wire,
    audit: Audit,
    dir: PathBuf,
    window: Duration,
    rows: Vec<Row>,
}

/// The counts at one moment. Those of requests begin then.
struct Mark {
    at: Instant,
    traffic: Traffic,
    cost: Footprint,
    processor: Duration,
}

impl Bench {
    fn measure(&mut self, contender: &mut dyn Contender, containerd: &Containerd) -> Result<()> {
        self.wire.join();
        contender.start()?;
        let node = format!("/api/v1/nodes/{}", contender.node_name());
        let joined = || {
            let shown = self.cluster.get(&node).ok().flatten();
            shown.is_some_and(|node| condition(&node, "Ready")["status"] == "True")
        };
        until("a node that is ready", joined)?;
        let names: Vec<_> = (0..PODS).map(|number| format!("idle-{number}")).collect();
        self.run_pods(contender, &names)?;
        self.wait_idle()?;

        self.idle(contender)?;
        self.changes(contender)?;
        wait::pass(SETTLE_TIME)?;
        self.offline(contender, containerd)?;

        self.cluster.delete(PODS_PATH)?;
        self.wait_pods("no pods", <[Value]>::is_empty)?;
        let no_tasks = || containerd.tasks().is_ok_and(|tasks| tasks.is_empty());
        until("the end of all tasks", no_tasks)?;
        contender.stop()?;
        self.cluster.delete(&node)
    }

    /// Waits until only renewals of the lease arrive. A kubelet reports about 50 started pods minutes later.
    fn wait_idle(&mut self) -> Result<()> {
        let begun = Instant::now();
        loop {
            self.audit.requests()?;
            wait::pass(SETTLE_TIME)?;
            let requests = self.audit.requests()?;
            if requests.keys().all(|what| what.ends_with(" leases")) {
                return Ok(());
            }
            ensure!(begun.elapsed() < 2 * WAIT_TIMEOUT, "no idle minute: {requests:?}");
        }
    }

    /// Measures while nothing happens.
    fn idle(&mut self, contender: &dyn Contender) -> Result<()> {
        let begun = self.mark(contender)?;
        wait::pass(self.window)?;
        let (requests, traffic) = self.since(&begun)?;
        let an_hour = 3_600.0 / begun.at.elapsed().as_secs_f64();
        let agent = agent(contender)?;
        let (cost, busy) = (Footprint::measure(agent), processor(&[agent]).saturating_sub(begun.processor));
        let total: u64 = requests.values().sum();
        let per_second = an_hour / 3_600.0;
        self.add(contender, table::REQUESTS, total as f64 * an_hour, json!(requests));
        self.add(contender, table::KILOBYTES, traffic.bytes() as f64 / 1e3 * an_hour, json!(null));
        self.add(contender, "idle: private MiB", cost.private as f64 / 1_024.0, json!(null));
        self.add(contender, table::PSS, cost.pss as f64 / 1_024.0, json!(null));
        self.add(contender, "idle: ms of processor a second", busy.as_secs_f64() * 1e3 * per_second, json!(null));
        let wakes = cost.wakes.saturating_sub(begun.cost.wakes) as f64 * per_second;
        self.add(contender, "idle: wake-ups a second", wakes, json!(null));
        Ok(())
    }

    /// Measures while pods are created and deleted.
    fn changes(&mut self, contender: &dyn Contender) -> Result<()> {
        let names: Vec<_> = (0..CHANGING_PODS).map(|number| format!("change-{number}")).collect();
        let begun = self.mark(contender)?;
        self.run_pods(contender, &names)?;
        self.change(contender, "a pod's start", &begun)?;
        let begun = self.mark(contender)?;
        names.iter().try_for_each(|name| self.cluster.delete(&format!("{PODS_PATH}/{name}")))?;
        self.wait_pods("the end of pods", |pods| pods.len() == PODS)?;
        self.change(contender, "a pod's end", &begun)
    }

    fn change(&mut self, contender: &dyn Contender, what: &str, begun: &Mark) -> Result<()> {
        let (requests, traffic) = self.since(begun)?;
        let each = |count: u64| count as f64 / CHANGING_PODS as f64;
        let total: u64 = requests.values().sum();
        self.add(contender, &format!("{what}: requests"), each(total), json!(requests));
        self.add(contender, &format!("{what}: kB"), each(traffic.bytes()) / 1e3, json!(null));
        Ok(())
    }

    /// Measures an outage: all pods are restarted while there is no connection, and one crashes again and again; then
    /// the connection is back.
    fn offline(&mut self, contender: &dyn Contender, containerd: &Containerd) -> Result<()> {
        let crashing = with_node(simple("crashing", "sleep 1; exit 1"), contender);
        self.wire.cut();
        let before = workloads(containerd)?;
        ensure!(before.len() == PODS, "{} containers run, not {PODS}", before.len());
        for pid in &before {
            let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw).context("a process id")?;
            kill_process(pid, Signal::KILL).context("kill a container")?;
        }
        let restarted =
            || workloads(containerd).is_ok_and(|now| now.len() == PODS && now.iter().all(|pid| !before.contains(pid)));
        until("the restart of all containers", restarted)?;
        wait::pass(SETTLE_TIME)?;
        let back = Instant::now();
        self.wire.join();
        let told = |pods: &[Value]| pods.len() == PODS && ready(pods) == PODS && restarts(pods).all(|count| count == 1);
        self.wait_pods("the statuses after the outage", told)?;
        let seconds = back.elapsed().as_secs_f64();
        self.add(contender, "after an outage: s until 50 changed pods are true", seconds, json!(null));

        self.cluster.create(PODS_PATH, &crashing)?;
        let crashed = |pods: &[Value]| restarts(pods).any(|count| count > 1);
        self.wait_pods("a pod that crashes", crashed)?;
        let before = self.most_restarts()?;
        self.wire.cut();
        let loggers = |agent: u32| {
            let mut pids = pids(&self.dir, "limpet");
            pids.retain(|pid| *pid != agent);
            pids.push(agent);
            Footprint::measure_all(&pids)
        };
        let agent = agent(contender)?;
        let (begun, from) = (Instant::now(), loggers(agent));
        wait::pass(self.window)?;
        let written = loggers(agent).written.saturating_sub(from.written) as f64 / 1e3;
        let an_hour = 3_600.0 / begun.elapsed().as_secs_f64();
        self.add(contender, "offline, one pod crash-looping: kB written an hour", written * an_hour, json!(null));
        self.wire.join();
        self.wait_lease(contender)?;
        let crashes = self.most_restarts()?.saturating_sub(before) as f64;
        self.add(contender, "offline: its restarts an hour", crashes * an_hour, json!(null));
        Ok(())
    }

    /// The highest number of restarts of any pod.
    fn most_restarts(&self) -> Result<u64> {
        Ok(restarts(&self.cluster.list(PODS_PATH)?).max().unwrap_or(0))
    }

    /// Waits until the node has renewed its lease, which shows that its connection is back.
    fn wait_lease(&self, contender: &dyn Contender) -> Result<()> {
        let path = format!("{LEASES_PATH}/{}", contender.node_name());
        let renewed =
            || Ok::<_, anyhow::Error>(self.cluster.get(&path)?.context("no lease")?["spec"]["renewTime"].clone());
        let before = renewed()?;
        until("a renewal of the lease", || renewed().is_ok_and(|now| now != before))
    }

    /// Creates idle pods and waits until the cluster shows them as ready.
    fn run_pods(&self, contender: &dyn Contender, names: &[String]) -> Result<()> {
        let there = self.cluster.list(PODS_PATH)?.len();
        let pods: Vec<_> = names.iter().map(|name| with_node(simple(name, IDLE), contender)).collect();
        self.cluster.create_all(PODS_PATH, &pods)?;
        self.wait_pods("pods that are ready", |pods| ready(pods) == there + names.len())
    }

    fn wait_pods(&self, what: &str, accept: impl Fn(&[Value]) -> bool) -> Result<()> {
        until(what, || self.cluster.list(&format!("{PODS_PATH}?resourceVersion=0")).is_ok_and(|pods| accept(&pods)))
    }

    fn mark(&mut self, contender: &dyn Contender) -> Result<Mark> {
        self.audit.requests()?;
        let agent = agent(contender)?;
        let (traffic, cost, processor) = (self.wire.traffic(), Footprint::measure(agent), processor(&[agent]));
        Ok(Mark { at: Instant::now(), traffic, cost, processor })
    }

    fn since(&mut self, begun: &Mark) -> Result<(BTreeMap<String, u64>, Traffic)> {
        Ok((self.audit.requests()?, self.wire.traffic() - begun.traffic))
    }

    fn add(&mut self, contender: &dyn Contender, what: &str, value: f64, parts: Value) {
        println!(
            "{:<8} {what}: {value:.1}  {}",
            contender.name(),
            if parts.is_null() { String::new() } else { parts.to_string() }
        );
        self.rows.push(Row { who: contender.name(), what: what.to_owned(), value, parts });
    }
}

/// The pod, bound to the contender's node.
fn with_node(mut pod: Value, contender: &dyn Contender) -> Value {
    pod["spec"]["nodeName"] = contender.node_name().into();
    pod["metadata"]["namespace"] = "default".into();
    pod
}

fn agent(contender: &dyn Contender) -> Result<u32> {
    contender.pid().with_context(|| format!("{} does not run", contender.name()))
}

/// The first processes of all containers that do something.
fn workloads(containerd: &Containerd) -> Result<Vec<u32>> {
    let pauses = containerd.pauses()?;
    let running = containerd.tasks()?.into_iter().filter(|task| task.state == "RUNNING").map(|task| task.pid);
    Ok(running.filter(|pid| !pauses.contains(pid)).collect())
}

/// The number of restarts of each pod's container.
fn restarts(pods: &[Value]) -> impl Iterator<Item = u64> {
    pods.iter().map(|pod| pod["status"]["containerStatuses"][0]["restartCount"].as_u64().unwrap_or(0))
}

/// Waits until `fact` holds.
fn until(what: &str, fact: impl Fn() -> bool) -> Result<()> {
    let begun = Instant::now();
    while !fact() {
        ensure!(begun.elapsed() < WAIT_TIMEOUT, "{what}: waited in vain");
        wait::pass(POLL_INTERVAL)?;
    }
    Ok(())
}
