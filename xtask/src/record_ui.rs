//! `cargo xtask record-ui`: the real `limpet ui` on a real agent, key by key, as an animated SVG for the README.

use std::fmt::Write as _;
use std::fs;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::workspace_dir;
use limpet_tests::manifest::{IDLE, pod, shell, with};
use limpet_tests::node::{NodeOptions, container_id};
use limpet_tests::terminal::{Cell, Color, Screen, Terminal};
use limpet_tests::{TestNode, process, sweep, tools, wait};
use rustix::process::Signal;
use serde_json::json;

use crate::setup;

/// The columns and lines of the screen.
const SIZE: (u16, u16) = (100, 20);
/// The size of a character in pixels.
const CHARACTER_SIZE: (u16, u16) = (8, 17);
const MARGIN: u16 = 10;
/// How long each screen is shown.
const SECONDS_PER_SCREEN: usize = 4;

/// Writes `docs/ui.svg`.
pub(crate) fn run() -> Result<()> {
    wait::end_on_signal();
    setup::for_major(None)?;
    ensure!(tools::is_root(), "containers need root");
    sweep::sweep();
    let node = TestNode::boot(&NodeOptions::default())?;
    let screens = record(&node).map_err(|error| error.context(node.evidence()))?;
    node.finish()?;
    let path = workspace_dir().join("docs/ui.svg");
    let picture = svg(&screens)?;
    fs::write(&path, &picture).with_context(|| format!("{}", path.display()))?;
    println!("{}: {} screens, {} bytes", path.display(), screens.len(), picture.len());
    Ok(())
}

/// The screens, each with the key that led to it.
fn record(node: &TestNode) -> Result<Vec<(&'static str, Screen)>> {
    let say = |what: &str| format!("for i in 1 2 3 4 5; do echo \"{what} $i of 5\"; usleep 200000; done; {IDLE}");
    let camera = with(shell("main", ""), json!({ "image": "127.0.0.1:1/camera:2" }));
    let gateway = [shell("proxy", &say("request")), shell("clock", &say("tick"))];
    node.apply(&pod("gateway", json!({ "terminationGracePeriodSeconds": 1, "containers": gateway })))?;
    node.apply(&pod("modbus", json!({ "containers": [shell("main", &say("register"))] })))?;
    node.apply(&pod("camera", json!({ "containers": [camera] })))?;
    node.wait_running("gateway")?;
    node.wait_running("modbus")?;
    let mut ui = start(node)?;
    let sees = |ui: &Terminal, text: &'static str| ui.wait_screen(SIZE, text, |screen| screen.contains(text));
    let mut screens = vec![("limpet ui", sees(&ui, "ImagePullBackOff")?)];
    let id = container_id(&node.wait_running("modbus")?, "main")?;
    let task = node.containerd.tasks()?.into_iter().find(|task| task.id == id);
    process::signal_pid(task.context("modbus has no process")?.pid, Signal::KILL);
    let restarted = ui.wait_screen(SIZE, "a restart", |screen| {
        screen.lines().any(|line| line.contains("modbus") && line.contains("1/1") && line.contains("ago)"))
    })?;
    screens.push(("the process of modbus is killed: it comes again", restarted));
    for (keys, text, what) in [
        ("j\r", "Containers:", "Enter: what limpet describe says of the selected pod"),
        ("l", "request 5 of 5", "l: its log, followed"),
        ("qqe", "Started", "e: the node's events"),
        ("qu", "MEMORY(bytes)", "u: what the node and its pods use, and what is short"),
    ] {
        ui.write(keys)?;
        let screen = ui.wait_screen(SIZE, text, |screen| screen.contains(text) && !screen.contains("<unknown>"))?;
        screens.push((what, screen));
    }
    ui.write("qq")?;
    ui.wait_end()?;
    Ok(screens)
}

