//! Exclusive processors (`cpuManagerPolicy: static`), as Kubernetes' specs of kubelet's CPU manager expect them, on two
//! processors: the first is reserved, the second can be exclusive.

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::cgroup::{main_limits, pod_limits};
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{NodeOptions, container, container_id};
use limpet_tests::{TestNode, case, suite, wait};
use serde_json::{Value, json};

const STATE: &str = "cpu_manager_state";

fn main() -> ExitCode {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    if online.trim() == "0" {
        eprintln!("no exclusive processors with one alone; nothing is tried");
        return ExitCode::SUCCESS;
    }
    suite::run([
        case!(exclusive_processors_are_one_containers_alone).on(fixed),
        case!(exclusive_processors_survive_the_agent).on(fixed),
        case!(an_edit_of_exclusive_processors_makes_the_pod_anew).on(fixed),
        case!(reserved_processors_are_no_pods_if_strict).on(|node| {
            fixed(node);
            node.kubelet.push("cpuManagerPolicyOptions: {strict-cpu-reservation: 'true'}".to_owned());
        }),
        case!(a_state_of_another_policy_or_machine_stops_the_agent).on(fixed),
        case!(without_the_policy_nothing_is_kept),
    ])
}

/// All processors except the last are reserved, so that exactly one can be exclusive on any machine.
fn fixed(node: &mut NodeOptions) {
    let last = last_processor();
    let reserved = if last == 1 { "0".to_owned() } else { format!("0-{}", last - 1) };
    let lines = ["cpuManagerPolicy: static".to_owned(), format!("reservedSystemCPUs: '{reserved}'")];
    node.kubelet.extend(lines);
}

fn last_processor() -> u32 {
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    online.trim().rsplit(['-', ',']).next().and_then(|last| last.parse().ok()).unwrap_or(0)
}

fn reserved() -> String {
    match last_processor() {
        1 => "0".to_owned(),
        last => format!("0-{}", last - 1),
    }
}

fn all() -> String {
    format!("0-{}", last_processor())
}

fn exclusive() -> String {
    last_processor().to_string()
}

/// A guaranteed pod of one container.
fn guaranteed(name: &str, cpu: &str) -> Value {
    let limits = json!({ "resources": { "limits": { "cpu": cpu, "memory": "32Mi" } } });
    pod(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [with(shell("main", IDLE), limits)] }))
}

fn plain(name: &str) -> Value {
    pod(name, json!({ "terminationGracePeriodSeconds": 1, "containers": [shell("main", IDLE)] }))
}

/// The processors on which a new process of the container may run.
fn allowed(node: &TestNode, pod: &str) -> Result<String> {
    let status = node.exec(pod, "main", &["/bin/sh", "-c", "grep Cpus_allowed_list /proc/self/status"])?;
    Ok(status.split_whitespace().last().unwrap_or_default().to_owned())
}

fn wait_allowed(node: &TestNode, pod: &str, cpus: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("{pod} on {cpus}"), || {
        allowed(node, pod).is_ok_and(|current| current == cpus)
    })
}

/// Whether the pod's cgroup, and that of its container, have a quota.
fn quotas(node: &TestNode, pod: &Value) -> Result<[bool; 2]> {
    let is_quota = |(_, quota): (String, String)| quota != "max" && quota != "-1";
    Ok([is_quota(pod_limits(node, pod)?), is_quota(main_limits(node, pod)?)])
}

fn state(node: &TestNode) -> Result<Value> {
    let text = fs::read(node.agent.settings().root().join(STATE)).context("no file")?;
    Ok(serde_json::from_slice(&text)?)
}

fn exclusive_processors_are_one_containers_alone(node: &mut TestNode) -> Result<()> {
    node.apply(&plain("shared"))?;
    let shared = node.wait_running("shared")?;
    ensure!(allowed(node, "shared")? == all(), "{}", allowed(node, "shared")?);
    node.apply(&guaranteed("pinned", "1"))?;
    let pinned = node.wait_running("pinned")?;
    ensure!(allowed(node, "pinned")? == exclusive(), "{}", allowed(node, "pinned")?);
    wait_allowed(node, "shared", &reserved())?;
    let kept = state(node)?;
    let uid = pinned["metadata"]["uid"].as_str().context("no UID")?;
    ensure!(kept["policyName"] == "static" && kept["defaultCpuSet"] == reserved(), "{kept}");
    ensure!(kept["entries"][uid]["main"] == exclusive(), "{kept}");
    ensure!(quotas(node, &pinned)? == [false; 2], "a quota");

    // Every container that starts now is kept away from it, too.
    node.apply(&plain("later"))?;
    node.wait_running("later")?;
    ensure!(allowed(node, "later")? == reserved(), "{}", allowed(node, "later")?);
    // No processor is left for another pod until the first has ended.
    let mark = node.mark()?;
    node.apply(&guaranteed("waits", "1"))?;
    node.wait_event_since(&mark, &["waits", "OutOfcpu"])?;
    node.remove("pinned")?;
    node.wait_running("waits")?;
    ensure!(allowed(node, "waits")? == exclusive(), "{}", allowed(node, "waits")?);
    node.remove("waits")?;
    node.wait_gone("waits")?;
    wait_allowed(node, "shared", &all())?;
    ensure!(state(node)?["entries"].is_null(), "{}", state(node)?);
    // A part of a processor is shared.
    node.apply(&guaranteed("part", "500m"))?;
    let part = node.wait_running("part")?;
    ensure!(allowed(node, "part")? == all(), "{}", allowed(node, "part")?);
    ensure!(quotas(node, &part)? == [true; 2], "no quota");
    node.ensure_unchanged("shared", &shared)
}

