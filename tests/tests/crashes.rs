//! The agent or containerd ends, by a crash or in order, while pods run: nothing restarted, doubled or orphaned.

use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::containerd::Task;
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{NodeOptions, container, container_id};
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    let by_containerds_shim = |node: &mut NodeOptions| node.limpet = vec!["shim: runc-v2".to_owned()];
    suite::run([
        case!(a_killed_agent_finds_its_pods_again),
        case!(large_manifests_are_found_again),
        case!(a_manifest_removed_while_the_agent_is_down),
        case!(sigterm_leaves_the_pods_running),
        case!(a_second_agent_is_refused_by_name),
        case!(containerd_may_come_after_the_agent).on(|node| (node.containerd, node.images) = (false, false)),
        case!(containerd_killed_under_twenty_pods),
        case!(a_pod_whose_namespaces_lost_their_pins),
        case!(pins_lost_while_the_agent_is_down),
        case!(init_containers_run_again_in_a_new_sandbox_alone),
        case!(an_end_whose_code_is_lost_is_reported_as_unknown).on(by_containerds_shim),
        case!(a_directory_that_containerd_left_in_a_tasks_place),
        case!(the_logs_of_an_orphan_go_before_its_last_trace),
    ])
}

/// The running tasks. That of an init container may still be about to be deleted.
fn running(node: &TestNode) -> Result<Vec<Task>> {
    let mut tasks = node.containerd.tasks()?;
    tasks.retain(|task| task.state == "RUNNING");
    Ok(tasks)
}

/// Starts a pod that the agent did not know and waits until it runs: by then the agent has resumed its work. Returns
/// all other running tasks.
fn tasks_after_settling(node: &TestNode, marker: &str) -> Result<Vec<Task>> {
    node.apply(&simple(marker, IDLE))?;
    let id = container_id(&node.wait_running(marker)?, "main")?;
    node.remove(marker)?;
    node.wait_gone(marker)?;
    let mut tasks = running(node)?;
    tasks.retain(|task| task.id != id);
    Ok(tasks)
}

fn a_killed_agent_finds_its_pods_again(node: &mut TestNode) -> Result<()> {
    let count = "i=0; while :; do echo $i; i=$((i+1)); usleep 20000; done";
    node.apply(&simple("counter", count))?;
    let init =
        json!({ "initContainers": [shell("init", "true")], "containers": [shell("main", IDLE), shell("side", IDLE)] });
    node.apply(&pod("web", init))?;
    node.wait_running("counter")?;
    node.wait_running("web")?;
    let (tasks, containers) = (running(node)?, node.containerd.containers()?);
    for round in 0..3 {
        node.agent.kill();
        node.agent.start()?;
        let after = tasks_after_settling(node, &format!("marker-{round}"))?;
        ensure!(after == tasks, "before: {tasks:?}\nafter: {after:?}");
        ensure!(node.containerd.containers()? == containers, "{:?}", node.containerd.containers()?);
    }
    ensure!(container(&node.wait_running("web")?, "side")["restartCount"] == 0);
    let numbers: Vec<u64> = node.logs("counter", "main")?.lines().filter_map(|line| line.parse().ok()).collect();
    let expected: Vec<u64> = (0..numbers.len() as u64).collect();
    ensure!(numbers.len() > 10 && numbers == expected, "lines were lost: {numbers:?}");
    Ok(())
}

/// Together the containers carry more than containerd sends in one answer.
fn large_manifests_are_found_again(node: &mut TestNode) -> Result<()> {
    let containers: Vec<Value> = (0..12).map(|number| shell(&format!("c{number}"), IDLE)).collect();
    let aliases = |count| vec![json!({ "ip": "10.0.0.1", "hostnames": vec!["a".repeat(60); 10] }); count];
    node.apply(&pod("large", json!({ "containers": containers, "hostAliases": aliases(2_200) })))?;
    let before = node.wait_running("large")?;
    node.agent.kill();
    node.agent.start()?;
    node.apply(&simple("marker", IDLE))?;
    node.wait_running("marker")?;
    let after = node.wait_running("large")?;
    for name in (0..12).map(|number| format!("c{number}")) {
        ensure!(container_id(&after, &name)? == container_id(&before, &name)?, "{name} was started again");
    }
    node.apply(&pod("larger", json!({ "containers": containers, "hostAliases": aliases(2_500) })))?;
    node.wait_event("spec.hostAliases: the largest part of a Pod of")
}

