//! Many nodes of one cluster: they join, run pods, and come back together after an outage of the apiserver.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cluster::Cluster;
use limpet_tests::hollow::{HollowNodes, Requests, bound_pod, states};
use limpet_tests::{TestNode, agent, case, suite, wait};

const NODES: usize = 50;
/// How many pods of each node keep running.
const PODS: usize = 3;
/// After how many seconds a node ends its last pod, which is during the outage unless the machine is very slow.
const DEADLINE: u64 = 20;
/// How long everything may take on a machine that may have other work.
const A_WHILE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let bare = |node: &mut limpet_tests::node::NodeOptions| {
        (node.cluster, node.agent, node.containerd, node.images) = (true, false, false, false);
    };
    suite::run([case!(fifty_nodes_come_back_from_an_outage_with_true_statuses).on(bare)])
}

fn fifty_nodes_come_back_from_an_outage_with_true_statuses(node: &mut TestNode) -> Result<()> {
    let mut cluster = Cluster::boot()?;
    cluster.add_account()?;
    let (program, kubeconfig) = (agent::hollow_nodes_program(&[])?, cluster.kubeconfig()?);
    let flags = ["-v", "2", "--node-lease-duration-seconds", "8"];
    let hollow = HollowNodes::start(&program, &kubeconfig, NODES, node.dir(), &flags)?;
    let said = || limpet_tests::process::tail(&hollow.log(), 20);
    wait_ready(&hollow, &cluster, "").with_context(said)?;

    let pods = (0..NODES).flat_map(|node| (0..=PODS).map(move |number| (node, number)));
    let pods: Vec<_> =
        pods.map(|(node, number)| bound_pod(node, number, (number == PODS).then_some(DEADLINE))).collect();
    cluster.create_all("/api/v1/namespaces/default/pods", &pods)?;
    let logged = |what: &str| hollow.log().lines().filter(|line| line.contains(what)).count();
    wait_states(&cluster, "running", |states| {
        let known = |state: &&String| *state == "Running" || state.starts_with("Failed");
        states.keys().all(|state| known(&state)) && states.values().sum::<usize>() == pods.len()
    })
    .with_context(said)?;

    cluster.kill();
    wait::until_true(A_WHILE, "pods that end without an apiserver", || logged("DeadlineExceeded") >= NODES)?;
    wait::until_true(A_WHILE, "nodes that see the outage", || logged("no connection to the apiserver") >= NODES)?;
    let outage = now()?;
    cluster.start()?;
    let truth = BTreeMap::from([("Running".to_owned(), NODES * PODS), ("Failed: DeadlineExceeded".to_owned(), NODES)]);
    wait_states(&cluster, "true", |states| *states == truth).with_context(said)?;
    wait_ready(&hollow, &cluster, &outage).with_context(said)?;
    let requests = Requests::fetch(&cluster)?;
    ensure!(requests.rejected.is_empty(), "the apiserver was asked too much: {requests:?}");

    cluster.delete("/api/v1/namespaces/default/pods")?;
    wait_states(&cluster, "gone", BTreeMap::is_empty).with_context(said)?;
    hollow.stop()
}

/// Waits until all nodes are ready, with leases renewed after `since`.
fn wait_ready(hollow: &HollowNodes, cluster: &Cluster, since: &str) -> Result<()> {
    let ready = || hollow.ready(cluster, since).is_ok_and(|ready| ready == hollow.count);
    wait::until_true(A_WHILE, "nodes that are ready", ready)
        .with_context(|| format!("{:?}", hollow.ready(cluster, since)))
}

fn wait_states(cluster: &Cluster, what: &str, accept: impl Fn(&BTreeMap<String, usize>) -> bool) -> Result<()> {
    let look = || states(cluster).is_ok_and(|states| accept(&states));
    wait::until_true(A_WHILE, &format!("pods that are {what}"), look).with_context(|| format!("{:?}", states(cluster)))
}

/// The current time in the form of leases.
fn now() -> Result<String> {
    let output = limpet_tests::process::output("date", &["--utc", "+%Y-%m-%dT%H:%M:%S.000000Z"])?;
    Ok(output.trim().to_owned())
}