fn start(node: &TestNode) -> Result<Terminal> {
    let ui = node.agent.cli_command(&["ui"])?;
    let words = std::iter::once(ui.get_program()).chain(ui.get_args());
    let line: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("stty rows {} cols {}; exec {}", SIZE.1, SIZE.0, line.join(" ")));
    shell.env("TERM", "xterm").env("LANG", "C.UTF-8").env("NO_COLOR", "");
    Terminal::on_terminal(&shell, &node.dir().join("screen"))
}

fn svg(screens: &[(&str, Screen)]) -> Result<String> {
    let (width, height) = (SIZE.0 * CHARACTER_SIZE.0 + 2 * MARGIN, (SIZE.1 + 2) * CHARACTER_SIZE.1 + 2 * MARGIN);
    let (all, share) = (screens.len() * SECONDS_PER_SCREEN, 100.0 / screens.len() as f64);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\">\n\
         <!-- Recorded by: cargo xtask record-ui -->\n<style>text{{font:13px ui-monospace,Menlo,Consolas,monospace;\
         fill:#d4d4d4;white-space:pre}}.g{{fill:#5fbf6f}}.y{{fill:#d9b13b}}.r{{fill:#ef6b63}}.d{{fill:#8b8b8b}}\
         .s{{visibility:hidden;animation:s {all}s step-end infinite}}\
         @keyframes s{{0%{{visibility:visible}}{share:.2}%{{visibility:hidden}}}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"6\" fill=\"#1b1b1b\"/>\n"
    );
    for (number, (what, screen)) in screens.iter().enumerate() {
        // Where nothing is animated, the first screen is shown.
        let first = if number == 0 { "visibility:visible;" } else { "" };
        writeln!(svg, "<g class=\"s\" style=\"{first}animation-delay:{}s\">", number * SECONDS_PER_SCREEN)?;
        for y in 0..SIZE.1 {
            let length = length(screen, y);
            if length > 0 {
                text(&mut svg, y, &line(screen, y), length)?;
            }
        }
        text(&mut svg, SIZE.1 + 1, &format!("<tspan class=\"d\">{}</tspan>", escaped(what)), what.chars().count())?;
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

/// Writes one line. Its length is given, so that columns align in any font.
fn text(svg: &mut String, y: u16, line: &str, length: usize) -> Result<()> {
    let (baseline, length) = (MARGIN + y * CHARACTER_SIZE.1 + 13, length * usize::from(CHARACTER_SIZE.0));
    writeln!(
        svg,
        "<text x=\"{MARGIN}\" y=\"{baseline}\" textLength=\"{length}\" xml:space=\"preserve\">{line}</text>"
    )?;
    Ok(())
}

/// How many columns of the line have text.
fn length(screen: &Screen, y: u16) -> usize {
    let written = |x: &u16| screen.cell(y, *x).is_some_and(|cell| !cell.contents().trim().is_empty());
    (0..SIZE.0).rev().find(written).map_or(0, |last| usize::from(last) + 1)
}

/// The line's text, its colours as classes.
fn line(screen: &Screen, y: u16) -> String {
    let cells = (0..length(screen, y)).filter_map(|x| screen.cell(y, u16::try_from(x).ok()?));
    let (mut line, mut last) = (String::new(), "");
    for cell in cells {
        let (class, shown) = (class(cell), if cell.contents().is_empty() { " " } else { cell.contents() });
        if class != last && shown != " " {
            line.push_str(if last.is_empty() { "" } else { "</tspan>" });
            if !class.is_empty() {
                line.push_str(&format!("<tspan class=\"{class}\">"));
            }
            last = class;
        }
        line.push_str(&escaped(shown));
    }
    line.push_str(if last.is_empty() { "" } else { "</tspan>" });
    line
}

fn class(cell: &Cell) -> &'static str {
    match cell.fgcolor() {
        Color::Idx(1) => "r",
        Color::Idx(2) => "g",
        Color::Idx(3) => "y",
        _ if cell.dim() => "d",
        _ => "",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
