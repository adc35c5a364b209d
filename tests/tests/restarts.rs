//! Containers that end: back-off, init containers, and what must not run again.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::image::{self, ImageBuilder};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{container, container_id};
use limpet_tests::{TestNode, case, need, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_crash_backs_off),
        case!(the_longest_pause_is_the_nodes_to_say)
            .on(|node| node.kubelet = vec!["crashLoopBackOff: {maxContainerRestartPeriod: 1s}".to_owned()]),
        case!(a_killed_process_is_started_again),
        case!(a_restart_on_request_keeps_the_pod_and_its_other_containers),
        case!(an_init_container_may_fail_before_it_succeeds),
        case!(what_has_finished_is_not_run_again),
        case!(a_deadline_ends_a_pod_for_good),
        case!(a_pod_that_the_node_refuses_is_failed),
        case!(a_watch_shows_how_a_deleted_pod_ended),
        case!(the_previous_log_is_kept),
        case!(an_image_names_the_signal_that_ends_its_containers),
        case!(an_oom_kill_is_reported_of_the_victim_only),
        case!(pods_run_on_when_the_root_directory_is_read_only).on(|node| node.root_size = Some(32 << 20)),
        case!(who_ended_a_container_is_reported_where_the_kernel_shows_it),
    ])
}

/// The restart happens whatever the restart policy, and without a back-off.
fn a_restart_on_request_keeps_the_pod_and_its_other_containers(node: &mut TestNode) -> Result<()> {
    let containers = json!([shell("main", IDLE), shell("other", IDLE)]);
    node.apply(&pod("web", json!({ "restartPolicy": "Never", "containers": containers })))?;
    let before = node.wait_running("web")?;
    let printed = node.agent.cli(&["restart", "web", "-c", "main"])?.success()?;
    ensure!(printed == format!("container main of pod {} restarted\n", node.full_name("web")), "{printed}");
    let id = |pod: &Value, name: &str| container_id(pod, name).unwrap_or_default();
    let again = |pod: &Value| container(pod, "main")["ready"] == true && id(pod, "main") != id(&before, "main");
    let after = node.wait_pod("web", "restarted", again)?;
    ensure!(after["metadata"]["uid"] == before["metadata"]["uid"], "{after}");
    ensure!(id(&after, "other") == id(&before, "other"), "the other container was restarted: {after}");
    ensure!(container(&after, "main")["restartCount"] == 1, "{after}");
    node.wait_event("Container main is restarted on request")?;

    let printed = node.agent.cli(&["restart", "web"])?.success()?;
    ensure!(printed.lines().count() == 2, "{printed}");
    node.wait_pod("web", "restarted as a whole", |pod| {
        ["main", "other"].iter().all(|name| container(pod, name)["ready"] == true && id(pod, name) != id(&after, name))
    })?;
    let refused = node.agent.cli(&["restart", "web", "-c", "none"])?;
    ensure!(refused.code == Some(1) && refused.stderr.contains("no container none in pod"), "{refused:?}");
    Ok(())
}

/// A kernel remounts a disk with errors like this.
fn pods_run_on_when_the_root_directory_is_read_only(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    node.agent.kill();
    let root = node.agent.settings().root();
    let remount =
        |flags| rustix::mount::mount_remount(&root, flags, "").with_context(|| format!("remount {}", root.display()));
    remount(rustix::mount::MountFlags::RDONLY)?;
    for round in ["first", "second"] {
        node.agent.start()?;
        let web = node.wait_running("web")?;
        ensure!(container_id(&web, "main")? == id, "restarted at the {round} start: {web}");
        let sources = node.agent.cli(&["sources"])?.success()?;
        ensure!(sources.contains("is read-only"), "{sources}");
        node.agent.kill();
    }
    let doctor = node.agent.cli(&["doctor", "--root-dir", &root.display().to_string()])?.stdout;
    ensure!(doctor.contains("is read-only: running pods stay"), "{doctor}");
    remount(rustix::mount::MountFlags::empty())?;
    node.agent.start()?;
    ensure!(container_id(&node.wait_running("web")?, "main")? == id, "restarted");
    node.apply(&simple("new", IDLE))?;
    node.wait_running("new").map(drop)
}

