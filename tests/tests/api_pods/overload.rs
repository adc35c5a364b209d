//! A server that has one seat for the requests of a node: it answers the others with 429 (API Priority and Fairness).

use anyhow::{Result, ensure};
use limpet_tests::cluster::{self, Cluster, join};
use limpet_tests::manifest::{IDLE, simple, with};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::json;

use super::{create, path, wait_deleted, wait_reported};

const FLOW_CONTROL: &str = "/apis/flowcontrol.apiserver.k8s.io/v1";

/// How many pods are created at once.
const PODS: usize = 4;

/// Has the server run one write of the node at a time, except for its lease, and reject the others. A level without
/// seats still runs one request while nothing else runs.
fn limit(node: &TestNode, cluster: &Cluster) -> Result<()> {
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
    cluster::wait_at(cluster, &format!("{schemas}/{name}"), "judged", |shown| {
        cluster::condition(shown, "Dangling")["status"] == "False"
    })
    .map(drop)
}

/// Waits until a request of the node is rejected. Each version of a pod makes its mirror anew.
fn wait_rejected(node: &TestNode) -> Result<()> {
    let mut version = 0;
    wait::until_true(wait::SOON, "a rejected request", || {
        version += 1;
        let manifest =
            with(simple("own", IDLE), json!({ "metadata": { "labels": { "version": version.to_string() } } }));
        let page = node.apply(&manifest).and_then(|()| node.agent.metrics());
        page.is_ok_and(|page| page.contains("rest_client_requests_total{code=\"429\""))
    })
}

pub(super) fn requests_that_an_overloaded_server_rejects_are_sent_again(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    create(node, &cluster, &simple("kept", IDLE))?;
    create(node, &cluster, &simple("deleted", IDLE))?;
    let kept = wait_reported(node, &cluster, "kept")?;
    wait_reported(node, &cluster, "deleted")?;
    limit(node, &cluster)?;
    wait_rejected(node)?;
    let bound: Vec<String> = (0..PODS).map(|number| format!("bound-{number}")).collect();
    for name in &bound {
        create(node, &cluster, &simple(name, IDLE))?;
    }
    cluster.delete(&path(node, "deleted"))?;
    // The cluster's view becomes right although the server stays overloaded.
    for name in bound.iter().map(String::as_str).chain(["own"]) {
        wait_reported(node, &cluster, name)?;
    }
    wait_deleted(node, &cluster, "deleted")?;
    let now = wait_reported(node, &cluster, "kept")?;
    ensure!(container_id(&now, "main")? == container_id(&kept, "main")?, "restarted");
    Ok(())
}
