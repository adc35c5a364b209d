//! A node whose line to the apiserver swallows packets, is half open, flaps, is slow, or is away for long. Whatever it
//! does, the pods keep running; and afterwards the cluster's view is the node's, nothing was restarted, and nothing was
//! lost.
//!
//! Everything is real except the line itself: its frames go through a queue of the test ([`relay`]).

mod agreement;
mod broken;
mod credentials;
mod flaps;
mod line;
mod narrow;
mod relay;

use std::process::ExitCode;

use anyhow::Result;
use limpet_tests::cluster::{self, Cluster, Exclusive, condition, joining, wait_node};
use limpet_tests::manifest::with;
use limpet_tests::{TestNode, case, suite};
use serde_json::{Value, json};

use self::broken::{
    a_line_that_is_half_open_is_noticed, a_line_that_swallows_packets_delays_nothing_on_the_node,
    a_server_that_accepts_and_never_answers_holds_up_nothing, a_single_connection_that_is_dead_is_noticed,
    an_agent_that_starts_without_the_server_goes_on_as_it_was, connections_that_are_reset_are_reopened,
};
use self::credentials::{
    a_certificate_that_expires_while_the_node_is_away_ends_no_pod,
    a_clock_in_1970_is_named_and_the_node_joins_once_it_is_right, a_clock_that_jumps_by_hours_ends_no_pod,
};
use self::flaps::a_thousand_flaps_lose_nothing;
use self::line::Line;
use self::narrow::{a_list_that_takes_longer_than_any_deadline_arrives, a_node_joins_and_works_over_64_kbit_s};

const PODS: &str = "/api/v1/namespaces/default/pods";
/// The port of kubelet's API, in the node's own network.
const NODE_PORT: u16 = 10_250;

fn main() -> ExitCode {
    let code = suite::run([
        joining(case!(a_line_that_swallows_packets_delays_nothing_on_the_node)),
        joining(case!(an_agent_that_starts_without_the_server_goes_on_as_it_was)),
        joining(case!(a_line_that_is_half_open_is_noticed)),
        joining(case!(a_single_connection_that_is_dead_is_noticed)),
        joining(case!(connections_that_are_reset_are_reopened)),
        joining(case!(a_server_that_accepts_and_never_answers_holds_up_nothing)),
        joining(case!(a_thousand_flaps_lose_nothing)),
        joining(case!(a_node_joins_and_works_over_64_kbit_s)),
        joining(case!(a_list_that_takes_longer_than_any_deadline_arrives)),
        joining(case!(a_clock_that_jumps_by_hours_ends_no_pod)),
        joining(case!(a_clock_in_1970_is_named_and_the_node_joins_once_it_is_right)),
        joining(case!(a_certificate_that_expires_while_the_node_is_away_ends_no_pod)),
    ]);
    cluster::end();
    code
}

/// Opens the cluster to every address, and lays a line to it for a node that has not joined.
fn lay(node: &mut TestNode) -> Result<(Exclusive, Line)> {
    let cluster = cluster::exclusive_with(&["--bind-address=0.0.0.0"])?;
    cluster.add_account()?;
    let line = Line::lay(node)?;
    admit(node, &cluster, &line)?;
    Ok((cluster, line))
}

/// Prepares the agent to join by the line at its next start.
fn admit(node: &mut TestNode, cluster: &Cluster, line: &Line) -> Result<()> {
    cluster.admit(node, &[&format!("--node-ip={}", line.node())])?;
    write_credentials(node, cluster, line)?;
    let authority = cluster.authority();
    node.agent.reconfigure(|settings| {
        settings.kubelet.push(format!("port: {NODE_PORT}"));
        settings.kubelet.push(format!("authentication: {{x509: {{clientCAFile: {}}}}}", authority.display()));
    })
}

/// Writes a new certificate and the kubeconfig that leads over the line.
fn write_credentials(node: &TestNode, cluster: &Cluster, line: &Line) -> Result<()> {
    let path = cluster.node_credentials(node.name())?;
    let mut kubeconfig: Value = serde_json::from_slice(&std::fs::read(&path)?)?;
    let server = format!("https://{}:{}", line.server(), cluster.port());
    // The certificate names loopback alone.
    let cluster_entry = json!({ "server": server, "tls-server-name": "localhost" });
    let entry = kubeconfig["clusters"][0]["cluster"].take();
    kubeconfig["clusters"][0]["cluster"] = with(entry, cluster_entry);
    std::fs::write(&path, serde_json::to_vec(&kubeconfig)?)?;
    Ok(())
}

/// Lays the line, joins, and waits until the node is ready.
fn join(node: &mut TestNode) -> Result<(Exclusive, Line)> {
    let (cluster, line) = lay(node)?;
    node.agent.start()?;
    wait_ready(node, &cluster)?;
    Ok((cluster, line))
}

fn wait_ready(node: &TestNode, cluster: &Cluster) -> Result<()> {
    wait_node(node, cluster, "ready", |shown| condition(shown, "Ready")["status"] == "True").map(drop)
}

/// The path of the pod with this name in its manifest.
fn path(node: &TestNode, pod: &str) -> String {
    format!("{PODS}/{}", node.full_name(pod))
}

/// Creates the pod, bound to the node, under a name by which the node's tests find it.
fn create(node: &TestNode, cluster: &Cluster, pod: &Value) -> Result<()> {
    let name = node.full_name(pod["metadata"]["name"].as_str().unwrap_or_default());
    let bound = json!({ "metadata": { "name": name }, "spec": { "nodeName": node.name() } });
    cluster.create(PODS, &with(pod.clone(), bound))
}

/// Waits until the agent says that it has no connection.
fn wait_offline(node: &TestNode, cause: &str) -> Result<()> {
    limpet_tests::wait::until_true(limpet_tests::wait::SOON, &format!("no connection: {cause}"), || {
        node.agent.cli(&["sources"]).is_ok_and(|said| said.stdout.contains(cause))
    })
}
