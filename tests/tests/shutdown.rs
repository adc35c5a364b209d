//! The shutdown of the node: pods end in order, which is reported, and run again; by the command, and by logind's
//! announcement.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::logind::FakeLogind;
use limpet_tests::manifest::{IDLE, pod, shell, simple};
use limpet_tests::message_bus::MessageBus;
use limpet_tests::node::container;
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(an_operator_ends_the_pods_in_order_and_runs_them_again),
        case!(logind_waits_for_the_pods).on(|node| {
            node.agent = false;
            node.kubelet = vec!["shutdownGracePeriod: 4s".to_owned(), "shutdownGracePeriodCriticalPods: 2s".to_owned()];
        }),
    ])
}

/// A script that prints when it ends.
const ENDS: &str = "echo runs; trap 'echo ends; exit 0' TERM; while :; do sleep 0.1; done";
/// A script that has to be killed.
const STUBBORN: &str = "trap '' TERM; while :; do sleep 0.1; done";

fn critical(name: &str) -> Value {
    pod(name, json!({ "containers": [shell("main", ENDS)], "priorityClassName": "system-node-critical" }))
}

fn is_terminated(pod: &Value) -> bool {
    let status = &pod["status"];
    let message = "Pod was terminated in response to imminent node shutdown.";
    status["phase"] == "Failed" && status["reason"] == "Terminated" && status["message"] == message
}

fn runs_again(node: &TestNode, name: &str, restarts: u64) -> Result<Value> {
    node.wait_pod(name, "running again", |pod| {
        let main = container(pod, "main");
        main["ready"] == true && main["restartCount"] == restarts && pod["status"]["phase"] == "Running"
    })
}

fn an_operator_ends_the_pods_in_order_and_runs_them_again(node: &mut TestNode) -> Result<()> {
    node.apply(&critical("net"))?;
    node.apply(&pod("web", json!({ "containers": [shell("main", ENDS)] })))?;
    let job = json!({ "containers": [shell("main", "exit 0")], "restartPolicy": "Never" });
    node.apply(&pod("job", job))?;
    let before = node.wait_running("web")?;
    node.wait_logged("web", "main", "runs")?;
    node.wait_running("net")?;
    node.wait_logged("net", "main", "runs")?;
    node.wait_pod("job", "succeeded", |pod| pod["status"]["phase"] == "Succeeded")?;
    let none = node.agent.cli(&["shutdown", "--cancel"])?;
    ensure!(none.code == Some(0) && none.stdout == "the node is not shutting down\n", "{none:?}");

    let ended = node.agent.cli(&["shutdown"])?;
    ensure!(ended.code == Some(0) && ended.stdout.starts_with("2 pods have ended"), "{ended:?}");
    let line = |text: String| ended.stderr.lines().position(|line| line == text);
    let (web, net) = (node.full_name("web"), node.full_name("net"));
    let first = line(format!("pod/default/{web} has ended")).with_context(|| ended.stderr.clone())?;
    let second = line(format!("pod/default/{net} ends, within 1 s")).with_context(|| ended.stderr.clone())?;
    ensure!(first < second, "the critical pod ends last: {}", ended.stderr);
    for name in ["web", "net"] {
        let pod = node.wait_pod(name, "terminated", is_terminated)?;
        let conditions = pod["status"]["conditions"].as_array().cloned().unwrap_or_default();
        ensure!(conditions.iter().any(|condition| condition["reason"] == "TerminationByKubelet"), "{pod:#}");
    }
    ensure!(node.pod("job").is_some_and(|pod| pod["status"]["phase"] == "Succeeded"), "it had finished");
    let status = node.agent.cli(&["status"])?;
    ensure!(status.code == Some(1) && status.stdout.contains("the node is shutting down"), "{status:?}");

    node.apply(&simple("late", IDLE))?;
    node.wait_pod("late", "held back", |pod| {
        pod["status"]["phase"] == "Pending" && pod["status"]["reason"] == "NodeShutdown"
    })?;
    let cancelled = node.agent.cli(&["shutdown", "--cancel"])?;
    ensure!(cancelled.code == Some(0) && cancelled.stdout == "cancelled: pods run again\n", "{cancelled:?}");
    node.wait_running("late")?;
    let after = runs_again(node, "web", 1)?;
    runs_again(node, "net", 1)?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{after:#}");
    ensure!(node.agent.cli(&["logs", "-p", &web])?.success()?.contains("ends"), "its log stays");

    // As after a boot, the agent that ended them is gone.
    node.agent.cli(&["shutdown"])?.success()?;
    node.agent.terminate()?;
    node.agent.start()?;
    runs_again(node, "web", 2)?;
    runs_again(node, "net", 2)?;
    ensure!(node.pod("job").is_some_and(|pod| pod["status"]["phase"] == "Succeeded"), "it does not run again");
    Ok(())
}

fn logind_waits_for_the_pods(node: &mut TestNode) -> Result<()> {
    let Some(bus) = MessageBus::start("suite")? else { return Ok(()) };
    let logind = FakeLogind::start(bus.address(), None)?;
    let variable = ("DBUS_SYSTEM_BUS_ADDRESS", bus.address().to_owned());
    node.agent.reconfigure(|settings| settings.environment.push(variable))?;
    node.agent.start()?;
    node.apply(&pod("stubborn", json!({ "containers": [shell("main", STUBBORN)] })))?;
    node.apply(&critical("net"))?;
    node.wait_running("stubborn")?;
    node.wait_running("net")?;
    node.wait_logged("net", "main", "runs")?;
    logind.wait_given(1, wait::SOON)?;
    logind.announce(true)?;
    node.wait_event("Shutdown manager detected shutdown event")?;
    logind.wait_released(wait::SOON)?;
    for name in ["stubborn", "net"] {
        node.wait_pod(name, "terminated", is_terminated)?;
    }
    let refused = node.agent.cli(&["shutdown", "--cancel"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("the machine itself is going down"), "{refused:?}");
    logind.announce(false)?;
    runs_again(node, "stubborn", 1)?;
    runs_again(node, "net", 1)?;
    logind.wait_given(2, wait::SOON)
}
