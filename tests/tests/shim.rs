//! limpet's own shim: pods that run by it, beside those of containerd's shim, and ends that no agent saw.

use std::os::unix::fs::PermissionsExt as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell, simple, with};
use limpet_tests::node::{NodeOptions, container, container_id};
use limpet_tests::terminal::Terminal;
use limpet_tests::{TestNode, agent, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    let by_limpets = |node: &mut NodeOptions| node.limpet = agent::limpets_shim().into_iter().collect();
    let by_containerds = |node: &mut NodeOptions| node.limpet = vec!["shim: runc-v2".to_owned()];
    let for_the_node = |node: &mut NodeOptions| {
        node.limpet = agent::limpets_shim().into_iter().chain(["shimGroup: node".to_owned()]).collect();
    };
    suite::run([
        case!(a_pod_has_one_small_process).on(by_limpets),
        case!(commands_and_terminals_work).on(by_limpets),
        case!(an_end_that_nobody_saw_is_known_exactly).on(by_limpets),
        case!(a_killed_shim_is_replaced).on(by_limpets),
        case!(pods_keep_their_shim).on(by_containerds),
        case!(other_clients_of_containerd_can_use_it).on(by_limpets),
        case!(a_slow_logger_delays_no_other_container).on(by_limpets),
        case!(one_shim_serves_the_node).on(for_the_node),
    ])
}

/// The processes of the node's shims, each with its program.
fn shims(node: &TestNode) -> Vec<(u32, String)> {
    let socket = node.containerd.socket().display().to_string();
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let shims = pids.filter_map(|pid| {
        let arguments = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let arguments: Vec<_> = arguments.split(|byte| *byte == 0).map(String::from_utf8_lossy).collect();
        let is_server = arguments.iter().all(|argument| argument != "start" && argument != "delete");
        let program = arguments.first().filter(|program| program.contains("containerd-shim"))?;
        (is_server && arguments.contains(&socket.as_str().into())).then(|| (pid, program.clone().into_owned()))
    });
    shims.collect()
}

fn loggers(node: &TestNode) -> usize {
    let place = format!("{}/", node.dir().display());
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = all.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
    lines.filter(|line| line.contains("\0logger\0") && line.contains(&place)).count()
}

fn a_pod_has_one_small_process(node: &mut TestNode) -> Result<()> {
    let containers =
        json!([shell("main", "echo out; echo err >&2; exec sleep 1000"), shell("side", "echo side; exit 3")]);
    node.apply(&pod("web", json!({ "containers": containers })))?;
    let web = node.wait_pod("web", "its second container has failed", |pod| {
        let side = container(pod, "side");
        side["restartCount"].as_u64() >= Some(1) && container(pod, "main")["state"]["running"].is_object()
    })?;
    let ended = &container(&web, "side")["lastState"]["terminated"];
    ensure!(ended["exitCode"] == 3 && ended["reason"] == "Error", "{ended}");
    node.wait_logged("web", "main", "out")?;
    node.wait_logged("web", "main", "err")?;
    node.wait_logged("web", "side", "side")?;
    let shims = shims(node);
    ensure!(shims.len() == 1 && shims[0].1.ends_with("containerd-shim-limpet-v1"), "{shims:?}");
    ensure!(loggers(node) == 0, "{} loggers", loggers(node));
    let threads = std::fs::read_dir(format!("/proc/{}/task", shims[0].0))?.count();
    ensure!(threads == 1, "{threads} threads");
    node.remove("web")?;
    node.wait_gone("web")?;
    node.wait_nothing_runs()
}

fn commands_and_terminals_work(node: &mut TestNode) -> Result<()> {
    let terminal = with(shell("term", "tty; echo ready; exec sleep 1000"), json!({ "tty": true, "stdin": true }));
    let input = with(shell("input", "while read line; do echo got $line; done; echo end"), json!({ "stdin": true }));
    node.apply(&pod("web", json!({ "containers": [shell("main", IDLE), terminal, input] })))?;
    node.wait_running("web")?;
    ensure!(node.exec("web", "main", &["/bin/sh", "-c", "echo $0; yes | head -c 100000 | wc -c"])?.contains("100000"));
    node.wait_logged("web", "term", "/dev/")?;
    node.wait_logged("web", "term", "ready")?;
    let id = container_id(&node.pod("web").context("no pod")?, "main")?;
    let metrics = node.containerd.ctr(&["task", "metrics", &id])?;
    ensure!(metrics.contains("memory") && metrics.contains("pids.current"), "{metrics}");
    node.containerd.ctr(&["task", "pause", &id])?;
    let paused = node.containerd.ctr(&["task", "ls"])?;
    ensure!(paused.lines().any(|line| line.contains(&id) && line.contains("PAUSED")), "{paused}");
    node.containerd.ctr(&["task", "resume", &id])?;
    ensure!(node.exec("web", "main", &["/bin/echo", "resumed"])? == "resumed\n");
    Ok(())
}

