//! Places among the node's pods: `maxPods`.

use anyhow::{Result, ensure};
use limpet_tests::TestNode;
use limpet_tests::cgroup::main_process;
use limpet_tests::manifest::{IDLE, pod, shell, simple};
use serde_json::{Value, json};

fn waits(pod: &Value) -> bool {
    pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == "OutOfpods"
}

pub(super) fn a_pod_beyond_the_nodes_number_starts_once_another_is_over(node: &mut TestNode) -> Result<()> {
    let until_asked = "trap 'exit 0' TERM; while ! [ -e /tmp/end ]; do sleep 0.1; done";
    node.apply(&pod("first", json!({ "restartPolicy": "Never", "containers": [shell("main", until_asked)] })))?;
    node.wait_running("first")?;
    node.apply(&simple("second", IDLE))?;
    node.wait_pod("second", "waiting for a place", waits)?;
    node.wait_event("Node didn't have enough resource: pods, requested: 1, used: 1, capacity: 1")?;
    node.exec("first", "main", &["touch", "/tmp/end"])?;
    // The first pod stays, with its status and logs, but has no place any more.
    node.wait_running("second")?;
    node.wait_pod("first", "over", |pod| pod["status"]["phase"] == "Succeeded")?;
    // The next agent finds both pods, of which only one counts.
    node.agent.kill();
    node.agent.start()?;
    node.apply(&simple("third", IDLE))?;
    node.wait_pod("third", "waiting for a place", waits)?;
    node.remove("second")?;
    node.wait_running("third").map(drop)
}

pub(super) fn a_lesser_pod_gives_its_place_to_a_critical_one(node: &mut TestNode) -> Result<()> {
    let push = |name: &str| {
        let quick = json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("main", IDLE)] });
        node.agent.cli_with_input(&["apply", "-f", "-"], pod(name, quick).to_string().as_bytes())?.success()
    };
    push("lesser")?;
    let before = main_process(node, &node.wait_running("lesser")?)?;
    push("waits")?;
    node.wait_pod("waits", "waiting for a place", waits)?;
    // No pod ends for one that would not start in its place.
    let elsewhere = json!({ "nodeSelector": { "zone": "other" }, "containers": [shell("main", IDLE)] });
    node.apply(&pod("elsewhere", elsewhere))?;
    node.wait_pod("elsewhere", "waiting", waits)?;
    ensure!(main_process(node, &node.wait_running("lesser")?)? == before);
    node.remove("elsewhere")?;

    node.apply(&simple("critical", IDLE))?;
    node.wait_running("critical")?;
    node.wait_event("Preempted in order to admit critical pod")?;
    node.wait_pod("lesser", "waiting for a place", waits)?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_pod("lesser", "waiting for a place", waits)?;
    node.wait_pod("waits", "waiting for a place", waits)?;
    node.agent.cli(&["delete", "waits"])?.success()?;
    node.remove("critical")?;
    let again = node.wait_running("lesser")?;
    ensure!(main_process(node, &again)? != before, "{again}");
    Ok(())
}
