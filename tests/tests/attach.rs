//! `limpet attach`: the input and the live output of a container's own process.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use limpet_tests::manifest::{pod, shell, with};
use limpet_tests::node::container_id;
use limpet_tests::terminal::Terminal;
use limpet_tests::{TestNode, case, image, suite, wait};
use serde_json::{Value, json};

fn main() -> ExitCode {
    suite::run([
        case!(a_shell_is_talked_to_and_outlives_its_clients_and_the_agent),
        case!(a_container_without_a_terminal_shows_its_lines),
        case!(what_a_client_sends_reaches_a_container_without_a_terminal),
        case!(an_input_for_one_client_ends_with_it),
    ])
}

/// A pod whose main container is a shell at a terminal.
fn shell_pod(name: &str) -> Value {
    let terminal = json!({ "command": ["/bin/sh"], "stdin": true, "stdinOnce": true, "tty": true });
    pod(name, json!({ "containers": [with(shell("main", ""), terminal)] }))
}

fn shown(node: &TestNode, name: &str) -> PathBuf {
    node.dir().join(format!("{name}.shown"))
}

/// A client at a terminal.
fn attached(node: &TestNode, name: &str) -> Result<Terminal> {
    Terminal::on_terminal(&node.agent.cli_command(&["attach", "-it", "box"])?, &shown(node, name))
}

fn a_shell_is_talked_to_and_outlives_its_clients_and_the_agent(node: &mut TestNode) -> Result<()> {
    node.apply(&shell_pod("box"))?;
    let id = container_id(&node.wait_running("box")?, "main")?;
    let mut first = attached(node, "first")?;
    first.wait_for("try pressing enter")?;
    first.write("kept=in-the-shell; echo $((40 + 2))-here\r")?;
    first.wait_for("42-here")?;
    // A second client sees what the first one causes.
    let mut second = Terminal::piped(node.agent.cli_command(&["attach", "box"])?, &shown(node, "second"))?;
    sees_all(&mut first, &mut second)?;
    node.wait_logged("box", "main", "42-here")?;

    // The size is that of the terminal: `script` makes a terminal without a size, and a known size is passed on.
    first.write("stty size; echo measured\r")?;
    first.wait_for("measured")?;

    node.agent.kill();
    node.agent.start()?;
    let now = container_id(&node.wait_running("box")?, "main")?;
    ensure!(now == id, "{now} took the place of {id}");
    let mut again = attached(node, "again")?;
    again.wait_for("try pressing enter")?;
    again.write("echo ${kept}-still\r")?;
    again.wait_for("in-the-shell-still")?;

    // A client that ends the shell is disconnected, and the container is restarted.
    again.write("exit 3\r")?;
    again.wait_end()?;
    let pod = node.wait_pod("box", "restarted", |pod| pod["status"]["containerStatuses"][0]["restartCount"] == 1)?;
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    ensure!(last["exitCode"] == 3, "{last}");
    node.wait_running("box")?;
    let mut piped = Terminal::piped(node.agent.cli_command(&["attach", "-i", "box"])?, &shown(node, "piped"))?;
    sees_what_it_types(&mut piped)?;
    piped.end_input();
    piped.wait_end()?;

    let terminals = node.agent.settings().run().join("attach");
    ensure!(terminals.read_dir()?.count() > 0, "{} has nothing", terminals.display());
    node.remove("box")?;
    node.wait_gone("box")?;
    wait::until_none(wait::SOON, "a terminal", || {
        Ok(terminals.read_dir()?.flatten().map(|entry| entry.path().display().to_string()).collect())
    })
}

/// The second client connects at an unknown time after its start, so the first one repeats itself until then.
fn sees_all(first: &mut Terminal, second: &mut Terminal) -> Result<()> {
    wait::until_true(wait::SOON, "the second client's output", || {
        first.write("echo $((1000 + 1))-seen\r").is_ok()
            && first.wait_for("1001-seen").is_ok()
            && second.shown().contains("1001-seen")
    })
}

fn sees_what_it_types(piped: &mut Terminal) -> Result<()> {
    wait::until_true(wait::SOON, "its own output", || {
        piped.write("echo $((2000 + 2))-typed\n").is_ok() && piped.shown().contains("2002-typed")
    })
}