/// A pod ends when its file appears, and the next agent knows how.
fn an_end_that_nobody_saw_is_known_exactly(node: &mut TestNode) -> Result<()> {
    let volume = json!({ "volumeMounts": [{ "name": "work", "mountPath": "/work" }] });
    let main = with(shell("main", "while [ ! -e /work/end ]; do sleep 0.1; done; exit 42"), volume);
    let place = node.dir().join("work");
    std::fs::create_dir_all(&place)?;
    let volumes = json!([{ "name": "work", "hostPath": { "path": place } }]);
    node.apply(&pod("once", json!({ "restartPolicy": "Never", "containers": [main], "volumes": volumes })))?;
    let id = container_id(&node.wait_running("once")?, "main")?;
    node.agent.kill();
    node.containerd.kill();
    std::fs::write(place.join("end"), "")?;
    let record = node.agent.settings().run().join("exits").join(&id);
    wait::until_true(wait::SOON, "the record of the exit", || record.exists())?;
    for (pid, _) in shims(node) {
        process::signal_pid(pid, Signal::KILL);
    }
    node.containerd.start()?;
    node.agent.start()?;
    let once = node.wait_pod("once", "ended", |pod| container(pod, "main")["state"]["terminated"].is_object())?;
    let ended = &container(&once, "main")["state"]["terminated"];
    ensure!(ended["exitCode"] == 42 && ended["reason"] == "Error", "{ended}");
    node.remove("once")?;
    node.wait_gone("once")?;
    ensure!(!record.exists(), "the record is left");
    Ok(())
}

/// containerd ends what a killed shim has left, and the pod runs again.
fn a_killed_shim_is_replaced(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("web", IDLE))?;
    node.wait_running("web")?;
    let before = shims(node);
    process::signal_pid(before.first().context("no shim")?.0, Signal::KILL);
    node.wait_pod("web", "restarted", |pod| {
        let main: &Value = container(pod, "main");
        main["restartCount"] == 1 && main["state"]["running"].is_object()
    })?;
    let after = shims(node);
    ensure!(after.len() == 1 && after[0].0 != before[0].0, "{before:?} {after:?}");
    Ok(())
}

fn pods_keep_their_shim(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("old", IDLE))?;
    let old = node.wait_running("old")?;
    node.agent.kill();
    let line = agent::limpets_shim()?;
    node.agent.reconfigure(|settings| settings.limpet = vec![line])?;
    node.agent.start()?;
    node.apply(&simple("new", IDLE))?;
    node.wait_running("new")?;
    node.ensure_unchanged("old", &old)?;
    let programs: Vec<_> = shims(node).into_iter().map(|(_, program)| program).collect();
    let count = |name: &str| programs.iter().filter(|program| program.ends_with(name)).count();
    ensure!(count("containerd-shim-runc-v2") == 1 && count("containerd-shim-limpet-v1") == 1, "{programs:?}");
    ensure!(loggers(node) == 1, "{} loggers", loggers(node));
    Ok(())
}

