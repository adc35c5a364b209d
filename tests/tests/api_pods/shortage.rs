//! Pods of the apiserver when the node's disk is short, or when they use too much of it: they fail, so that their
//! controllers make others.

use anyhow::{Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::cluster::{self, condition, join, wait_at, wait_node};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use serde_json::{Value, json};

use crate::{create, path};

pub(crate) fn a_pod_beyond_its_limit_has_failed_for_good(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    let limit = json!({ "resources": { "limits": { "ephemeral-storage": "1Mi" } } });
    let main = with(shell("main", &format!("head -c 3000000 /dev/zero > /root/file; {IDLE}")), limit);
    create(node, &cluster, &pod("web", json!({ "containers": [main] })))?;
    let evicted =
        |pod: &Value| (&pod["status"]["phase"], &pod["status"]["reason"]) == (&json!("Failed"), &json!("Evicted"));
    wait_at(&cluster, &path(node, "web"), "evicted", evicted)?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("web", "still evicted", evicted)?;
    ensure!(evicted(&wait_at(&cluster, &path(node, "web"), "there", |_| true)?), "it runs again");
    cluster.delete(&path(node, "web"))
}

pub(crate) fn a_pod_that_comes_while_the_disk_is_short_fails(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    cluster.add_account()?;
    join(node, &cluster, &[])?;
    wait_node(node, &cluster, "short of disk", |shown| condition(shown, "DiskPressure")["status"] == "True")?;
    create(node, &cluster, &simple("web", IDLE))?;
    let failed = wait_at(&cluster, &path(node, "web"), "over", |pod| pod["status"]["phase"] == "Failed")?;
    let (reason, message) = (&failed["status"]["reason"], &failed["status"]["message"]);
    ensure!(
        reason == "Evicted" && message == "Pod was rejected: The node had condition: [DiskPressure]. ",
        "{reason}: {message}"
    );
    cluster.delete(&path(node, "web"))
}
