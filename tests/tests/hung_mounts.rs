//! A file system that does not answer delays only what needs it.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::hung_mount::HungMount;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_host_path_that_hangs_holds_up_its_pod_alone),
        case!(a_manifest_that_hangs_holds_up_no_other),
        case!(starts_that_hang_leave_room_for_others),
    ])
}

/// A pod with the hostPath `path`.
fn on_host_path(name: &str, path: &Path, kind: &str) -> Value {
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    pod(
        name,
        json!({
            "containers": [with(shell("main", IDLE), mounts)],
            "volumes": [{ "name": "data", "hostPath": { "path": path, "type": kind } }, { "name": "own", "emptyDir": {} }],
        }),
    )
}

/// Starts a pod, edits another, and waits for the end of a third: everything that the agent does for pods that do not
/// hang.
fn others_go_on(node: &TestNode, round: &str) -> Result<()> {
    let new = format!("new-{round}");
    node.apply(&simple(&new, IDLE))?;
    node.wait_running(&new)?;
    let before = container_id(&node.wait_running("edited")?, "main")?;
    node.apply(&simple("edited", &format!(": {round}; {IDLE}")))?;
    node.wait_pod("edited", "replaced", |pod| {
        container_id(pod, "main").is_ok_and(|id| id != before) && container(pod, "main")["state"]["running"].is_object()
    })?;
    let id = container_id(&node.wait_running("killed")?, "main")?;
    kill(node, &id)?;
    node.wait_pod("killed", "started again", |pod| {
        container_id(pod, "main").is_ok_and(|now| now != id) && container(pod, "main")["state"]["running"].is_object()
    })?;
    node.remove(&new)?;
    node.wait_gone(&new)
}

fn kill(node: &TestNode, id: &str) -> Result<()> {
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task of that id")?;
    process::signal_pid(task.pid, Signal::KILL);
    Ok(())
}

fn hung_calls(node: &TestNode) -> Option<u32> {
    let metrics = node.agent.metrics().ok()?;
    metrics
        .lines()
        .find_map(|line| line.strip_prefix("limpet_hung_calls ")?.trim().parse::<f64>().ok())
        .map(|n| n as u32)
}

fn wait_hung_calls(node: &TestNode, count: u32) -> Result<()> {
    let what = format!("{count} hung calls in the metrics");
    wait::until_true(wait::SOON, &what, || hung_calls(node) == Some(count))
}

fn a_host_path_that_hangs_holds_up_its_pod_alone(node: &mut TestNode) -> Result<()> {
    let dead = node.dir().join("dead");
    fs::create_dir_all(dead.join("data"))?;
    node.apply(&simple("edited", IDLE))?;
    node.apply(&simple("killed", IDLE))?;
    node.wait_running("killed")?;
    let mut mount = HungMount::on(&dead)?;
    node.apply(&on_host_path("stuck", &dead.join("data"), "Directory"))?;
    others_go_on(node, "at-once")?;
    let message = format!("no answer from the file system of {}", dead.join("data").display());
    node.wait_event(&message)?;
    wait_hung_calls(node, 1)?;
    let table = node.agent.cli(&["describe", &node.full_name("stuck")])?.success()?;
    ensure!(table.contains(&message), "{table}");
    // It is tried again, and still only one thread waits.
    others_go_on(node, "later")?;
    ensure!(hung_calls(node) == Some(1), "{:?}", hung_calls(node));
    mount.end();
    node.wait_running("stuck")?;
    wait_hung_calls(node, 0)?;
    node.remove("stuck")?;
    node.wait_gone("stuck")
}

fn a_manifest_that_hangs_holds_up_no_other(node: &mut TestNode) -> Result<()> {
    let dead = node.dir().join("dead");
    fs::create_dir_all(&dead)?;
    let manifests = node.agent.settings().manifests();
    node.apply(&simple("edited", IDLE))?;
    node.apply(&simple("killed", IDLE))?;
    node.wait_running("killed")?;
    fs::write(dead.join("linked.json"), simple("linked", IDLE).to_string())?;
    let mut mount = HungMount::on(&dead)?;
    symlink(dead.join("linked.json"), manifests.join("linked.json"))?;
    rustix::fs::mknodat(
        rustix::fs::CWD,
        manifests.join("fifo.json"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o644),
        0,
    )?;
    wait_hung_calls(node, 1)?;
    others_go_on(node, "hung")?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains("no answer from the file system of"), "{sources}");
    mount.end();
    node.wait_running("linked")?;
    wait_hung_calls(node, 0)?;
    fs::remove_file(manifests.join("fifo.json"))?;
    fs::remove_file(manifests.join("linked.json"))?;
    node.wait_gone("linked")
}

fn starts_that_hang_leave_room_for_others(node: &mut TestNode) -> Result<()> {
    // As many pods hang as there may be concurrent starts.
    let stuck: Vec<_> =
        (0..std::thread::available_parallelism()?.get()).map(|number| format!("stuck-{number}")).collect();
    for name in &stuck {
        node.apply(&simple(name, IDLE))?;
    }
    // The shim's logger opens the log, which hangs, and `Tasks.Create` waits for it.
    let (mut ids, mut mounts) = (Vec::new(), Vec::new());
    for name in &stuck {
        let pod = node.wait_running(name)?;
        ids.push(container_id(&pod, "main")?);
        mounts.push(HungMount::on(&log_dir(node, &pod)?)?);
    }
    ids.iter().try_for_each(|id| kill(node, id))?;
    let hangs = |log: &str| stuck.iter().all(|name| hangs(log, &node.full_name(name)));
    wait::until_true(wait::SOON, "starts that hang", || hangs(&node.agent.log()))?;
    node.apply(&simple("free", IDLE))?;
    node.wait_running("free")?;
    // No start had failed, which would have made room as well.
    let log = node.agent.log();
    ensure!(
        !log.contains("the container did not start; ending its shim, which serves no other container"),
        "the starts ran into their deadline"
    );
    mounts.iter_mut().for_each(HungMount::end);
    for (name, id) in stuck.iter().zip(&ids) {
        node.wait_pod(name, "running again", |pod| {
            let main = container(pod, "main");
            main["state"]["running"].is_object() && container_id(pod, "main").is_ok_and(|now| now != *id)
        })?;
    }
    Ok(())
}

/// The directory of a pod's logs.
fn log_dir(node: &TestNode, pod: &Value) -> Result<PathBuf> {
    let field = |name: &str| pod["metadata"][name].as_str().with_context(|| format!("a pod without {name}"));
    let name = format!("{}_{}_{}", field("namespace")?, field("name")?, field("uid")?);
    Ok(node.agent.settings().pod_logs().join(name))
}

/// Whether the log says that a start of `pod` waits for containerd.
fn hangs(log: &str, pod: &str) -> bool {
    log.lines().any(|line| line.contains(pod) && line.contains("Tasks.Create") && line.contains("hangs"))
}
