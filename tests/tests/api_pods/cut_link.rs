//! A node whose link is cut while its pods are replaced, and while its cluster forgets old versions.

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, Cluster, condition, wait_node};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::container_id;
use limpet_tests::wire::Wire;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use super::{create, path, wait_reported};

/// Holds the lock until it has ended, 1 s after its signal; a forced deletion allows 2 s. Notes a second holder.
const HOLDER: &str = "mkdir /lock/held || echo second >> /lock/faults
    trap 'sleep 1; rmdir /lock/held; exit 0' TERM
    echo run >> /lock/runs
    sleep 100000 & wait";

/// Joins the cluster through a wire that the test can cut.
fn join(node: &mut TestNode, cluster: &Cluster) -> Result<Wire> {
    cluster.add_account()?;
    let wire = Wire::to(cluster.port())?;
    cluster.admit(node, &[])?;
    cluster.node_credentials_at(&wire.address(), node.name())?;
    node.agent.start()?;
    wait_node(node, cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True")?;
    Ok(wire)
}

/// The pod is deleted by force and created again under its name, as by a StatefulSet whose node is considered lost.
pub(super) fn a_successor_over_a_cut_link_waits_for_the_end_of_its_predecessor(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    let wire = join(node, &cluster)?;
    let lock = node.dir().join("lock");
    std::fs::create_dir(&lock)?;
    let main = with(shell("main", HOLDER), json!({ "volumeMounts": [{ "name": "lock", "mountPath": "/lock" }] }));
    let holder = pod(
        "db-0",
        json!({
            "terminationGracePeriodSeconds": 30, "containers": [main],
            "volumes": [{ "name": "lock", "hostPath": { "path": lock } }],
        }),
    );
    create(node, &cluster, &holder)?;
    let first = wait_reported(node, &cluster, "db-0")?;
    wire.cut();
    cluster.delete(&format!("{}?gracePeriodSeconds=0", path(node, "db-0")))?;
    create(node, &cluster, &holder)?;
    let uid = cluster.get(&path(node, "db-0"))?.context("no successor")?["metadata"]["uid"].clone();
    ensure!(uid != first["metadata"]["uid"], "the same pod");
    wire.join();
    let second = wait_reported(node, &cluster, "db-0")?;
    ensure!(second["metadata"]["uid"] == uid && container_id(&second, "main")? != container_id(&first, "main")?);
    let runs = || std::fs::read_to_string(lock.join("runs")).unwrap_or_default();
    wait::until_true(wait::SOON, "the second run", || runs() == "run\nrun\n")?;
    ensure!(!lock.join("faults").exists(), "both ran at once");
    Ok(())
}

/// A server that has started meanwhile has nothing that is older than its start.
pub(super) fn a_watch_from_a_version_that_is_too_old_begins_with_a_list(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    let wire = join(node, &cluster)?;
    for name in ["kept", "deleted"] {
        create(node, &cluster, &simple(name, IDLE))?;
    }
    let kept = wait_reported(node, &cluster, "kept")?;
    let last = wait_reported(node, &cluster, "deleted")?["metadata"]["resourceVersion"].clone();
    wire.cut();
    cluster.delete(&format!("{}?gracePeriodSeconds=0", path(node, "deleted")))?;
    create(node, &cluster, &simple("new", IDLE))?;
    cluster.stop()?;
    cluster.start()?;
    let version = last.as_str().context("no version")?;
    let watched = cluster.text(&format!("/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion={version}"))?;
    ensure!(watched.contains("\"code\":410"), "the server has the version still: {watched}");

    wire.join();
    wait_reported(node, &cluster, "new")?;
    node.wait_gone("deleted")?;
    let now: Value = wait_reported(node, &cluster, "kept")?;
    ensure!(container_id(&now, "main")? == container_id(&kept, "main")?, "restarted");
    Ok(())
}
