//! `podPidsLimit`: a bound for all processes of a pod together.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::cgroup::{self, main_process};
use limpet_tests::manifest::{IDLE, pod, shell};
use serde_json::json;

/// Starts this number of processes that stay. Returns how many there are.
fn start(node: &TestNode, pod: &str, container: &str, count: u32) -> Result<String> {
    let script =
        format!("i=0; while [ $i -lt {count} ]; do sleep 1000 > /dev/null 2>&1 & i=$((i+1)); done; echo $i processes");
    node.exec(pod, container, &["/bin/sh", "-c", &script])
}

/// The node's limit is 40.
pub(crate) fn a_pod_has_no_more_processes_than_it_may(node: &mut TestNode) -> Result<()> {
    for name in ["web", "other"] {
        let containers = json!([shell("main", IDLE), shell("side", IDLE)]);
        node.apply(&pod(name, json!({ "containers": containers })))?;
    }
    let web = node.wait_running("web")?;
    node.wait_running("other")?;
    let file = cgroup::file(main_process(node, &web)?, "pids", "pids.max", "pids.max")?;
    let of_pod = file.ancestors().nth(2).context("no cgroup of the pod")?.join("pids.max");
    ensure!(fs::read_to_string(&of_pod)?.trim() == "40", "{}", fs::read_to_string(&of_pod)?);
    ensure!(fs::read_to_string(&file)?.trim() == "max", "{}", fs::read_to_string(&file)?);

    // Neither container alone has that many processes.
    ensure!(start(node, "web", "main", 20)? == "20 processes\n");
    let refused = start(node, "web", "side", 20).err().context("more processes than the pod may have")?;
    ensure!(format!("{refused:#}").contains("can't fork"), "{refused:#}");
    ensure!(start(node, "other", "main", 20)? == "20 processes\n", "another pod has a limit of its own");
    node.wait_running("web").map(drop)
}