fn a_crash_backs_off(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", "exit 3"))?;
    let web = node.wait_pod("web", "in its back-off after a restart", |pod| {
        let main = container(pod, "main");
        main["restartCount"].as_u64() >= Some(1) && main["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })?;
    let last = &container(&web, "main")["lastState"]["terminated"];
    ensure!(last["exitCode"] == 3 && last["reason"] == "Error", "{last}");
    node.wait_event("BackOff")?;
    let table = node.agent.cli(&["pods"])?.success()?;
    ensure!(table.contains("CrashLoopBackOff"), "{table}");
    Ok(())
}

/// With pauses that double from 10 s on the case would exceed its wait.
fn the_longest_pause_is_the_nodes_to_say(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("crash", "exit 7"))?;
    node.wait_pod("crash", "restarted five times", |pod| container(pod, "main")["restartCount"].as_u64() >= Some(5))?;
    let waits = node.wait_pod("crash", "waiting", |pod| container(pod, "main")["state"]["waiting"].is_object())?;
    let message = container(&waits, "main")["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.starts_with("back-off 1s restarting failed container"), "{waits}");
    Ok(())
}

fn a_killed_process_is_started_again(node: &mut TestNode) -> Result<()> {
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE), shell("side", IDLE)] })))?;
    let before = node.wait_running("web")?;
    let id = container_id(&before, "main")?;
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task of that id")?;
    process::signal_pid(task.pid, Signal::KILL);
    let after = node.wait_pod("web", "restarted once", |pod| {
        let main = container(pod, "main");
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    })?;
    ensure!(container(&after, "main")["lastState"]["terminated"]["exitCode"] == 137, "{}", after["status"]);
    ensure!(container(&after, "side")["containerID"] == container(&before, "side")["containerID"]);
    Ok(())
}

fn an_init_container_may_fail_before_it_succeeds(node: &mut TestNode) -> Result<()> {
    let mount = json!({ "volumeMounts": [{ "name": "work", "mountPath": "/data" }] });
    let first = "[ -e /data/tried ] || { touch /data/tried; exit 1; }; echo first >> /data/order";
    let containers = |name, script| with(shell(name, script), mount.clone());
    node.apply(&pod(
        "web",
        json!({
            "initContainers": [containers("first", first), containers("second", "echo second >> /data/order")],
            "containers": [containers("main", IDLE)],
            "volumes": [{ "name": "work", "emptyDir": {} }],
        }),
    ))?;
    let web = node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["cat", "/data/order"])? == "first\nsecond\n");
    let first = container(&web, "first");
    ensure!(first["restartCount"] == 1 && first["state"]["terminated"]["exitCode"] == 0, "{first}");
    Ok(())
}

/// A container that writes a line into `/shared/runs` each time it runs.
fn noted(name: &str, then: &str) -> Value {
    let script = format!("echo {name} >> /shared/runs; {then}");
    with(shell(name, &script), json!({ "volumeMounts": [{ "name": "shared", "mountPath": "/shared" }] }))
}

