//! Volumes of NFS servers: mounted for a pod by the node's tools, unmounted with it; a server that is dead holds up its pod
//! alone. The server is a directory and its `mount.nfs` a script ([`NfsTools`]); the kernel's own NFS is tested on an emulated
//! machine.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::hung_mount::HungMount;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::nfs_tools::NfsTools;
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, process, suite, tools, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(an_export_is_mounted_once_and_outlives_the_agent),
        case!(a_node_without_the_tool_says_what_to_install),
        case!(a_server_that_does_not_answer_holds_up_its_pod_alone),
        case!(a_mounted_server_that_dies_lets_its_pod_go),
    ])
}

/// The node with tools for NFS on its agent's path.
fn with_tools(node: &mut TestNode) -> Result<NfsTools> {
    let tools = NfsTools::below(node.dir())?;
    node.agent.kill();
    node.agent.put_on_path(tools.programs());
    node.agent.start()?;
    Ok(tools)
}

/// A pod whose container counts its starts in the volume before it sleeps.
fn of_export(name: &str, server: &str, read_only: bool) -> Value {
    let mounts = json!({ "volumeMounts": [{ "name": "data", "mountPath": "/data" }] });
    let volume = json!({ "name": "data", "nfs": { "server": server, "path": "/srv/data", "readOnly": read_only } });
    let main = shell("main", &format!("echo run >> /data/runs; {IDLE}"));
    pod(name, json!({ "containers": [with(main, mounts)], "volumes": [volume] }))
}

fn kill(node: &TestNode, id: &str) -> Result<()> {
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task of that id")?;
    process::signal_pid(task.pid, Signal::KILL);
    Ok(())
}

fn has_no_pod_dir(node: &TestNode) -> bool {
    fs::read_dir(node.agent.settings().root().join("pods")).is_ok_and(|dirs| dirs.count() == 0)
}

fn mounted_below(dir: &Path) -> usize {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter(|line| line.contains(&*dir.to_string_lossy()) && line.contains("kubernetes.io~nfs")).count()
}

fn an_export_is_mounted_once_and_outlives_the_agent(node: &mut TestNode) -> Result<()> {
    let tools = with_tools(node)?;
    tools.install()?;
    let data = tools.export("/srv/data")?;
    node.apply(&of_export("web", "nas", false))?;
    node.apply(&of_export("reader", "nas", true))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.wait_running("reader")?;
    ensure!(fs::read_to_string(data.join("runs"))? == "run\n", "the reader cannot write");
    let shown = node.agent.cli(&["describe", &node.full_name("reader")])?.success()?;
    ensure!(shown.contains("NFS nas:/srv/data, read-only"), "{shown}");

    // The next agent finds it mounted, and so does the container's next start.
    node.agent.kill();
    node.agent.start()?;
    kill(node, &id)?;
    node.wait_pod("web", "started again", |pod| {
        container_id(pod, "main").is_ok_and(|now| now != id) && container(pod, "main")["state"]["running"].is_object()
    })?;
    ensure!(fs::read_to_string(data.join("runs"))? == "run\nrun\n");
    let mut calls = tools.calls();
    calls.sort_by_key(String::len);
    ensure!(calls.len() == 2, "{calls:?}");
    ensure!(calls[0].starts_with("nas:/srv/data ") && !calls[0].contains("-o"), "{calls:?}");
    ensure!(calls[1].ends_with(" -o ro"), "{calls:?}");

    for name in ["web", "reader"] {
        node.remove(name)?;
        node.wait_gone(name)?;
    }
    wait::until_true(wait::SOON, "the pods' directories to go", || has_no_pod_dir(node))?;
    ensure!(mounted_below(node.dir()) == 0 && data.join("runs").exists(), "what the server has is the server's");
    Ok(())
}

fn a_node_without_the_tool_says_what_to_install(node: &mut TestNode) -> Result<()> {
    let nfs = with_tools(node)?;
    if tools::on_path("mount.nfs").is_some() {
        println!("skipped: this machine has mount.nfs");
        return Ok(());
    }
    node.apply(&of_export("web", "nas", false))?;
    node.wait_event(
        "MountVolume.SetUp failed for volume \"data\" : mount nas:/srv/data: mount.nfs is not on this node: install nfs-common",
    )?;
    nfs.install()?;
    node.wait_event("mount nas:/srv/data: mount.nfs: access denied by server while mounting nas:/srv/data")?;
    nfs.export("/srv/data")?;
    node.wait_running("web")?;
    node.remove("web")?;
    node.wait_gone("web")
}

fn a_server_that_does_not_answer_holds_up_its_pod_alone(node: &mut TestNode) -> Result<()> {
    let tools = with_tools(node)?;
    tools.install()?;
    node.apply(&of_export("stuck", "dead", false))?;
    wait::until_true(wait::SOON, "a call of mount.nfs", || !tools.calls().is_empty())?;
    node.apply(&simple("other", IDLE))?;
    node.wait_running("other")?;
    node.wait_event("mount dead:/srv/data: no answer from the server for 30 s")?;
    node.remove("stuck")?;
    node.wait_gone("stuck")?;
    wait::until_true(wait::SOON, "its directory to go", || {
        fs::read_dir(node.agent.settings().root().join("pods")).is_ok_and(|dirs| dirs.count() == 1)
    })
}

fn a_mounted_server_that_dies_lets_its_pod_go(node: &mut TestNode) -> Result<()> {
    let tools = with_tools(node)?;
    tools.install()?;
    tools.export("/srv/data")?;
    node.apply(&of_export("web", "nas", false))?;
    let web = node.wait_running("web")?;
    let uid = web["metadata"]["uid"].as_str().context("no uid")?;
    let point = node.agent.settings().root().join("pods").join(uid).join("volumes/kubernetes.io~nfs/data");
    let _dead = HungMount::on(&point)?;
    let id = container_id(&web, "main")?;
    kill(node, &id)?;
    node.wait_event(&format!("no answer from the file system of {}", point.display()))?;
    node.apply(&simple("other", IDLE))?;
    node.wait_running("other")?;
    node.remove("web")?;
    node.wait_gone("web")
}