/// Pods are created, deleted and killed, and write logs at the same time; the shim ends with the last one.
fn one_shim_serves_the_node(node: &mut TestNode) -> Result<()> {
    let names = ["a", "b", "c"];
    for name in names {
        let script = format!("echo from {name}; while [ ! -e /tmp/end ]; do sleep 0.1; done; exit 7");
        node.apply(&pod(name, json!({ "containers": [shell("main", &script)] })))?;
    }
    for name in names {
        node.wait_running(name)?;
        node.wait_logged(name, "main", &format!("from {name}"))?;
    }
    let shim = shims(node);
    ensure!(shim.len() == 1 && shim[0].1.ends_with("containerd-shim-limpet-v1"), "{shim:?}");
    let untouched = node.pod("c").context("no pod")?;
    // The container may end before this command does, and then ends it with 137. The restart below shows that it worked.
    drop(node.exec("a", "main", &["/bin/touch", "/tmp/end"]));
    let a = node.wait_pod("a", "restarted", |pod| container(pod, "main")["restartCount"] == 1)?;
    ensure!(container(&a, "main")["lastState"]["terminated"]["exitCode"] == 7, "{a}");
    node.remove("b")?;
    node.wait_gone("b")?;
    node.containerd.kill();
    node.containerd.start()?;
    node.apply(&simple("d", IDLE))?;
    node.wait_running("d")?;
    node.ensure_unchanged("c", &untouched)?;
    ensure!(shims(node) == shim, "{shim:?} {:?}", shims(node));
    for name in ["a", "c", "d"] {
        node.remove(name)?;
        node.wait_gone(name)?;
    }
    node.wait_nothing_runs()?;
    wait::until_true(wait::SOON, "the end of the shim", || shims(node).is_empty())
}

fn other_clients_of_containerd_can_use_it(node: &mut TestNode) -> Result<()> {
    let runtime = agent::shim_program()?.display().to_string();
    let image = limpet_tests::image::V1;
    let run = |command: &[&str]| {
        let words = ["run", "--rm", "--runtime", &runtime, image, "by-ctr"];
        node.containerd.ctr(&[words.as_slice(), command].concat())
    };
    ensure!(run(&["/bin/echo", "hello"])? == "hello\n");
    ensure!(run(&["/bin/sh", "-c", "exit 3"]).is_err(), "its exit code is lost");
    let refused = node.containerd.ctr(&["run", "--rm", "--runtime", &runtime, image, "by-ctr", "/no/such/program"]);
    let refused = format!("{:#}", refused.err().context("it ran")?);
    ensure!(refused.contains("no such file or directory"), "{refused}");
    Ok(())
}

/// A program that reads the output of a container, as clients of containerd name one. It is ready when the test says so.
const LOGGER: &str = r#"#!/bin/sh
cd "$(dirname "$0")"
: > started
while [ ! -e go ]; do sleep 0.05; done
echo ready >&5
exec 5>&-
cat <&3 > output
"#;

fn a_slow_logger_delays_no_other_container(node: &mut TestNode) -> Result<()> {
    let runtime = agent::shim_program()?.display().to_string();
    let place = node.dir().join("logger");
    std::fs::create_dir_all(&place)?;
    let program = place.join("logger");
    std::fs::write(&program, LOGGER)?;
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755))?;
    let run = |options: &[&str], id: &str, words: &[&str]| {
        let common = ["run", "--runtime", &runtime, "--annotation", "io.kubernetes.cri.sandbox-id=loggers"];
        node.containerd.ctr_command(&[&common, options, &[limpet_tests::image::V1, id], words].concat())
    };
    let uri = format!("binary://{}", program.display());
    let slow = run(&["--detach", "--log-uri", &uri], "slow", &["/bin/echo", "from the slow one"]);
    let mut slow = Terminal::piped(slow, &place.join("shown"))?;
    let started = wait::until_true(wait::SOON, "the logger", || place.join("started").exists());
    started.with_context(|| slow.shown())?;
    ensure!(process::checked(&mut run(&["--rm"], "quick", &["/bin/echo", "hello"]))? == "hello\n");
    let waits = node.containerd.tasks()?.iter().all(|task| task.id != "slow" || task.state == "UNKNOWN");
    ensure!(waits, "the container did not wait for its logger");
    std::fs::write(place.join("go"), "")?;
    slow.wait_end()?;
    let output = || std::fs::read_to_string(place.join("output")).unwrap_or_default();
    wait::until_true(wait::SOON, "the logged line", || output() == "from the slow one\n")?;
    wait::until_true(wait::SOON, "the end of the container", || {
        node.containerd.tasks().is_ok_and(|tasks| tasks.iter().all(|task| task.id != "slow" || task.state == "STOPPED"))
    })?;
    node.containerd.ctr(&["task", "rm", "slow"])?;
    node.containerd.ctr(&["container", "rm", "slow"]).map(drop)
}
