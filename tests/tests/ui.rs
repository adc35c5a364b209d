//! `limpet ui`: the full screen, at a terminal, on a real agent.

use std::fs;
use std::process::{Command, ExitCode};

use anyhow::{Context as _, Result, ensure};
use limpet_tests::manifest::{IDLE, pod, shell};
use limpet_tests::terminal::{Cell, Color, Terminal};
use limpet_tests::{TestNode, case, process, suite, wait};
use rustix::process::Signal;
use serde_json::json;

fn main() -> ExitCode {
    suite::run([
        case!(the_screen_shows_pods_logs_events_and_usage_and_goes_with_a_key),
        case!(the_terminal_is_given_back_however_the_screen_ends),
        case!(without_a_terminal_there_is_no_screen).on(|node| node.agent = false),
    ])
}

const SIZE: (u16, u16) = (80, 24);

/// Starts `limpet ui` on a terminal of 80 columns and 24 lines. The terminal's settings before and after it are
/// recorded.
fn screen(node: &TestNode, term: &str) -> Result<Terminal> {
    let ui = node.agent.cli_command(&["ui"])?;
    let words = std::iter::once(ui.get_program()).chain(ui.get_args());
    let line: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let (dir, line) = (node.dir().display(), line.join(" "));
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!(
        "stty rows {} cols {}; stty -g > {dir}/before; sh -c \"echo \\$\\$ > {dir}/pid; exec {line}\"; \
         echo left: $?; stty -g > {dir}/after; echo over",
        SIZE.1, SIZE.0
    ));
    shell.env("TERM", term).env("LANG", "C.UTF-8").env("NO_COLOR", if term == "xterm" { "" } else { "1" });
    Terminal::on_terminal(&shell, &node.dir().join("screen"))
}

/// Checks that the command has ended with `code`, and that the terminal is as it was.
fn given_back(node: &TestNode, terminal: &mut Terminal) -> Result<()> {
    terminal.wait_for("left: 0")?;
    terminal.wait_for("over")?;
    let settings = |name: &str| fs::read_to_string(node.dir().join(name)).context("the terminal's settings");
    ensure!(settings("before")? == settings("after")?, "{} {}", settings("before")?, settings("after")?);
    let screen = terminal.screen(SIZE.0, SIZE.1);
    ensure!(!screen.hide_cursor() && !screen.alternate_screen(), "{:?}", terminal.shown());
    Ok(())
}

fn talking(name: &str) -> serde_json::Value {
    let say = |what: &str| format!("for i in 1 2 3; do echo line $i of {what}; done; printf '\\033[2Jsly\\n'; {IDLE}");
    pod(name, json!({ "containers": [shell("main", &say("main")), shell("side", &say("side"))] }))
}

