//! A node that the apiserver does not know: `limpet status` names the cause, its own pods run, and other credentials
//! end the state.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, condition, wait_node};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use crate::{networked, wait_true};

pub(crate) fn a_node_that_the_server_does_not_know_is_reported(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.admit(node, &[])?;
    let flags = node.agent.settings().flags.clone();
    let path = flags.iter().find_map(|flag| flag.strip_prefix("--kubeconfig=")).context("no kubeconfig")?;
    let good = std::fs::read_to_string(path)?;
    // This is another name of the same server.
    let server = format!("https://localhost:{}", cluster.port());
    let foreign = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "edge",
        "contexts": [{ "name": "edge", "context": { "cluster": "edge", "user": "edge" } }],
        "clusters": [{ "name": "edge", "cluster": { "server": server, "certificate-authority": cluster.authority() } }],
        "users": [{ "name": "edge", "user": { "token": "of-another-cluster" } }],
    });
    std::fs::write(path, foreign.to_string())?;
    node.apply(&networked("web", json!({})))?;
    node.agent.start()?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    let connection = || -> Option<Value> {
        let reply = node.agent.cli(&["status", "-o", "json"]).ok()?;
        Some(serde_json::from_str::<Value>(&reply.stdout).ok()?["apiserver"].clone())
    };
    wait::until_true(wait::SOON, "a server that does not know the node", || {
        connection().is_some_and(|connection| connection["cause"] == "unauthorized")
    })
    .with_context(|| format!("{:?}", connection()))?;
    let shown = || node.agent.cli(&["sources"])?.success();
    ensure!(shown()?.contains(&server), "{}", shown()?);

    std::fs::write(path, good)?;
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    ensure!(container_id(&wait_true(node, &cluster, "web")?, "main")? == id, "restarted");
    ensure!(shown()?.contains(&cluster.address()) && !shown()?.contains(&server), "{}", shown()?);
    // The time without a connection is in the metrics.
    let metrics = node.agent.metrics()?;
    let away = metrics.lines().find_map(|line| line.strip_prefix("limpet_offline_seconds_total "));
    let away: f64 = away.context("no limpet_offline_seconds_total")?.parse()?;
    ensure!(away > 0.0, "{away} s without a connection");
    Ok(())
}
