//! Connections to an apiserver that spreads its clients over several.

use std::collections::BTreeSet;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::cluster::{self, Cluster, join};
use limpet_tests::manifest::{IDLE, simple};

use super::{wait_no_mirror, wait_true};

/// How many pods start. Each costs some requests, of which one of fifty ends a connection.
const PODS: usize = 20;
/// In so many rounds, the probability that no connection is ended is one in a thousand million.
const ROUNDS: usize = 10;

/// With `--goaway-chance` one of fifty requests ends its HTTP/2 connection gracefully: requests in progress are
/// answered.
pub(crate) fn a_server_that_closes_connections_is_never_lost(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.stop()?;
    cluster.start_with(&["--goaway-chance=0.02"])?;
    join(node, &cluster, &[])?;
    let before = ports(node, &cluster)?;
    let mut rounds = 0..ROUNDS;
    while before.is_subset(&ports(node, &cluster)?) {
        ensure!(rounds.next().is_some(), "no connection was ended: {before:?}");
        come_and_go(node, &cluster)?;
    }
    let log = node.agent.log();
    ensure!(!log.contains("no connection to the apiserver"), "{log}");
    cluster.stop()?;
    cluster.start()
}

/// Starts pods, waits for mirrors with their status, and removes the pods.
fn come_and_go(node: &TestNode, cluster: &Cluster) -> Result<()> {
    let names: Vec<String> = (0..PODS).map(|number| format!("web-{number}")).collect();
    for name in &names {
        node.apply(&simple(name, IDLE))?;
    }
    for name in &names {
        wait_true(node, cluster, name)?;
    }
    for name in &names {
        node.remove(name)?;
    }
    for name in &names {
        wait_no_mirror(node, cluster, name)?;
    }
    Ok(())
}

/// The ports of the agent's connections to the apiserver.
fn ports(node: &TestNode, cluster: &Cluster) -> Result<BTreeSet<String>> {
    let filter = format!("( dport = :{} )", cluster.port());
    let mut ss = Command::new("ss");
    let output =
        ss.args(["--no-header", "--tcp", "--numeric", "--processes", "state", "established", &filter]).output();
    let text = String::from_utf8(output.context("ss")?.stdout)?;
    let agent = format!("pid={},", node.agent.pid().context("no agent")?);
    let port = |line: &str| Some(line.split_whitespace().nth(2)?.rsplit_once(':')?.1.to_owned());
    Ok(text.lines().filter(|line| line.contains(&agent)).filter_map(port).collect())
}