fn the_screen_shows_pods_logs_events_and_usage_and_goes_with_a_key(node: &mut TestNode) -> Result<()> {
    node.apply(&talking("web"))?;
    node.wait_running("web")?;
    let mut ui = screen(node, "vt100")?;
    let web = node.full_name("web");
    ui.wait_screen(SIZE, "the pod", |text| text.contains(&web) && text.contains("2/2") && text.contains("q quit"))?;
    let first = ui.bytes();
    ensure!(first.len() < 2400, "a first screen of {} bytes", first.len());
    ensure!(first.is_ascii(), "{:?}", ui.shown());

    // Another pod appears without a key. What that sends is a few lines, so nothing was drawn in between.
    node.apply(&talking("next"))?;
    node.wait_running("next")?;
    let next = node.full_name("next");
    let is_ready = |line: &str| line.contains(&next) && line.contains("2/2") && line.contains("Running");
    ui.wait_screen(SIZE, "the next pod", |text| text.lines().any(is_ready))?;
    let more = ui.bytes().len() - first.len();
    println!("first screen {} bytes, a pod's start {more} bytes", first.len());
    ensure!(more < 1500, "{more} bytes for a pod's start");

    let before = ui.bytes().len();
    ui.write("j")?;
    ui.wait_screen(SIZE, "the other pod", |text| {
        text.lines().any(|line| line.starts_with('>') && line.contains(&web))
    })?;
    ensure!(ui.bytes().len() - before < 30, "{} bytes for a step", ui.bytes().len() - before);
    ui.write("\r")?;
    ui.wait_screen(SIZE, "its details", |text| text.contains("Namespace:        default") && text.contains(&web))?;
    ui.write("G")?;
    ui.wait_screen(SIZE, "its events", |text| text.contains("Started"))?;
    ui.write("l")?;
    ui.wait_screen(SIZE, "its log", |text| text.contains("line 3 of main") && text.contains("\\u{1b}[2Jsly"))?;
    ui.write("c")?;
    ui.wait_screen(SIZE, "the other log", |text| text.contains("line 3 of side"))?;
    node.exec("web", "side", &["sh", "-c", "echo and one more > /proc/1/fd/1"])?;
    ui.wait_screen(SIZE, "the line that came", |text| text.contains("and one more"))?;
    ui.write("qqe")?;
    ui.wait_screen(SIZE, "the events", |text| text.contains("REASON") && text.contains("Started"))?;
    ui.write("qu")?;
    ui.wait_screen(SIZE, "what is used", |text| {
        text.contains("MemoryPressure False") && text.contains("MEMORY(bytes)")
    })?;
    ui.write("q/next")?;
    ui.wait_screen(SIZE, "the filter", |text| text.contains("/next_") && !text.contains(&web))?;
    ui.write("\x1b")?;
    ui.wait_screen(SIZE, "all pods", |text| text.contains(&web))?;

    node.agent.kill();
    ui.wait_screen(SIZE, "that the agent is away", |text| {
        text.contains("limpet is down since") && text.contains(&web)
    })?;
    node.agent.start()?;
    ui.wait_screen(SIZE, "that it is back", |text| !text.contains("away") && text.lines().any(is_ready))?;
    node.remove("next")?;
    ui.wait_screen(SIZE, "one pod", |text| !text.contains(&next) && text.contains("pods: 1"))?;
    ui.write("q")?;
    given_back(node, &mut ui)?;
    ui.wait_end()
}

fn the_terminal_is_given_back_however_the_screen_ends(node: &mut TestNode) -> Result<()> {
    node.apply(&talking("web"))?;
    node.wait_running("web")?;
    for end in ["\x03", "TERM", "HUP"] {
        let mut ui = screen(node, "xterm")?;
        ui.wait_screen(SIZE, "the pod", |text| text.contains("2/2"))?;
        ensure!(ui.screen(SIZE.0, SIZE.1).alternate_screen(), "{:?}", ui.shown());
        let green = |cell: &Cell| cell.fgcolor() == Color::Idx(2);
        let screen = ui.screen(SIZE.0, SIZE.1);
        ensure!((0..80).any(|x| screen.cell(2, x).is_some_and(green)), "no colour: {:?}", ui.shown());
        let pid: u32 = fs::read_to_string(node.dir().join("pid"))?.trim().parse()?;
        match end {
            "TERM" => process::signal_pid(pid, Signal::TERM),
            "HUP" => process::signal_pid(pid, Signal::HUP),
            key => ui.write(key)?,
        }
        given_back(node, &mut ui).with_context(|| format!("{end:?}"))?;
        ui.wait_end()?;
    }
    // The command ends when the terminal itself is closed.
    let ui = screen(node, "xterm")?;
    ui.wait_screen(SIZE, "the pod", |text| text.contains("2/2"))?;
    let pid: u32 = fs::read_to_string(node.dir().join("pid"))?.trim().parse()?;
    drop(ui);
    wait::until_true(wait::SOON, "the end of the command", || !fs::exists(format!("/proc/{pid}")).unwrap_or(true))
}

fn without_a_terminal_there_is_no_screen(node: &mut TestNode) -> Result<()> {
    let piped = node.agent.cli(&["ui"])?;
    ensure!(piped.code == Some(2) && piped.stderr.contains("limpet ui needs a terminal"), "{piped:?}");
    let mut dumb = screen(node, "dumb")?;
    dumb.wait_for("TERM=dumb cannot")?;
    dumb.wait_for("left: 2")?;
    let mut alone = screen(node, "vt220")?;
    alone.wait_for("limpet is not running")?;
    alone.wait_for("left: 3")
}
