//! A node that is away until its credentials have expired, one whose clock jumps meanwhile, and one that begins in 1970.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::{TestNode, wait};

use super::agreement::{Running, wait_agreement};
use super::{create, join, lay, path, wait_offline, wait_ready, write_credentials};

/// How long the first certificate is valid.
const CERTIFICATE_LIFETIME: Duration = Duration::from_secs(75);
/// How far the clock jumps: longer than a token lives.
const JUMP: &str = "+5h";

pub(crate) fn a_certificate_that_expires_while_the_node_is_away_ends_no_pod(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = lay(node)?;
    let expires = SystemTime::now() + CERTIFICATE_LIFETIME;
    cluster.shorten_credentials(node.name(), expires)?;
    node.agent.start()?;
    wait_ready(node, &cluster)?;
    node.apply(&simple("kept", IDLE))?;
    create(node, &cluster, &simple("bound", IDLE))?;
    let running = Running::observe(node, &["kept", "bound"])?;
    wait_agreement(node, &cluster, 2)?;

    line.cut();
    create(node, &cluster, &simple("missed", IDLE))?;
    wait::until_true(CERTIFICATE_LIFETIME * 2, "the end of the certificate", || {
        SystemTime::now() > expires + Duration::from_secs(1)
    })?;
    line.heal();
    wait_offline(node, "certificate expired")?;
    node.apply(&simple("own", IDLE))?;
    node.wait_running("own")?;
    running.check(node)?;
    node.agent.terminate()?;
    node.agent.start()?;
    wait_offline(node, "certificate expired")?;
    running.check(node)?;

    // An operator replaces the certificate, and the new one is read at the next attempt.
    write_credentials(node, &cluster, &line)?;
    node.wait_running("missed")?;
    wait_agreement(node, &cluster, 4)?;
    running.check(node)
}

/// The token in the pod's volume, as the service account's admission has it mounted.
fn token(node: &TestNode, pod: &str) -> Result<String> {
    node.exec(pod, "main", &["cat", "/var/run/secrets/kubernetes.io/serviceaccount/token"])
}

/// When the lease was renewed, by the node's clock.
fn renewed(node: &TestNode, cluster: &Cluster) -> Result<String> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{}", node.name());
    let lease = cluster.get(&path)?.context("no lease")?;
    Ok(lease["spec"]["renewTime"].as_str().unwrap_or_default().to_owned())
}

/// Hours pass while the node is away, and by its clock its tokens have expired. Then the clock turns out to have been
/// wrong.
pub(crate) fn a_clock_that_jumps_by_hours_ends_no_pod(node: &mut TestNode) -> Result<()> {
    let (cluster, line) = join(node)?;
    node.apply(&simple("kept", IDLE))?;
    for name in ["bound", "deleted"] {
        create(node, &cluster, &simple(name, IDLE))?;
    }
    let running = Running::observe(node, &["kept", "bound"])?;
    wait_agreement(node, &cluster, 3)?;
    let (first, before) = (token(node, "bound")?, renewed(node, &cluster)?);

    line.cut();
    node.agent.terminate()?;
    node.agent.set_clock(JUMP)?;
    node.agent.start()?;
    wait_offline(node, "unreachable")?;
    create(node, &cluster, &simple("missed", IDLE))?;
    running.check(node)?;
    line.heal();
    node.wait_running("missed")?;
    wait_agreement(node, &cluster, 4)?;
    wait::until_true(wait::SOON, "another token", || token(node, "bound").is_ok_and(|now| now != first))?;
    let ahead = renewed(node, &cluster)?;
    // The renewal is written to the disk together with the pod.
    create(node, &cluster, &simple("later", IDLE))?;
    node.wait_running("later")?;
    wait_agreement(node, &cluster, 5)?;
    running.check(node)?;

    // The clock is right again, so renewals are of an earlier time; that does not make the cluster an older one.
    node.agent.terminate()?;
    node.agent.set_clock("+0")?;
    node.agent.start()?;
    wait::until_true(wait::SOON, "a renewal by the right clock", || {
        renewed(node, &cluster).is_ok_and(|now| now < ahead && now > before)
    })?;
    wait_agreement(node, &cluster, 5)?;
    node.agent.terminate()?;
    cluster.delete(&format!("{}?gracePeriodSeconds=0", path(node, "deleted")))?;
    node.agent.start()?;
    node.wait_gone("deleted")?;
    wait_agreement(node, &cluster, 4)?;
    running.check(node)
}

/// By the clock of a board without a battery no certificate is valid yet, neither the node's nor the server's. Pods
/// run, the agent shows why there is no connection, and it connects once the clock is right.
pub(crate) fn a_clock_in_1970_is_named_and_the_node_joins_once_it_is_right(node: &mut TestNode) -> Result<()> {
    let (cluster, _line) = lay(node)?;
    node.agent.set_clock("@1970-01-02 00:00:00")?;
    node.apply(&simple("kept", IDLE))?;
    create(node, &cluster, &simple("bound", IDLE))?;
    node.agent.start()?;
    node.wait_running("kept")?;
    wait_offline(node, "clock skew")?;
    let status = node.agent.cli(&["status"])?;
    for part in ["clock skew", "the client certificate is not valid before"] {
        ensure!(status.stdout.contains(part), "{part}: {status:?}");
    }
    ensure!(status.code == Some(1), "{status:?}");
    let running = Running::observe(node, &["kept"])?;

    node.agent.set_clock("+0")?;
    wait_ready(node, &cluster)?;
    node.wait_running("bound")?;
    wait_agreement(node, &cluster, 2)?;
    running.check(node)?;
    node.agent.check()
}