fn what_has_finished_is_not_run_again(node: &mut TestNode) -> Result<()> {
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    let volumes = json!([{ "name": "shared", "hostPath": { "path": &shared } }]);
    let once = json!({
        "restartPolicy": "Never",
        "initContainers": [noted("once-init", "true")],
        "containers": [noted("once-main", "exit 0"), noted("once-fail", "exit 5")],
        "volumes": &volumes,
    });
    let lasting = json!({
        "initContainers": [noted("lasting-init", "true")],
        "containers": [noted("lasting-main", IDLE)],
        "volumes": &volumes,
    });
    node.apply(&pod("once", once))?;
    node.apply(&pod("lasting", lasting))?;
    node.wait_running("lasting")?;
    let failed = |pod: &Value| pod["status"]["phase"] == "Failed";
    node.wait_pod("once", "failed", failed)?;
    let runs = || fs::read_to_string(shared.join("runs")).map(sorted_lines);
    let before = runs()?;
    ensure!(before == ["lasting-init", "lasting-main", "once-fail", "once-init", "once-main"], "{before:?}");

    node.agent.kill();
    node.agent.start()?;
    settle(node, "after-agent")?;
    ensure!(runs()? == before, "after a restart of the agent: {:?}", runs()?);
    let once = node.wait_pod("once", "failed", failed)?;
    ensure!(container(&once, "once-fail")["state"]["terminated"]["exitCode"] == 5, "{}", once["status"]);

    node.containerd.kill();
    node.containerd.start()?;
    settle(node, "after-containerd")?;
    ensure!(runs()? == before, "after a restart of containerd: {:?}", runs()?);

    node.agent.kill();
    node.containerd.kill();
    node.containerd.start()?;
    node.agent.start()?;
    settle(node, "after-both")?;
    ensure!(runs()? == before, "after a restart of both: {:?}", runs()?);
    node.wait_pod("once", "failed", failed)?;
    node.wait_running("lasting").map(drop)
}

fn a_deadline_ends_a_pod_for_good(node: &mut TestNode) -> Result<()> {
    let shared = node.dir().join("shared");
    fs::create_dir_all(&shared)?;
    let spec = |seconds: u32| {
        json!({
            "activeDeadlineSeconds": seconds,
            "containers": [noted("done", "exit 0"), noted("lasting", "trap 'exit 7' TERM; sleep 100000 & wait")],
            "volumes": [{ "name": "shared", "hostPath": { "path": &shared } }],
        })
    };
    node.apply(&pod("web", spec(4)))?;
    let ended = |pod: &Value| {
        let status = &pod["status"];
        status["phase"] == "Failed"
            && status["reason"] == "DeadlineExceeded"
            && status["message"] == "Pod was active on the node longer than the specified deadline"
    };
    let web = node.wait_pod("web", "ended by its deadline", ended)?;
    ensure!(container(&web, "lasting")["state"]["terminated"]["exitCode"] == 7, "{}", web["status"]);
    ensure!(container(&web, "done")["state"]["terminated"]["exitCode"] == 0, "{}", web["status"]);
    node.wait_event("DeadlineExceeded")?;
    let runs = || fs::read_to_string(shared.join("runs"));
    let before = runs()?;

    // A later edit of its labels does not bring it back, nor does a restart of the agent.
    node.apply(&with(pod("web", spec(4)), json!({ "metadata": { "labels": { "a": "b" } } })))?;
    settle(node, "after-edit")?;
    node.wait_pod("web", "still ended", ended)?;
    node.agent.kill();
    node.agent.start()?;
    settle(node, "after-agent")?;
    node.wait_pod("web", "still ended", ended)?;
    ensure!(runs()? == before, "{before} became {}", runs()?);

    // Another deadline does.
    node.apply(&pod("web", spec(4_000)))?;
    node.wait_pod("web", "lasting runs", |pod| container(pod, "lasting")["ready"] == true).map(drop)
}

fn a_pod_that_the_node_refuses_is_failed(node: &mut TestNode) -> Result<()> {
    let sysctls = json!({ "sysctls": [{ "name": "kernel.msgmax", "value": "65536" }] });
    node.apply(&pod("web", json!({ "securityContext": sysctls, "containers": [shell("main", IDLE)] })))?;
    let web = node.wait_pod("web", "refused", |pod| pod["status"]["phase"] == "Failed")?;
    let status = &web["status"];
    let message = r#"Pod was rejected: forbidden sysctl: "kernel.msgmax" not allowlisted"#;
    ensure!(status["reason"] == "SysctlForbidden" && status["message"] == message, "{status}");
    ensure!(status["containerStatuses"].is_null(), "{status}");
    node.wait_event("SysctlForbidden")
}

