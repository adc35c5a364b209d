//! Logs: nothing is lost, files are rotated, and `limpet logs` reads them all.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::footprint::pids;
use limpet_tests::manifest::{IDLE, pod, shell, simple};
use limpet_tests::node::{NodeOptions, container};
use limpet_tests::{TestNode, agent, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::{Value, json};

fn main() -> ExitCode {
    let with_loggers = |node: &mut NodeOptions| node.limpet = vec!["shim: runc-v2".to_owned()];
    suite::run([
        case!(a_flood_is_kept_whole).on(|node| node.kubelet = vec!["containerLogMaxSize: 512Mi".to_owned()]),
        case!(a_log_is_rotated).on(|node| {
            node.kubelet = vec!["containerLogMaxSize: 1Mi".to_owned(), "containerLogMaxFiles: 3".to_owned()];
        }),
        case!(both_streams_and_an_unfinished_line),
        case!(a_followed_log_ends_with_its_container),
        case!(a_logger_that_is_killed_is_replaced).on(with_loggers),
        case!(a_logger_that_was_killed_while_no_agent_ran_is_replaced).on(with_loggers),
        case!(the_logger_of_a_start_that_was_broken_off_yields_to_the_next),
    ])
}

/// Writes `lines` numbered lines of 100 bytes as fast as it can.
fn flood(lines: u32) -> String {
    format!(
        "awk 'BEGIN {{ pad = sprintf(\"%090d\", 0); for (i = 0; i < {lines}; i++) printf \"%08d %s\\n\", i, pad }}'"
    )
}

fn once(name: &str, script: &str) -> Value {
    pod(name, json!({ "restartPolicy": "Never", "containers": [shell("main", script)] }))
}

fn log_dir(node: &TestNode, pod: &Value) -> Result<PathBuf> {
    let text = |key: &str| pod["metadata"][key].as_str().with_context(|| format!("no {key}"));
    let name = format!("{}_{}_{}", text("namespace")?, text("name")?, text("uid")?);
    Ok(node.agent.settings().pod_logs().join(name).join("main"))
}

/// The number at the beginning of each line's text in a file in CRI format.
fn numbers(text: &str) -> Vec<u32> {
    let message = |line: &str| line.splitn(4, ' ').nth(3).and_then(|message| message.get(..8)?.parse().ok());
    text.lines().filter_map(message).collect()
}

fn a_flood_is_kept_whole(node: &mut TestNode) -> Result<()> {
    const LINES: u32 = 1_000_000;
    node.apply(&once("web", &flood(LINES)))?;
    let web = node.wait_pod("web", "started", |pod| pod["status"]["phase"] != "Pending")?;
    // The logger survives the agent.
    node.agent.kill();
    node.agent.start()?;
    let file = log_dir(node, &web)?.join("0.log");
    let last = format!(" stdout F {:08} ", LINES - 1);
    wait::until_true(wait::SOON, "the last line", || {
        let Ok(mut log) = fs::File::open(&file) else { return false };
        let mut end = Vec::new();
        std::io::Seek::seek(&mut log, std::io::SeekFrom::End(-300)).ok();
        std::io::Read::read_to_end(&mut log, &mut end).is_ok() && String::from_utf8_lossy(&end).contains(&last)
    })?;
    let seen = numbers(&fs::read_to_string(&file)?);
    ensure!(seen.len() == LINES as usize, "{} lines of {LINES}", seen.len());
    ensure!(seen.iter().copied().eq(0..LINES), "lines are out of order");
    let tail = node.agent.cli(&["logs", "--tail", "2", &node.full_name("web")])?.success()?;
    let tail: Vec<_> = tail.lines().filter_map(|line| line.get(..8)?.parse::<u32>().ok()).collect();
    ensure!(tail == [LINES - 2, LINES - 1], "{tail:?}");
    node.wait_pod("web", "succeeded", |pod| pod["status"]["phase"] == "Succeeded").map(drop)
}

fn a_log_is_rotated(node: &mut TestNode) -> Result<()> {
    const LINES: u32 = 60_000;
    node.apply(&once("web", &flood(LINES)))?;
    let web = node.wait_pod("web", "succeeded", |pod| pod["status"]["phase"] == "Succeeded")?;
    let dir = log_dir(node, &web)?;
    let files = || {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let mut files: Vec<_> = entries.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
        // The current file has the shortest name and is the newest.
        files.sort_by_key(|path| (path.ends_with("0.log"), path.clone()));
        files
    };
    let read =
        |path: &PathBuf| fs::read(path).map(|bytes| numbers(&String::from_utf8_lossy(&bytes))).unwrap_or_default();
    wait::until_true(wait::SOON, "the last line", || {
        files().last().is_some_and(|path| read(path).last() == Some(&(LINES - 1)))
    })?;
    let files = files();
    ensure!((2..=3).contains(&files.len()), "{files:?}");
    for file in &files {
        ensure!(fs::metadata(file)?.len() <= (1 << 20) + 200, "{} is too long", file.display());
    }
    let plain = files.iter().filter(|path| path.extension().is_none_or(|extension| extension != "gz"));
    let kept: Vec<_> = plain.flat_map(read).collect();
    let first = *kept.first().context("nothing is kept")?;
    ensure!(kept.iter().copied().eq(first..LINES), "lines were lost in a rotation");
    Ok(())
}

fn both_streams_and_an_unfinished_line(node: &mut TestNode) -> Result<()> {
    node.apply(&once("web", "echo out; sleep 0.1; echo err >&2; sleep 0.1; printf unfinished"))?;
    let web = node.wait_pod("web", "succeeded", |pod| pod["status"]["phase"] == "Succeeded")?;
    let text = wait::until(wait::SOON, "the unfinished line", || {
        fs::read_to_string(log_dir(node, &web).ok()?.join("0.log")).ok().filter(|text| text.contains("unfinished"))
    })?;
    let streams: Vec<_> = text.lines().filter_map(|line| line.split_once(' ').map(|(_, rest)| rest)).collect();
    ensure!(streams[..2] == ["stdout F out", "stderr F err"], "{text}");
    let read = node.logs("web", "main")?;
    ensure!(read.trim_end() == "out\nerr\nunfinished", "{read:?}");
    Ok(())
}

fn a_followed_log_ends_with_its_container(node: &mut TestNode) -> Result<()> {
    node.apply(&simple("idle", IDLE))?;
    node.apply(&once("web", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.2; done"))?;
    node.wait_pod("web", "started", |pod| pod["status"]["phase"] != "Pending")?;
    let mut follow = node.agent.cli_command(&["logs", "-f", &node.full_name("web")])?;
    let mut child = follow.stdout(std::process::Stdio::piped()).spawn()?;
    let ended = wait::until(Duration::from_secs(30), "the end of the followed log", || child.try_wait().ok().flatten());
    child.kill().ok();
    ended?;
    let output = child.wait_with_output()?;
    ensure!(String::from_utf8_lossy(&output.stdout) == "1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n", "{output:?}");
    Ok(())
}

/// Kills the node's only logger and waits for another one.
fn replace_logger(node: &TestNode) -> Result<()> {
    let only = || <[u32; 1]>::try_from(pids(node.dir(), "limpet-logger")).ok();
    let [killed] = wait::until(wait::SOON, "one logger", only)?;
    process::signal_pid(killed, Signal::KILL);
    wait::until_true(wait::SOON, "another logger", || only().is_some_and(|[pid]| pid != killed))
}

fn a_logger_that_is_killed_is_replaced(node: &mut TestNode) -> Result<()> {
    let count = "i=0; while :; do printf '%08d\\n' $i; i=$((i + 1)); sleep 0.01; done";
    node.apply(&pod("web", json!({ "containers": [shell("main", count)] })))?;
    let web = node.wait_running("web")?;
    let file = log_dir(node, &web)?.join("0.log");
    let seen = || fs::read_to_string(&file).map(|text| numbers(&text)).unwrap_or_default();
    let wait_for_more = || {
        let before = seen().len();
        wait::until_true(wait::SOON, "more lines", || seen().len() > before + 20)
    };
    wait_for_more()?;
    replace_logger(node)?;
    node.wait_event("continues its log")?;
    wait_for_more()?;
    // The next agent follows the logger that has replaced the first one.
    node.agent.kill();
    node.agent.start()?;
    node.wait_running("web")?;
    wait_for_more()?;
    replace_logger(node)?;
    wait_for_more()?;
    let seen = seen();
    let missing = seen.windows(2).filter(|pair| pair[1] != pair[0] + 1).count();
    // Each time the logger may have read a line that it has not written yet.
    ensure!(missing <= 2 && seen.is_sorted(), "{missing} gaps in {} lines", seen.len());
    let restarts = container(&node.wait_running("web")?, "main")["restartCount"].clone();
    ensure!(restarts == 0, "restarted {restarts} times");
    Ok(())
}

fn a_logger_that_was_killed_while_no_agent_ran_is_replaced(node: &mut TestNode) -> Result<()> {
    let told = "until [ -e /tmp/go ]; do sleep 0.05; done; echo told; while :; do sleep 1000; done";
    node.apply(&pod("web", json!({ "containers": [shell("main", told)] })))?;
    node.wait_running("web")?;
    node.agent.kill();
    let loggers = pids(node.dir(), "limpet-logger");
    ensure!(loggers.len() == 1, "{loggers:?}");
    process::signal_pid(loggers[0], Signal::KILL);
    wait::until_true(wait::SOON, "the logger's end", || pids(node.dir(), "limpet-logger").is_empty())?;
    node.agent.start()?;
    node.wait_event("while no agent followed it")?;
    node.exec("web", "main", &["/bin/sh", "-c", ": > /tmp/go"])?;
    node.wait_logged("web", "main", "told")?;
    Ok(())
}

/// Starts a logger as a shim does for the container `id`, whose pipes are never closed.
fn logger(node: &TestNode, id: &str, number: u32) -> Result<Child> {
    let (pipe, ready) = (node.dir().join(format!("pipe-{number}")), node.dir().join(format!("ready-{number}")));
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU, 0)?;
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" logger \"$1\" 3<>\"$2\" 4<>\"$2\" 5>\"$3\""]).arg(agent::program()?);
    command.arg(format!("1000000:2:0:{}", node.dir().join("one.log").display())).args([&pipe, &ready]);
    let logger = command.env("CONTAINER_ID", id).spawn()?;
    wait::until_true(wait::SOON, "the logger", || fs::read(&ready).is_ok_and(|said| said == b"1"))?;
    Ok(logger)
}

fn the_logger_of_a_start_that_was_broken_off_yields_to_the_next(node: &mut TestNode) -> Result<()> {
    let mut first = logger(node, node.name(), 1)?;
    let mut second = logger(node, node.name(), 2)?;
    let ended =
        wait::until_true(wait::SOON, "the end of the first", || first.try_wait().is_ok_and(|end| end.is_some()));
    let runs = second.try_wait()?.is_none();
    for logger in [&mut first, &mut second] {
        logger.kill().and_then(|()| logger.wait())?;
    }
    ended?;
    ensure!(runs, "the second has ended, too");
    Ok(())
}
