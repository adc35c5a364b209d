//! Lines that carry nothing, half of what they should, or end in a server that says nothing.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{Cluster, wait_at};
use limpet_tests::manifest::{IDLE, shell, simple, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

use super::agreement::{Running, wait_agreement};
use super::line::Line;
use super::relay::Way;
use super::{create, join, path, wait_offline};

/// How long it may take until a dead connection is noticed and another one has delivered what was missed.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(120);
/// How often connections are reset.
const RESET_COUNT: usize = 40;

/// A pod of which another value of the variable makes another pod.
fn edited(name: &str, value: &str) -> Value {
    let env = json!({ "env": [{ "name": "MODE", "value": value }] });
    with(simple(name, IDLE), json!({ "spec": { "containers": [with(shell("main", IDLE), env)] } }))
}

/// Applies the pod and waits until this version runs. Returns how long that took.
fn run_version(node: &TestNode, name: &str, value: &str) -> Result<Duration> {
    let start = Instant::now();
    node.apply(&edited(name, value))?;
    node.wait_pod(name, &format!("version {value} running"), |pod| {
        pod["spec"]["containers"][0]["env"][0]["value"] == *value
            && pod["status"]["phase"] == "Running"
            && pod["status"]["containerStatuses"][0]["state"]["running"].is_object()
    })?;
    Ok(start.elapsed())
}

/// Starts a static pod and one of the apiserver, and waits until both are shown as they run.
fn bystanders(node: &TestNode, cluster: &Cluster) -> Result<Running> {
    node.apply(&simple("kept", IDLE))?;
    create(node, cluster, &simple("bound", IDLE))?;
    let running = Running::observe(node, &["kept", "bound"])?;
    wait_agreement(node, cluster, 2)?;
    Ok(running)
}

fn wait_deleted(node: &TestNode, cluster: &Cluster, pod: &str) -> Result<()> {
    let path = path(node, pod);
    wait::until_true(RECOVERY_TIMEOUT, &format!("the end of {path}"), || {
        cluster.get(&path).is_ok_and(|object| object.is_none())
    })
}

pub(crate) fn a_line_that_swallows_packets_delays_nothing_on_the_node(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    create(node, &cluster, &simple("deleted", IDLE))?;
    node.wait_running("deleted")?;
    node.apply(&simple("kept", IDLE))?;
    create(node, &cluster, &simple("bound", IDLE))?;
    let running = Running::observe(node, &["kept", "bound"])?;
    wait_agreement(node, &cluster, 3)?;

    line.cut();
    // The first version runs before the agent notices the outage, the second after that.
    let mut took = vec![run_version(node, "own", "1")?, run_version(node, "own", "2")?];
    cluster.delete(&path(node, "deleted"))?;
    create(node, &cluster, &simple("missed", IDLE))?;
    wait_offline(node, "unreachable")?;
    took.extend([run_version(node, "own", "3")?, run_version(node, "late", "1")?]);
    println!("static pods started and edited without packets: {took:?}");
    running.check(node)?;
    node.wait_running("deleted")?;
    ensure!(node.pod("missed").is_none(), "known without a line");

    line.heal();
    wait_deleted(node, &cluster, "deleted")?;
    node.wait_running("missed")?;
    wait_agreement(node, &cluster, 5)?;
    running.check(node)?;
    // What happened meanwhile is reported.
    let pod = node.pod("late").context("gone")?;
    let events = cluster.list("/api/v1/namespaces/default/events")?;
    let started =
        |event: &&Value| event["involvedObject"]["uid"] == pod["metadata"]["uid"] && event["reason"] == "Started";
    let count = events.iter().filter(started).count();
    ensure!(count == 1, "{count} events of a start while the line was cut");
    Ok(())
}

pub(crate) fn an_agent_that_starts_without_the_server_goes_on_as_it_was(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    for name in ["edited", "removed"] {
        run_version(node, name, "1")?;
    }
    node.apply(&simple("kept", IDLE))?;
    create(node, &cluster, &simple("bound", IDLE))?;
    let running = Running::observe(node, &["kept", "bound"])?;
    wait_agreement(node, &cluster, 4)?;

    line.cut();
    node.agent.kill();
    node.apply(&edited("edited", "2"))?;
    node.remove("removed")?;
    node.agent.start()?;
    node.wait_gone("removed")?;
    node.wait_pod("edited", "version 2", |pod| pod["spec"]["containers"][0]["env"][0]["value"] == "2")?;
    node.wait_running("edited")?;
    let again = run_version(node, "edited", "3")?;
    println!("a static pod edited after the start without a server: {again:?}");
    running.check(node)?;
    node.agent.terminate()?;
    node.agent.start()?;
    running.check(node)?;
    create(node, &cluster, &simple("missed", IDLE))?;

    line.heal();
    node.wait_running("missed")?;
    wait_agreement(node, &cluster, 4)?;
    running.check(node)
}

pub(crate) fn a_line_that_is_half_open_is_noticed(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    let running = bystanders(node, &cluster)?;
    let (open, shut) = (Way::default(), Way { swallows: true, ..Way::default() });
    for (count, (to_server, to_node)) in [(open, shut), (shut, open)].into_iter().enumerate() {
        line.set(to_server, to_node);
        let name = format!("during-{count}");
        create(node, &cluster, &simple(&name, IDLE))?;
        let took = run_version(node, "own", &count.to_string())?;
        println!("a static pod over a line that is half open: {took:?}");
        wait_offline(node, "unreachable")?;
        line.heal();
        node.wait_running(&name)?;
        wait_agreement(node, &cluster, 4 + count)?;
        running.check(node)?;
    }
    Ok(())
}

/// The ports of the agent's connections to the apiserver.
fn connections(line: &Line, cluster: &Cluster) -> Result<Vec<String>> {
    let filter = format!("( dport = :{} )", cluster.port());
    let said = line.at_node(&["ss", "--no-header", "--tcp", "--numeric", "state", "established", &filter])?;
    let port = |line: &str| Some(line.split_whitespace().nth(2)?.rsplit_once(':')?.1.to_owned());
    Ok(said.lines().filter_map(port).collect())
}

/// This happens behind a firewall that forgets one connection: its packets vanish, and all others pass.
pub(crate) fn a_single_connection_that_is_dead_is_noticed(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    let running = bystanders(node, &cluster)?;
    let ports = connections(&line, &cluster)?;
    ensure!(ports.len() == 2, "one connection to read and one to write: {ports:?}");
    for port in &ports {
        line.at_node(&["iptables", "-A", "INPUT", "-p", "tcp", "--dport", port, "-j", "DROP"])?;
        let (start, name) = (Instant::now(), format!("during-{port}"));
        create(node, &cluster, &simple(&name, IDLE))?;
        wait::until(RECOVERY_TIMEOUT, &format!("the pod that was bound while connection {port} was dead"), || {
            node.pod(&name).filter(|pod| pod["status"]["phase"] == "Running")
        })?;
        println!("connection {port} dead: the new pod runs after {:?}", start.elapsed());
    }
    wait_agreement(node, &cluster, 2 + ports.len())?;
    running.check(node)
}

pub(crate) fn connections_that_are_reset_are_reopened(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    let running = bystanders(node, &cluster)?;
    let port = cluster.port().to_string();
    for round in 0..RESET_COUNT {
        let rule = ["OUTPUT", "-p", "tcp", "--dport", &port, "-j", "REJECT", "--reject-with", "tcp-reset"];
        line.at_node(&[&["iptables", "-A"][..], &rule].concat())?;
        let name = format!("round-{round}");
        match round % 4 {
            0 => create(node, &cluster, &simple(&name, IDLE))?,
            1 => run_version(node, "own", &round.to_string()).map(drop)?,
            // The fault lasts until the agent has noticed it.
            2 => wait_offline(node, "unreachable")?,
            _ => cluster.delete(&path(node, &format!("round-{}", round - 3)))?,
        }
        line.at_node(&[&["iptables", "-D"][..], &rule].concat())?;
    }
    for round in (0..RESET_COUNT).step_by(4) {
        wait_deleted(node, &cluster, &format!("round-{round}"))?;
    }
    wait_agreement(node, &cluster, 3)?;
    running.check(node)
}

/// Resumes the apiserver whatever happens.
struct Paused<'a>(&'a Cluster);

impl Drop for Paused<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

pub(crate) fn a_server_that_accepts_and_never_answers_holds_up_nothing(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    let running = bystanders(node, &cluster)?;
    cluster.signal(Signal::STOP);
    let paused = Paused(&cluster);
    let mut took = vec![run_version(node, "own", "1")?];
    wait_offline(node, "unreachable")?;
    // The server's kernel still accepts connections for it.
    let address = format!("/dev/tcp/{}/{}", line.server(), cluster.port());
    line.at_node(&["bash", "-c", &format!("exec 3<>{address}")])?;
    node.agent.kill();
    node.agent.start()?;
    took.push(run_version(node, "own", "2")?);
    println!("static pods with a server that says nothing: {took:?}");
    running.check(node)?;
    let before = container_id(&node.wait_running("own")?, "main")?;
    drop(paused);
    wait_agreement(node, &cluster, 3)?;
    let shown = wait_at(&cluster, &path(node, "own"), "there", |_| true)?;
    ensure!(container_id(&shown, "main")? == before, "restarted");
    running.check(node)
}