fn a_manifest_removed_while_the_agent_is_down(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("gone", IDLE))?;
    node.apply(&simple("stays", IDLE))?;
    node.wait_running("gone")?;
    let stays = node.wait_running("stays")?;
    node.agent.kill();
    node.remove("gone")?;
    node.agent.start()?;
    node.wait_gone("gone")?;
    let id = container_id(&stays, "main")?;
    wait::until_true(wait::SOON, "only the other pod's task", || {
        node.containerd.tasks().is_ok_and(|tasks| tasks.iter().all(|task| task.id == id) && tasks.len() == 1)
    })
}

fn sigterm_leaves_the_pods_running(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    let tasks = running(node)?;
    let status = node.agent.terminate()?;
    ensure!(status.success(), "{status}");
    ensure!(node.containerd.tasks()? == tasks, "{:?}", node.containerd.tasks()?);
    node.agent.start()?;
    let after = tasks_after_settling(node, "marker")?;
    ensure!(after == tasks, "{after:?}");
    Ok(())
}

fn a_second_agent_is_refused_by_name(node: &mut TestNode) -> Result<()> {
    let first = node.agent.pid().context("no agent")?;
    let output = process::run(&mut node.agent.command()?, b"")?;
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(!output.status.success(), "{said}");
    ensure!(said.contains("limpet") && said.contains(&first.to_string()), "the first is {first}: {said}");
    ensure!(process::is_alive(first));
    node.pods().map(drop)
}

fn containerd_may_come_after_the_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    wait::until_true(wait::SOON, "a report of the missing containerd", || {
        node.agent.log().contains("containerd is not reachable, waiting for it")
    })?;
    ensure!(!node.agent.log().contains("connected to containerd"), "{}", node.agent.log());
    node.containerd.start()?;
    node.import_demo_images()?;
    node.wait_running("web").map(drop)
}

fn containerd_killed_under_twenty_pods(node: &mut TestNode) -> Result<()> {
    let names: Vec<_> = (0..20).map(|number| format!("pod-{number:02}")).collect();
    for name in &names {
        node.apply(&simple(name, IDLE))?;
    }
    for name in &names {
        node.wait_running(name)?;
    }
    let tasks = running(node)?;
    ensure!(tasks.len() == 20);
    node.containerd.kill();
    ensure!(tasks.iter().all(|task| process::is_alive(task.pid)));
    node.containerd.start()?;
    let after = tasks_after_settling(node, "marker")?;
    ensure!(after == tasks, "before: {tasks:?}\nafter: {after:?}");
    for pod in node.pods()? {
        ensure!(container(&pod, "main")["restartCount"] == 0, "{}", pod["status"]);
    }
    Ok(())
}

/// Unmounts everything below the run directory.
fn lose_pins(node: &TestNode, pod: &Value) -> Result<()> {
    let uid = pod["metadata"]["uid"].as_str().context("no uid")?;
    let sandbox = node.agent.settings().run().join("sandboxes").join(uid);
    for pin in ["ipc", "shm"] {
        let pin = sandbox.join(pin);
        unmount(&pin, UnmountFlags::DETACH).with_context(|| format!("cannot unmount {}", pin.display()))?;
    }
    Ok(())
}

/// Checks that it is the same pod, with each of its containers in a new process of a new sandbox.
fn is_recreated(node: &TestNode, before: &Value) -> Result<()> {
    let after = node.wait_pod("web", "restarted whole", |pod| {
        ["main", "side"].iter().all(|name| {
            let container = container(pod, name);
            container["restartCount"] == 1 && container["state"]["running"].is_object()
        })
    })?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{}", after["metadata"]);
    let shared = "echo seen > /dev/shm/seen";
    node.exec("web", "main", &["/bin/sh", "-c", shared])?;
    let seen = node.exec("web", "side", &["cat", "/dev/shm/seen"])?;
    ensure!(seen.trim() == "seen", "both are in one sandbox: {seen}");
    Ok(())
}

fn a_pod_whose_namespaces_lost_their_pins(node: &mut TestNode) -> Result<()> {
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE), shell("side", IDLE)] })))?;
    let before = node.wait_running("web")?;
    lose_pins(node, &before)?;
    let id = container_id(&before, "main")?;
    let task = running(node)?.into_iter().find(|task| task.id == id).context("no task of that id")?;
    process::signal_pid(task.pid, Signal::KILL);
    node.wait_event("SandboxChanged")?;
    is_recreated(node, &before)
}

fn pins_lost_while_the_agent_is_down(node: &mut TestNode) -> Result<()> {
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE), shell("side", IDLE)] })))?;
    let before = node.wait_running("web")?;
    node.agent.kill();
    lose_pins(node, &before)?;
    node.agent.start()?;
    is_recreated(node, &before)
}

/// How often the init containers of `web` have run.
fn init_runs(node: &TestNode) -> Result<String> {
    node.exec("web", "main", &["cat", "/data/runs"])
}

