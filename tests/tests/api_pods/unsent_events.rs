//! Events that could not be sent outlive the agent.

use anyhow::{Result, ensure};
use limpet_tests::manifest::{IDLE, simple};
use limpet_tests::{TestNode, cluster, wait};

pub(super) fn events_of_a_time_without_an_apiserver_outlive_the_agent(node: &mut TestNode) -> Result<()> {
    let mut cluster = cluster::exclusive()?;
    cluster.add_account()?;
    cluster::join(node, &cluster, &[])?;
    let kept = node.agent.settings().root().join("unsent-events.json");
    ensure!(!kept.exists(), "kept, though all is sent");
    cluster.stop()?;
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    node.agent.terminate()?;
    ensure!(kept.exists(), "no file");
    // The container is adopted, so it does not start again, and no event about it is recorded.
    node.agent.start()?;
    node.wait_running("web")?;
    cluster.start()?;
    let name = node.full_name("web");
    wait::until_true(wait::SOON, "the event of the start", || {
        let events = cluster.list("/api/v1/namespaces/default/events").unwrap_or_default();
        events.iter().any(|event| event["involvedObject"]["name"] == name.as_str() && event["reason"] == "Started")
    })?;
    wait::until_true(wait::SOON, "the end of the file", || !kept.exists())
}
