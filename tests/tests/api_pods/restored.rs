//! A cluster that was restored from a backup, with a node that was connected before, and one that was not.

use anyhow::{Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use limpet_tests::cluster::{self, Cluster, join};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::node::container_id;
use limpet_tests::{TestNode, wait};
use serde_json::{Value, json};

use super::{create, object, wait_reported};

/// A pod that was created after the backup keeps running, whether or not the node was connected when the cluster was
/// restored, and whether or not the cluster's versions have passed those from before by then.
pub(super) fn a_restored_cluster_is_noticed_and_ends_nothing(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    create(node, &cluster, &simple("known", IDLE))?;
    let known = wait_reported(node, &cluster, "known")?;
    cluster.back_up()?;
    // The lease in the backup is older than the next renewal.
    let renewed = wait_renewed(node, &cluster, "")?;
    wait_renewed(node, &cluster, &renewed)?;
    create(node, &cluster, &simple("later", IDLE))?;
    let later = wait_reported(node, &cluster, "later")?;

    cluster.restore()?;
    wait_noticed(node, "later")?;
    node.agent.kill();
    cluster.restore()?;
    come_further(&cluster, &later["metadata"]["resourceVersion"])?;
    node.agent.start()?;
    wait_noticed(node, "later")?;
    for (name, before) in [("known", &known), ("later", &later)] {
        let now = node.wait_running(name)?;
        ensure!(container_id(&now, "main")? == container_id(before, "main")?, "{name} was restarted");
    }

    let accepted = node.agent.cli(&["cluster", "accept"])?.success()?;
    ensure!(accepted == format!("pod/default/{} ends\n", node.full_name("later")), "{accepted:?}");
    node.wait_gone("later")?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(!sources.contains("backup"), "{sources}");
    wait_reported(node, &cluster, "known").map(drop)
}

/// The new cluster has the certificates of the old one, an empty etcd, and versions that are already higher.
pub(super) fn a_recreated_cluster_ends_nothing(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    create(node, &cluster, &simple("web", IDLE))?;
    let before = wait_reported(node, &cluster, "web")?;
    node.agent.kill();
    cluster.recreate()?;
    cluster.add_account()?;
    come_further(&cluster, &before["metadata"]["resourceVersion"])?;
    node.agent.start()?;
    wait_reason(node, "web", "its data is new")?;
    accept(node, &cluster, &before)
}

/// The new cluster's certificates come from an authority that the node does not know, until the operator gives it other
/// credentials.
pub(super) fn a_cluster_with_another_authority_ends_nothing(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    create(node, &cluster, &simple("web", IDLE))?;
    let before = wait_reported(node, &cluster, "web")?;
    // Its kubeconfig contains the authority that it trusts.
    let kubeconfig = cluster.node_credentials(node.name())?;
    let mut document: Value = serde_json::from_slice(&std::fs::read(&kubeconfig)?)?;
    let authority = BASE64_STANDARD.encode(std::fs::read(cluster.authority())?);
    document["clusters"][0]["cluster"] =
        json!({ "server": cluster.address(), "certificate-authority-data": authority });
    std::fs::write(&kubeconfig, document.to_string())?;
    cluster.replace()?;
    cluster.add_account()?;
    wait::until_true(wait::SOON, "a server that is not trusted", || {
        let document = node.agent.cli(&["status", "-o", "json"]).map(|reply| reply.stdout).unwrap_or_default();
        let document: Value = serde_json::from_str(&document).unwrap_or_default();
        document["apiserver"]["cause"] == "certificate"
    })?;
    node.wait_running("web")?;

    cluster.node_credentials(node.name())?;
    wait_reason(node, "web", "its certificate authority is a different one")?;
    accept(node, &cluster, &before)
}

/// Checks that the pod `web` runs on as it did `before`, until the operator accepts the cluster, which counts from then
/// on.
fn accept(node: &TestNode, cluster: &Cluster, before: &Value) -> Result<()> {
    let now = node.wait_running("web")?;
    ensure!(container_id(&now, "main")? == container_id(before, "main")?, "it was restarted");
    let accepted = node.agent.cli(&["cluster", "accept"])?.success()?;
    ensure!(accepted == format!("pod/default/{} ends\n", node.full_name("web")), "{accepted:?}");
    node.wait_gone("web")?;
    create(node, cluster, &simple("new", IDLE))?;
    wait_reported(node, cluster, "new").map(drop)
}

/// The node's lease once it was renewed after `before`.
fn wait_renewed(node: &TestNode, cluster: &Cluster, before: &str) -> Result<String> {
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    let renewed = |lease: &Value| lease["spec"]["renewTime"].as_str().is_some_and(|time| time > before);
    let lease = cluster::wait_at(cluster, &lease, "renewed", renewed)?;
    Ok(lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned())
}

fn wait_noticed(node: &TestNode, pod: &str) -> Result<()> {
    wait_reason(node, pod, "restored from an older backup")
}

/// Waits until `limpet sources` shows why the pod is held.
fn wait_reason(node: &TestNode, pod: &str, why: &str) -> Result<()> {
    let pod = node.full_name(pod);
    wait::until_true(wait::SOON, why, || {
        let sources = node.agent.cli(&["sources"]).and_then(|said| said.success());
        sources.is_ok_and(|said| said.contains(why) && said.contains(&pod))
    })
}

/// Changes so much that the cluster is at a newer version than `version`.
fn come_further(cluster: &Cluster, version: &Value) -> Result<()> {
    let maps = "/api/v1/namespaces/default/configmaps";
    let number = |version: &Value| version.as_str().and_then(|text| text.parse::<usize>().ok()).unwrap_or(0);
    let now = cluster.get(maps)?.unwrap_or_default();
    let missing = number(version).saturating_sub(number(&now["metadata"]["resourceVersion"])) + 20;
    let changes: Vec<Value> = (0..missing).map(|count| object(&format!("change-{count}"), json!({}))).collect();
    cluster.create_all(maps, &changes)
}