fn a_container_without_a_terminal_shows_its_lines(node: &mut TestNode) -> Result<()> {
    let script = "echo before; until [ -e /go ]; do usleep 20000; done; echo out; echo err >&2; \
                  until [ -e /end ]; do usleep 20000; done; echo the end";
    let main = with(shell("main", script), json!({}));
    node.apply(&pod("lines", json!({ "containers": [main], "restartPolicy": "Never" })))?;
    node.wait_running("lines")?;
    node.wait_logged("lines", "main", "before")?;
    let refused = node.agent.cli(&["attach", "-i", "lines"])?;
    ensure!(refused.stderr.contains("container main has no stdin; set stdin: true in its manifest"), "{refused:?}");
    let mut client = Terminal::piped(node.agent.cli_command(&["attach", "lines"])?, &shown(node, "lines"))?;
    client.end_input();
    // An attachment shows only what comes after it, so there is no line to wait for before it has begun.
    let open = format!("/proc/{}/fd", node.agent.pid().unwrap_or_default());
    wait::until_true(wait::SOON, "the log being followed", || follows_log(&open))?;
    node.exec("lines", "main", &["touch", "/go"])?;
    wait::until_true(wait::SOON, "both streams", || {
        let shown = client.shown();
        shown.contains("out\n") && shown.contains("err\n")
    })?;
    // The client may be killed with the container, before its exit is reported.
    node.agent.cli(&["exec", "lines", "--", "touch", "/end"])?;
    client.wait_for("the end")?;
    client.wait_end()?;
    ensure!(!client.shown().contains("before"), "{}", client.shown());
    Ok(())
}

/// A pod that prints what it reads, until the end of its input.
fn reader_pod(name: &str, once: bool) -> Value {
    let script = "while read line; do echo got-$line; done; echo end of input";
    let main = with(shell("main", script), json!({ "stdin": true, "stdinOnce": once }));
    pod(name, json!({ "containers": [main], "restartPolicy": "Never" }))
}

fn sender(node: &TestNode, pod: &str, name: &str) -> Result<Terminal> {
    Terminal::piped(node.agent.cli_command(&["attach", "-i", pod])?, &shown(node, name))
}

fn what_a_client_sends_reaches_a_container_without_a_terminal(node: &mut TestNode) -> Result<()> {
    node.apply(&reader_pod("open", false))?;
    let id = container_id(&node.wait_running("open")?, "main")?;
    let mut first = sender(node, "open", "first")?;
    first.write("one\n")?;
    node.wait_logged("open", "main", "got-one")?;
    // The client leaves at the end of its input, and the container's input stays open.
    first.end_input();
    first.wait_end()?;
    node.agent.kill();
    node.agent.start()?;
    let now = container_id(&node.wait_running("open")?, "main")?;
    ensure!(now == id, "{now} took the place of {id}");
    let mut second = sender(node, "open", "second")?;
    second.write("two\n")?;
    node.wait_logged("open", "main", "got-two")?;
    second.wait_for("got-two")?;
    second.end_input();
    second.wait_end()?;
    ensure!(!node.logs("open", "main")?.contains("end of input"), "its input has ended");
    node.wait_running("open")?;
    let debug =
        ["debug", "-i", "open", "--image", image::V2, "-c", "pipe", "--", "sh", "-c", "read line; echo $line-piped"];
    node.agent.cli_with_input(&debug, b"hello\n")?.success()?;
    node.wait_logged("open", "pipe", "hello-piped")?;
    node.remove("open")?;
    node.wait_gone("open")
}

fn an_input_for_one_client_ends_with_it(node: &mut TestNode) -> Result<()> {
    node.apply(&reader_pod("once", true))?;
    let id = container_id(&node.wait_running("once")?, "main")?;
    node.agent.kill();
    node.agent.start()?;
    let now = container_id(&node.wait_running("once")?, "main")?;
    ensure!(now == id, "{now} took the place of {id}");
    let mut client = sender(node, "once", "client")?;
    client.write("one\n")?;
    node.wait_logged("once", "main", "got-one")?;
    client.end_input();
    node.wait_logged("once", "main", "end of input")?;
    client.wait_end()?;
    ensure!(client.shown().contains("end of input"), "{}", client.shown());
    let pod = node.wait_pod("once", "completed", |pod| pod["status"]["phase"] == "Succeeded")?;
    ensure!(container_id(&pod, "main")? == id, "{pod}");
    Ok(())
}

/// Whether both streams are being followed, so that each has the log open at its end.
fn follows_log(descriptors: &str) -> bool {
    let open = std::fs::read_dir(descriptors).into_iter().flatten().flatten();
    let logs = open.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    logs.filter(|path| path.to_string_lossy().ends_with("/main/0.log")).count() >= 2
}
