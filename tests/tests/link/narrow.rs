//! A line of 64 kbit/s, with 600 ms there and back, that loses one frame of twenty.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use limpet_tests::cluster::condition;
use limpet_tests::manifest::{IDLE, simple, with};
use limpet_tests::{TestNode, wait};
use serde_json::json;

use super::agreement::{Running, wait_agreement};
use super::line::Line;
use super::{create, join, lay, path};

const BYTES_PER_SECOND: u64 = 64_000 / 8;
const THERE_AND_BACK: Duration = Duration::from_millis(600);
const LOSS_PERCENT: u32 = 5;
/// How long requests may take over such a line.
const A_WHILE: Duration = Duration::from_secs(300);

fn narrow(line: &Line) {
    line.narrow(BYTES_PER_SECOND, THERE_AND_BACK, LOSS_PERCENT);
}

pub(crate) fn a_node_joins_and_works_over_64_kbit_s(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = lay(node)?;
    narrow(&line);
    node.apply(&simple("kept", IDLE))?;
    let start = Instant::now();
    node.agent.start()?;
    let running = Running::observe(node, &["kept"])?;
    wait::until_true(A_WHILE, "the node, ready", || {
        let shown = cluster.get(&limpet_tests::cluster::node_path(node)).ok().flatten().unwrap_or_default();
        condition(&shown, "Ready")["status"] == "True"
    })?;
    println!("ready after {:?}", start.elapsed());
    let start = Instant::now();
    create(node, &cluster, &simple("bound", &format!("echo over the line; {IDLE}")))?;
    wait::until(A_WHILE, "the pod, reported as it runs", || {
        cluster.get(&path(node, "bound")).ok().flatten().filter(|pod| condition(pod, "Ready")["status"] == "True")
    })?;
    println!("a pod reported as running after {:?}", start.elapsed());
    let log = wait::until(A_WHILE, "its log", || cluster.text(&format!("{}/log", path(node, "bound"))).ok())?;
    ensure!(log == "over the line\n", "{log}");
    wait_agreement(node, &cluster, 2)?;
    running.check(node)
}

pub(crate) fn a_list_that_takes_longer_than_any_deadline_arrives(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    // 240 KB of pods: half a minute of this line, when it loses nothing.
    let note = "limpet ".repeat(60_000 / 7);
    for number in 0..4 {
        let pod = simple(&format!("large-{number}"), IDLE);
        create(node, &cluster, &with(pod, json!({ "metadata": { "annotations": { "note": note } } })))?;
    }
    wait_agreement(node, &cluster, 4)?;
    let running = Running::observe(node, &["large-0", "large-1", "large-2"])?;
    node.agent.kill();
    narrow(&line);
    cluster.delete(&path(node, "large-3"))?;
    node.agent.start()?;
    let start = Instant::now();
    wait::until_true(A_WHILE, "the end of the pod that was deleted meanwhile", || {
        cluster.get(&path(node, "large-3")).is_ok_and(|object| object.is_none())
    })?;
    println!("listed, and a pod ended, after {:?}", start.elapsed());
    wait_agreement(node, &cluster, 3)?;
    running.check(node)
}
