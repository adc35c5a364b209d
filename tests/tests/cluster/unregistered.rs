//! A node that does not register itself: its Node object is the operator's to make, and to make again.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, condition, node_path, wait_node};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::json;

use crate::{connected, networked, uid, wait_true};

pub(crate) fn a_node_that_does_not_register_itself_waits_for_its_object(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.admit(node, &["--register-node=false"])?;
    node.apply(&networked("web", json!({})))?;
    node.agent.start()?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    // The agent knows by now that there is no Node.
    wait::until_true(wait::SOON, "the connection", || {
        node.agent.metrics().is_ok_and(|metrics| connected(&metrics) == Some("1"))
    })?;

    let object = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node.name(), "labels": { "by": "operator" } } });
    let ready = |first: Option<&serde_json::Value>| {
        wait_node(node, &cluster, "ready", |shown| {
            condition(shown, "Ready")["status"] == "True" && first.is_none_or(|first| uid(first) != uid(shown))
        })
    };
    // This would be refused if the agent had created the Node.
    cluster.create("/api/v1/nodes", &object)?;
    let first = ready(None)?;
    ensure!(first["metadata"]["labels"]["by"] == "operator", "{}", first["metadata"]);
    wait_true(node, &cluster, "web")?;

    let log = node.agent.log_size();
    cluster.delete(&node_path(node))?;
    wait::until_true(wait::SOON, "the deletion", || node.agent.log_from(log).contains("the Node object was deleted"))?;
    // This would be refused if the agent had created the Node again.
    cluster.create("/api/v1/nodes", &object)?;
    let second = ready(Some(&first)).context("the operator's second one")?;
    ensure!(second["metadata"]["labels"]["by"] == "operator", "{}", second["metadata"]);
    ensure!(container_id(&wait_true(node, &cluster, "web")?, "main")? == id, "restarted");
    Ok(())
}
