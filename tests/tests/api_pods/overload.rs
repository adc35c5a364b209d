//! A server that has no seat for the requests of a node: it answers 429 (API Priority and Fairness).

use anyhow::{Result, ensure};
use limpet_tests::cluster::{self, Cluster, join};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::json;

use super::{create, path, wait_deleted, wait_reported};

const FLOW_CONTROL: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// Has the server reject what the node writes, but for its lease. The path of what does so.
fn reject(node: &TestNode, cluster: &Cluster) -> Result<String> {
    let (version, name) = ("flowcontrol.apiserver.k8s.io/v1", node.name());
    let level = json!({
        "apiVersion": version, "kind": "PriorityLevelConfiguration", "metadata": { "name": name },
        "spec": { "type": "Limited", "limited": {
            "nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": { "type": "Reject" },
        } },
    });
    cluster.create(&format!("{FLOW_CONTROL}/prioritylevelconfigurations"), &level)?;
    let writes = json!({
        "verbs": ["create", "update", "patch", "delete"], "apiGroups": ["", "events.k8s.io"], "resources": ["*"],
        "clusterScope": true, "namespaces": ["*"],
    });
    let subject = json!({ "kind": "User", "user": { "name": format!("system:node:{name}") } });
    let schema = json!({
        "apiVersion": version, "kind": "FlowSchema", "metadata": { "name": name },
        "spec": {
            "priorityLevelConfiguration": { "name": name }, "matchingPrecedence": 2,
            "rules": [{ "subjects": [subject], "resourceRules": [writes] }],
        },
    });
    let schemas = format!("{FLOW_CONTROL}/flowschemas");
    cluster.create(&schemas, &schema)?;
    let path = format!("{schemas}/{name}");
    // The server uses it from the moment that it has judged it.
    cluster::wait_at(cluster, &path, "judged", |found| cluster::condition(found, "Dangling")["status"] == "False")?;
    Ok(path)
}

pub(super) fn requests_that_an_overloaded_server_rejects_are_sent_again(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    create(node, &cluster, &simple("kept", IDLE))?;
    create(node, &cluster, &simple("deleted", IDLE))?;
    let kept = wait_reported(node, &cluster, "kept")?;
    wait_reported(node, &cluster, "deleted")?;
    let schema = reject(node, &cluster)?;
    node.apply(&simple("own", IDLE))?;
    create(node, &cluster, &simple("bound", IDLE))?;
    cluster.delete(&path(node, "deleted"))?;
    // What the server has no seat for keeps nothing from running, or from ending.
    node.wait_running("own")?;
    node.wait_running("bound")?;
    node.wait_gone("deleted")?;
    wait::until_true(wait::SOON, "a rejected request", || {
        node.agent.metrics().is_ok_and(|page| page.contains("rest_client_requests_total{code=\"429\""))
    })?;
    let bound = cluster.get(&path(node, "bound"))?.unwrap_or_default();
    ensure!(bound["status"]["phase"] == "Pending", "its status was taken: {bound}");

    cluster.delete(&schema)?;
    for name in ["own", "bound"] {
        wait_reported(node, &cluster, name)?;
    }
    wait_deleted(node, &cluster, "deleted")?;
    let now = wait_reported(node, &cluster, "kept")?;
    ensure!(container_id(&now, "main")? == container_id(&kept, "main")?, "restarted");
    Ok(())
}