/// The agent is restarted, and a manifest is removed while it is down.
fn exclusive_processors_survive_the_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&plain("shared"))?;
    node.apply(&guaranteed("pinned", "1"))?;
    let (shared, pinned) = (node.wait_running("shared")?, node.wait_running("pinned")?);
    wait_allowed(node, "shared", &reserved())?;
    let before = state(node)?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("pinned")?;
    ensure!(state(node)? == before, "{} and {before}", state(node)?);
    ensure!(allowed(node, "pinned")? == exclusive() && allowed(node, "shared")? == reserved());
    node.ensure_unchanged("shared", &shared)?;
    node.ensure_unchanged("pinned", &pinned)?;

    node.agent.kill();
    node.remove("pinned")?;
    node.agent.start()?;
    node.wait_gone("pinned")?;
    wait_allowed(node, "shared", &all())?;
    ensure!(state(node)?["entries"].is_null(), "{}", state(node)?);
    node.ensure_unchanged("shared", &shared)
}

/// A container that runs keeps the processors that it has.
fn an_edit_of_exclusive_processors_makes_the_pod_anew(node: &mut TestNode) -> Result<()> {
    node.apply(&guaranteed("web", "1"))?;
    let first = node.wait_running("web")?;
    ensure!(allowed(node, "web")? == exclusive(), "{}", allowed(node, "web")?);
    let id = container_id(&first, "main")?;
    let anew = |pod: &Value, before: &str| {
        let is_other = container_id(pod, "main").is_ok_and(|id| id != before);
        is_other && pod["metadata"]["uid"] == first["metadata"]["uid"] && pod["status"]["phase"] == "Running"
    };
    node.apply(&guaranteed("web", "500m"))?;
    let part = node.wait_pod("web", "made anew with a part", |pod| anew(pod, &id))?;
    ensure!(allowed(node, "web")? == all(), "{}", allowed(node, "web")?);
    ensure!(state(node)?["entries"].is_null(), "{}", state(node)?);
    // Shared processors change in place.
    node.apply(&guaranteed("web", "600m"))?;
    let resized = |pod: &Value| container(pod, "main")["resources"]["requests"]["cpu"] == "600m";
    let resized = node.wait_pod("web", "resized", resized)?;
    let id = container_id(&part, "main")?;
    ensure!(container_id(&resized, "main")? == id, "{resized}");
    node.apply(&guaranteed("web", "1"))?;
    node.wait_pod("web", "made anew with a whole one", |pod| anew(pod, &id))?;
    ensure!(allowed(node, "web")? == exclusive(), "{}", allowed(node, "web")?);
    Ok(())
}

fn reserved_processors_are_no_pods_if_strict(node: &mut TestNode) -> Result<()> {
    node.apply(&plain("shared"))?;
    node.wait_running("shared")?;
    ensure!(allowed(node, "shared")? == exclusive(), "{}", allowed(node, "shared")?);
    ensure!(state(node)?["defaultCpuSet"] == exclusive(), "{}", state(node)?);
    Ok(())
}

fn a_state_of_another_policy_or_machine_stops_the_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&plain("shared"))?;
    let shared = node.wait_running("shared")?;
    let path = node.agent.settings().root().join(STATE);
    let intact = fs::read(&path)?;
    let refused = |node: &mut TestNode, content: &[u8], why: &str| {
        node.agent.kill();
        fs::write(&path, content)?;
        let from = node.agent.log_size();
        node.agent.spawn()?;
        wait::until_true(wait::SOON, why, || node.agent.log_from(from).contains(why))
    };
    refused(node, b"{}", "configured policy")?;
    refused(node, &intact[..intact.len() / 2], "could not restore state from checkpoint")?;
    node.agent.kill();
    fs::write(&path, &intact)?;
    node.agent.start()?;
    node.ensure_unchanged("shared", &shared)
}

fn without_the_policy_nothing_is_kept(node: &mut TestNode) -> Result<()> {
    node.apply(&guaranteed("pinned", "1"))?;
    node.wait_running("pinned")?;
    ensure!(allowed(node, "pinned")? == all(), "{}", allowed(node, "pinned")?);
    ensure!(!node.agent.settings().root().join(STATE).exists(), "a file without the policy");
    Ok(())
}