fn a_watch_shows_how_a_deleted_pod_ended(node: &mut TestNode) -> Result<()> {
    let main = shell("main", "trap 'exit 7' TERM; sleep 100000 & wait");
    node.apply(&pod("web", json!({ "containers": [main] })))?;
    node.wait_running("web")?;
    let mut command = node.agent.cli_command(&["pods", "-w"])?;
    let mut child = command.stdout(std::process::Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no output")?).lines();
    let mut next = |text: &str| -> Result<String> {
        lines
            .by_ref()
            .find(|line| line.as_ref().map_or(true, |line| line.contains(text)))
            .context("the watch ended")?
            .map_err(Into::into)
    };
    let seen = next("Running").and_then(|_| {
        node.remove("web")?;
        next("deleted")
    });
    child.kill()?;
    child.wait()?;
    let last = seen?;
    ensure!(last.contains("Error") && last.ends_with("deleted; main exited with code 7"), "{last}");
    Ok(())
}

/// Waits until the agent has resumed its work, which shows by a pod that it did not know before.
fn settle(node: &TestNode, marker: &str) -> Result<()> {
    node.apply(&simple(marker, IDLE))?;
    node.wait_running(marker).map(drop)
}

fn sorted_lines(text: String) -> Vec<String> {
    let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

fn the_previous_log_is_kept(node: &mut TestNode) -> Result<()> {
    let count = "echo x >> /data/runs; echo run $(wc -l < /data/runs); [ $(wc -l < /data/runs) -gt 1 ] || exit 1;";
    let main = with(
        shell("main", &format!("{count} {IDLE}")),
        json!({ "volumeMounts": [{ "name": "work", "mountPath": "/data" }] }),
    );
    node.apply(&pod("web", json!({ "containers": [main], "volumes": [{ "name": "work", "emptyDir": {} }] })))?;
    node.wait_logged("web", "main", "run 2")?;
    let previous = || node.agent.cli(&["logs", "--previous", &node.full_name("web"), "-c", "main"])?.success();
    wait::until_true(wait::SOON, "the first run's log", || previous().is_ok_and(|log| log == "run 1\n"))
        .with_context(|| format!("{:?}", previous()))
}

/// The exit code shows which signal ended it.
const TELLS_SIGNAL: &str = "trap 'exit 15' TERM; trap 'exit 42' QUIT; echo ready; sleep 100000 & wait";

fn an_image_names_the_signal_that_ends_its_containers(node: &mut TestNode) -> Result<()> {
    let image = |version: u32, signal| {
        let name = format!("docker.io/library/quits:{version}");
        ImageBuilder::new(&name).config("StopSignal", json!(signal)).build()
    };
    let images = [image(1, "SIGQUIT")?, image(2, "quit")?, image(3, "SIGNOTHING")?, image(4, "3")?];
    let archive = node.dir().join("quits.tar");
    image::write_oci_archive(&images.iter().collect::<Vec<_>>(), &archive)?;
    node.containerd.import(&archive)?;
    let run = |node: &TestNode, version: usize| {
        let image = json!({ "image": images[version - 1].name });
        let containers = json!([with(shell("main", TELLS_SIGNAL), image)]);
        node.apply(&pod("web", json!({ "containers": containers, "terminationGracePeriodSeconds": 60 })))
    };
    let replaced = |node: &TestNode, count: usize, code: u32| {
        node.wait_pod("web", "replaced", |pod| {
            let main = container(pod, "main");
            main["restartCount"] == count
                && main["state"]["running"].is_object()
                && main["lastState"]["terminated"]["exitCode"] == code
        })
    };
    run(node, 1)?;
    node.wait_running("web")?;
    node.wait_logged("web", "main", "ready")?;
    run(node, 2)?;
    replaced(node, 1, 42)?;
    node.wait_logged("web", "main", "ready")?;

    node.agent.kill();
    node.agent.start()?;
    settle(node, "after-agent")?;
    run(node, 3)?;
    replaced(node, 2, 42)?;
    node.wait_event("InvalidStopSignal")?;
    node.wait_logged("web", "main", "ready")?;
    run(node, 4)?;
    replaced(node, 3, 15).map(drop)
}

/// A program that needs twice the container's limit of memory.
const GLUTTON: &str = "dd if=/dev/zero of=/dev/null bs=64M count=1";

fn limited(name: &str, script: &str) -> Value {
    let container = with(shell("main", script), json!({ "resources": { "limits": { "memory": "32Mi" } } }));
    pod(name, json!({ "restartPolicy": "Never", "containers": [container] }))
}

fn an_oom_kill_is_reported_of_the_victim_only(node: &mut TestNode) -> Result<()> {
    node.apply(&limited("victim", &format!("exec {GLUTTON}")))?;
    let end = |pod: &Value| container(pod, "main")["state"]["terminated"].clone();
    let victim = node.wait_pod("victim", "ended", |pod| end(pod).is_object())?;
    ensure!(end(&victim)["reason"] == "OOMKilled" && end(&victim)["exitCode"] == 137, "{}", end(&victim));

    // The BPF programs are loaded once a container runs, and know of nothing that happened before.
    node.apply(&simple("calm", IDLE))?;
    wait::until_true(wait::SOON, "the BPF programs", || node.agent.log().contains("\"program\":\"oom_victim\""))?;
    node.apply(&limited("survivor", &format!("{GLUTTON}; echo survived; {IDLE}")))?;
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        // With cgroup v2 the kernel kills the whole container, as kubelet configures it.
        let whole = node.wait_pod("survivor", "ended", |pod| end(pod).is_object())?;
        ensure!(end(&whole)["reason"] == "OOMKilled" && end(&whole)["exitCode"] == 137, "{}", end(&whole));
        return Ok(());
    }
    node.wait_logged("survivor", "main", "survived")?;
    node.wait_event("OOMKilling")?;
    let id = container_id(&node.wait_running("survivor")?, "main")?;
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task")?;
    process::signal_pid(task.pid, Signal::KILL);
    let survivor = node.wait_pod("survivor", "ended", |pod| end(pod).is_object())?;
    ensure!(end(&survivor)["reason"] == "Error" && end(&survivor)["exitCode"] == 137, "{}", end(&survivor));
    Ok(())
}

fn who_ended_a_container_is_reported_where_the_kernel_shows_it(node: &mut TestNode) -> Result<()> {
    node.apply(&pod("web", json!({ "restartPolicy": "Never", "containers": [shell("main", IDLE)] })))?;
    let id = container_id(&node.wait_running("web")?, "main")?;
    let loaded = || {
        let log = node.agent.log();
        log.contains("\"program\":\"signal_sent\"").then(|| log.contains("\"hook\":\"signal_generate\",\"failure\""))
    };
    if wait::until(wait::SOON, "the BPF programs to be loaded", loaded)? {
        need::kernel_lacks("it does not take the program");
        return Ok(());
    }
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id).context("no task")?;
    process::signal_pid(task.pid, Signal::KILL);
    let end = |pod: &Value| container(pod, "main")["state"]["terminated"].clone();
    let web = node.wait_pod("web", "ended", |pod| end(pod).is_object())?;
    let said = end(&web)["message"].as_str().unwrap_or_default().to_owned();
    let killer = format!("(pid {}), user id 0", std::process::id());
    ensure!(said.starts_with("killed by signal 9 from ") && said.ends_with(&killer), "{}", end(&web));
    Ok(())
}
