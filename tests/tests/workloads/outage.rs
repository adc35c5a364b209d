//! A node whose link to the cluster is cut: what the controllers make of its pods is corrected once the link is back,
//! and what has ended meanwhile has ended once.

use std::time::Duration;

use anyhow::{Result, ensure};
use limpet_tests::cluster::{self, Exclusive, condition, wait_node};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::wire::Wire;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

/// How long the cluster may take to consider the node lost, which it does after 50 s without a lease.
const TAKEN_FOR_LOST: Duration = Duration::from_secs(150);
const PODS: &str = "/api/v1/namespaces/default/pods";

pub(crate) fn pods_are_ready_again_after_the_node_was_taken_for_lost(node: &mut TestNode) -> Result<()> {
    let (cluster, wire) = join(node)?;
    let spec = json!({ "hostNetwork": true, "terminationGracePeriodSeconds": 1, "containers": [shell("main", IDLE)] });
    node.apply(&pod("own", spec.clone()))?;
    bind(node, &cluster, "bound", spec)?;
    // Other cases need the cluster meanwhile.
    drop(cluster);
    let all = |what: &str, patience, status: &str| {
        wait::until(patience, what, || {
            let mirrors: Option<Vec<Value>> = ["own", "bound"].iter().map(|name| mirror(node, name)).collect();
            mirrors.filter(|mirrors| mirrors.iter().all(|pod| condition(pod, "Ready")["status"] == status))
        })
    };
    let before = all("two pods that are ready", wait::SOON, "True")?;
    wire.cut();
    all("two pods of a node that is lost", TAKEN_FOR_LOST, "False")?;
    wire.join();
    // The same agent reports it, because a new one would report everything.
    let after = all("two pods that are ready again", wait::SOON, "True")?;
    let statuses =
        |pods: &[Value]| -> Vec<Value> { pods.iter().map(|pod| pod["status"]["containerStatuses"].clone()).collect() };
    ensure!(statuses(&before) == statuses(&after), "{before:?}\n{after:?}");
    delete(node, "bound")
}

pub(crate) fn a_pod_that_ends_while_the_node_is_away_has_ended_once(node: &mut TestNode) -> Result<()> {
    let (cluster, wire) = join(node)?;
    let directory = node.dir().join("once");
    std::fs::create_dir(&directory)?;
    let script = "echo run >> /once/runs; until test -e /once/end; do sleep 0.1; done";
    let mount = json!({ "volumeMounts": [{ "name": "once", "mountPath": "/once" }] });
    let spec = json!({
        "hostNetwork": true, "restartPolicy": "Never", "containers": [with(shell("main", script), mount)],
        "volumes": [{ "name": "once", "hostPath": { "path": directory } }],
    });
    bind(node, &cluster, "once", spec)?;
    drop(cluster);
    node.wait_running("once")?;
    wire.cut();
    std::fs::write(directory.join("end"), "")?;
    node.wait_pod("once", "over", |pod| pod["status"]["phase"] == "Succeeded")?;
    // The next agent starts without a server.
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("once", "still over", |pod| pod["status"]["phase"] == "Succeeded")?;
    wire.join();
    let over = wait::until(wait::SOON, "a pod that is over", || {
        mirror(node, "once").filter(|pod| pod["status"]["phase"] == "Succeeded")
    })?;
    let main = &over["status"]["containerStatuses"][0];
    ensure!(main["restartCount"] == 0 && main["state"]["terminated"]["exitCode"] == 0, "{main}");
    ensure!(std::fs::read_to_string(directory.join("runs"))? == "run\n", "it ran again");
    delete(node, "once")
}

/// Joins the cluster through a wire that the test can cut.
fn join(node: &mut TestNode) -> Result<(Exclusive, Wire)> {
    let cluster = cluster::whole()?;
    let wire = Wire::to(cluster.port())?;
    cluster.admit(node, &[])?;
    cluster.node_credentials_at(&wire.address(), node.name())?;
    node.agent.start()?;
    wait_node(node, &cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    Ok((cluster, wire))
}

fn bind(node: &TestNode, cluster: &Exclusive, name: &str, spec: Value) -> Result<()> {
    let bound = json!({ "metadata": { "name": node.full_name(name) }, "spec": { "nodeName": node.name() } });
    cluster.create(PODS, &with(pod(name, spec), bound))
}

fn path(node: &TestNode, name: &str) -> String {
    format!("{PODS}/{}", node.full_name(name))
}

fn mirror(node: &TestNode, name: &str) -> Option<Value> {
    cluster::whole().ok()?.get(&path(node, name)).ok()?
}

fn delete(node: &TestNode, name: &str) -> Result<()> {
    cluster::whole()?.delete(&path(node, name))?;
    wait::until_true(wait::SOON, "the end of the pod", || mirror(node, name).is_none())
}