fn init_containers_run_again_in_a_new_sandbox_alone(node: &mut TestNode) -> Result<()> {
    let noting = |name, script: &str| {
        with(shell(name, script), json!({ "volumeMounts": [{ "name": "work", "mountPath": "/data" }] }))
    };
    let spec = json!({
        "initContainers": [noting("first", "echo first >> /data/runs"), noting("second", "echo second >> /data/runs")],
        "containers": [noting("main", IDLE), shell("side", IDLE)],
        "volumes": [{ "name": "work", "emptyDir": {} }],
    });
    node.apply(&pod("web", spec))?;
    node.wait_running("web")?;
    node.agent.kill();
    node.agent.start()?;
    node.apply(&simple("after-agent", IDLE))?;
    node.wait_running("after-agent")?;
    let before = node.wait_running("web")?;
    ensure!(init_runs(node)? == "first\nsecond\n", "a restart of the agent runs none again");

    node.agent.kill();
    lose_pins(node, &before)?;
    node.agent.start()?;
    is_recreated(node, &before)?;
    ensure!(init_runs(node)? == "first\nsecond\nfirst\nsecond\n", "{}", init_runs(node)?);
    Ok(())
}

/// The task is deleted without a reader of its exit code, which limpet's shim would have recorded.
fn an_end_whose_code_is_lost_is_reported_as_unknown(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("again", IDLE))?;
    node.apply(&pod("never", json!({ "restartPolicy": "Never", "containers": [shell("main", IDLE)] })))?;
    node.wait_running("again")?;
    node.wait_running("never")?;
    node.agent.kill();
    for task in running(node)? {
        node.containerd.ctr(&["tasks", "rm", "--force", &task.id])?;
    }
    node.agent.start()?;
    let is_unknown = |state: &Value| {
        let ended = &state["terminated"];
        ended["reason"] == "ContainerStatusUnknown" && ended["exitCode"] == 137
    };
    node.wait_pod("again", "running again", |pod| {
        let main = container(pod, "main");
        main["restartCount"] == 1 && main["state"]["running"].is_object() && is_unknown(&main["lastState"])
    })?;
    node.wait_pod("never", "failed", |pod| {
        pod["status"]["phase"] == "Failed" && is_unknown(&container(pod, "main")["state"])
    })?;
    Ok(())
}

/// A containerd that is killed in the middle of `Tasks.Create` leaves such a directory, and then refuses every task of
/// that id.
fn a_directory_that_containerd_left_in_a_tasks_place(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.remove("web")?;
    node.wait_gone("web")?;
    let bundle = node.dir().join("ctd/state/io.containerd.runtime.v2.task/k8s.io").join(&id);
    wait::until_true(wait::SOON, "containerd's own end of the task", || !bundle.exists())?;
    std::fs::create_dir_all(bundle.join("work"))?;
    // The same pod again has ids that no container had before.
    node.apply(&simple("web", IDLE))?;
    let web = node.wait_running("web")?;
    ensure!(container(&web, "main")["restartCount"] == 0 && container_id(&web, "main")? != id, "{}", web["status"]);
    let left = node.containerd.containers()?;
    ensure!(!left.contains(&id), "{left:?}");
    std::fs::remove_dir_all(bundle).context("the directory")
}

/// The test makes what a crash in the middle of a pod's removal leaves.
fn the_logs_of_an_orphan_go_before_its_last_trace(node: &mut TestNode) -> Result<()> {
    node.agent.kill();
    let (settings, uid) = (node.agent.settings(), "0123456789abcdef0123456789abcdef");
    let pod_dir = settings.root().join("pods").join(uid);
    let logs = settings.pod_logs().join(format!("default_gone-{}_{uid}", node.name()));
    let others = settings.pod_logs().join("default_other_fedcba9876543210fedcba9876543210");
    for dir in [pod_dir.join("volumes"), logs.join("main"), others.join("main")] {
        std::fs::create_dir_all(dir)?;
    }
    // A mount keeps the directory from being removed.
    rustix::mount::mount("none", &logs, c"tmpfs", rustix::mount::MountFlags::empty(), None)?;
    let started = node.agent.start();
    let seen =
        wait::until_true(wait::SOON, "logs that stay", || node.agent.log().contains("removing leftovers failed"));
    let there = pod_dir.exists();
    unmount(&logs, UnmountFlags::DETACH)?;
    started.and(seen)?;
    ensure!(there, "nothing says any more that the logs are an orphan's");
    node.agent.kill();
    node.agent.start()?;
    wait::until_true(wait::SOON, "the removal of an orphan", || !pod_dir.exists() && !logs.exists())?;
    ensure!(others.exists(), "the logs of a pod that is not limpet's are gone");
    Ok(std::fs::remove_dir_all(others)?)
}
