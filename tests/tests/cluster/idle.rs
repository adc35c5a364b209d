//! Which requests an idle node sends, and that its own reports hide no change of its Node by others.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::{self, Cluster, condition, join, node_path, wait_at, wait_node};
use limpet_tests::manifest::with;
use limpet_tests::{TestNode, wait};
use serde_json::json;

use crate::{networked, wait_true};

/// How many renewals are awaited. With a lease of 4 s they take about as many seconds, longer than the interval of any
/// retry.
const RENEWALS: usize = 12;

pub(crate) fn an_idle_node_sends_renewals_alone(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    node.apply(&networked("web", json!({})))?;
    join(node, &cluster, &[])?;
    wait_true(node, &cluster, "web")?;
    let mut sent = BTreeMap::new();
    wait::until_true(wait::SOON, "a time with renewals alone", || {
        sent = sent_meanwhile(node, &cluster).unwrap_or_default();
        sent.keys().all(|what| what.contains("resource=\"leases\"")) && sent.values().sum::<u64>() >= RENEWALS as u64
    })
    .with_context(|| format!("sent: {sent:?}"))?;
    let answered = |line: &str| line.contains("\"answered\"") && line.contains("/leases/") && line.contains("PATCH");
    ensure!(node.agent.log().lines().any(answered), "no span of a renewal is in the log");
    Ok(())
}

/// How many requests of each kind the node has sent during some renewals.
fn sent_meanwhile(node: &TestNode, cluster: &Cluster) -> Result<BTreeMap<String, u64>> {
    let before = requests(node)?;
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    for _ in 0..RENEWALS {
        let last = cluster.get(&lease)?.context("no lease")?;
        wait_at(cluster, &lease, "renewed", |now| now["spec"]["renewTime"] != last["spec"]["renewTime"])?;
    }
    let mut sent = requests(node)?;
    sent.iter_mut().for_each(|(what, count)| *count -= before.get(what).unwrap_or(&0));
    sent.retain(|_, count| *count > 0);
    Ok(sent)
}

fn requests(node: &TestNode) -> Result<BTreeMap<String, u64>> {
    let metrics = node.agent.metrics()?;
    let lines = metrics.lines().filter_map(|line| line.strip_prefix("rest_client_requests_total"));
    let counted = lines.map(|line| {
        let (what, count) = line.rsplit_once(' ').context("a value")?;
        Ok((what.to_owned(), count.parse()?))
    });
    counted.collect()
}

pub(crate) fn a_node_that_reports_sees_what_others_change_meanwhile(node: &mut TestNode) -> Result<()> {
    let cluster = cluster::shared()?;
    join(node, &cluster, &[])?;
    for round in 0..3 {
        let label = round.to_string();
        let waiting = networked(&format!("web-{round}"), json!({}));
        node.apply(&with(waiting, json!({ "spec": { "nodeSelector": { "round": label } } })))?;
        let beat = |shown: &serde_json::Value| condition(shown, "Ready")["lastHeartbeatTime"].clone();
        let last = beat(&cluster.get(&node_path(node))?.context("no node")?);
        wait_node(node, &cluster, "reported again", |shown| beat(shown) != last)?;
        cluster.patch(&node_path(node), &json!({ "metadata": { "labels": { "round": label } } }))?;
        wait_true(node, &cluster, &format!("web-{round}"))?;
    }
    Ok(())
}
