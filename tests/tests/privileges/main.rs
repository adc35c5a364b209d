//! The agent with fewer privileges than it uses: it continues with the rest, and reports what it lacks.

mod confined;

use std::fs;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, image, process, suite, wait};
use nix::libc;
use rustix::process::Signal;
use rustix::thread::CapabilitySet;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(what_is_not_needed_is_dropped_and_pods_do_not_miss_it),
        case!(without_capabilities_what_runs_is_looked_after),
        case!(system_calls_that_are_not_permitted_are_done_without).on(|node| node.agent = false),
        case!(system_calls_that_do_not_exist_are_done_without).on(|node| node.agent = false),
        case!(without_inotify_everything_is_found_by_looking).on(|node| {
            node.agent = false;
            node.images = false;
        }),
    ])
}

/// A set of a process's capabilities, by its name in `/proc/<pid>/status`.
fn capabilities(pid: u32, set: &str) -> Result<CapabilitySet> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let digits = status.lines().find_map(|line| line.strip_prefix(set)).context("no such line")?;
    Ok(CapabilitySet::from_bits_retain(u64::from_str_radix(digits.trim(), 16)?))
}

fn wait_log(node: &TestNode, text: &str) -> Result<()> {
    wait::until_true(wait::SOON, &format!("{text:?} in the agent's log"), || node.agent.log().contains(text))
}

/// Gives the pod's manifest a label, and waits until the agent has read it.
fn relabel(node: &TestNode, name: &str, mut manifest: Value, label: &str) -> Result<()> {
    manifest["metadata"]["labels"] = json!({ "edition": label });
    node.apply(&manifest)?;
    node.wait_pod(name, "with its new label", |pod| pod["metadata"]["labels"]["edition"] == label).map(drop)
}

/// Checks that only inotify watches the manifests, and that a metric counts this as less than wanted.
fn ensure_inotify_alone(node: &TestNode) -> Result<()> {
    let page = node.agent.metrics()?;
    let has = |line: &str| page.lines().any(|written| written == line);
    ensure!(has("limpet_manifest_watch_backend{backend=\"inotify\"} 1"), "{page}");
    ensure!(has("limpet_manifest_watch_fallbacks_total{backend=\"fanotify\"} 1"), "{page}");
    Ok(())
}

fn what_is_not_needed_is_dropped_and_pods_do_not_miss_it(node: &mut TestNode) -> Result<()> {
    let agent = node.agent.pid().context("no agent")?;
    let not_needed = CapabilitySet::SYS_BOOT | CapabilitySet::SYS_TIME | CapabilitySet::MKNOD | CapabilitySet::SETPCAP;
    for set in ["CapEff:", "CapPrm:", "CapInh:", "CapBnd:"] {
        let held = capabilities(agent, set)?;
        ensure!(!held.intersects(not_needed), "{set} {held:?}");
    }
    ensure!(capabilities(agent, "CapEff:")?.contains(CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN));
    // A privileged pod has containerd's capabilities, which are more than the agent's.
    let privileged = json!({ "securityContext": { "privileged": true } });
    let main = with(shell("main", &format!("grep CapEff /proc/self/status; {IDLE}")), privileged);
    node.apply(&pod("web", json!({ "containers": [main] })))?;
    node.wait_running("web")?;
    let said = node.wait_logged("web", "main", "CapEff")?;
    let containerd = capabilities(node.containerd.pid().context("no containerd")?, "CapEff:")?;
    ensure!(said.trim_end().ends_with(&format!("{:016x}", containerd.bits())), "{said} is not {containerd:?}");
    Ok(())
}

fn without_capabilities_what_runs_is_looked_after(node: &mut TestNode) -> Result<()> {
    let manifest = simple("web", IDLE);
    node.apply(&manifest)?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.agent.kill();
    let missing = CapabilitySet::SYS_ADMIN | CapabilitySet::BPF | CapabilitySet::PERFMON;
    confined::start(node, || confined::drop_capabilities(missing))?;
    relabel(node, "web", manifest, "second")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    ensure_inotify_alone(node)?;
    for line in [
        "no CAP_SYS_ADMIN: no new pod starts",
        "no CAP_BPF: ",
        "who changes a manifest is not known",
        "no BPF programs: victims of OOM kills",
    ] {
        wait_log(node, line)?;
    }
    // What cannot be done is reported at the pod, and done as soon as possible.
    node.apply(&simple("db", IDLE))?;
    node.wait_event("Operation not permitted")?;
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("db")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    Ok(())
}

fn system_calls_that_are_not_permitted_are_done_without(node: &mut TestNode) -> Result<()> {
    without_system_calls(node, libc::EPERM)
}

fn system_calls_that_do_not_exist_are_done_without(node: &mut TestNode) -> Result<()> {
    without_system_calls(node, libc::ENOSYS)
}

/// There are no BPF programs, no fanotify and no handles of processes, so only inotify and containerd report. Paths in
/// images are walked name by name.
fn without_system_calls(node: &mut TestNode, errno: i32) -> Result<()> {
    let refused = [libc::SYS_bpf, libc::SYS_fanotify_init, libc::SYS_pidfd_open, libc::SYS_openat2];
    confined::start(node, || confined::refuse(&refused, errno))?;
    let manifest = simple("web", IDLE);
    node.apply(&manifest)?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    relabel(node, "web", manifest, "second")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task")?;
    process::signal_pid(task.pid, Signal::KILL);
    node.wait_pod("web", "started again", |pod| {
        let main = container(pod, "main");
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    })?;
    ensure_inotify_alone(node)?;
    for line in
        ["pidfd_open is refused", "who changes a manifest is not known", "no BPF programs: victims of OOM kills"]
    {
        wait_log(node, line)?;
    }
    // Running containers are adopted, although there are no handles of their processes.
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.agent.kill();
    confined::start(node, || confined::refuse(&refused, errno))?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    node.remove("web")?;
    node.wait_gone("web")?;
    node.wait_nothing_runs()
}

fn without_inotify_everything_is_found_by_looking(node: &mut TestNode) -> Result<()> {
    let archives = node.agent.settings().root().join("images");
    fs::create_dir_all(&archives)?;
    let [first, second] = image::demo_images()?;
    image::write_oci_archive(&[&first, &second], &archives.join("demo.tar"))?;
    let manifest = simple("web", IDLE);
    node.apply(&manifest)?;
    confined::start(node, || confined::refuse(&[libc::SYS_inotify_init1], libc::EPERM))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    let sources = node.agent.cli(&["sources"])?.success()?;
    ensure!(sources.contains("reading every 20 s"), "{sources}");
    relabel(node, "web", manifest, "second")?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    for line in ["file source has no change notifications", "scanned for image archives every 20 s"] {
        wait_log(node, line)?;
    }
    node.remove("web")?;
    node.wait_gone("web")
}
