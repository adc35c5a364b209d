//! Crash test: kills the sources and their store at random times while everything changes. After a restart, the state
//! must match a simple model: every acknowledged push, every file, the URL's list, and without these the last good
//! manifests.
//!
//! The killed process runs this test's own executable. `LIMPET_SEED` repeats a run, `LIMPET_ROUNDS` makes it longer.

#![allow(clippy::unwrap_used, clippy::expect_used, missing_docs)]

#[path = "killed/child.rs"]
mod child;
#[path = "killed/model.rs"]
mod model;
#[path = "killed/web.rs"]
mod web;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};
use model::{Dice, Model, State};
use web::Web;

const ROUNDS: u64 = 200;

fn main() -> ExitCode {
    if let Some(dir) = std::env::var_os(child::DIRECTORY) {
        child::run(Path::new(&dir));
        return ExitCode::SUCCESS;
    }
    let trial = Trial::test("nothing_is_lost_however_often_the_agent_is_killed", || {
        rounds();
        Ok(())
    });
    libtest_mimic::run(&Arguments::from_args(), vec![trial]).exit_code()
}

/// The process under test.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// Starts it and returns the pushed state that it reports.
    fn start(dir: &Path, port: u16) -> (Self, State) {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(child::DIRECTORY, dir).env(child::PORT, port.to_string());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut process = Self { child, input, output };
        let pushed = serde_json::from_str(&process.read()).unwrap();
        (process, pushed)
    }

    fn read(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn send(&mut self, command: &str) {
        writeln!(self.input, "{command}").unwrap();
        self.input.flush().unwrap();
    }

    fn ask(&mut self, command: &str) -> String {
        self.send(command);
        self.read()
    }

    /// Waits until the desired state matches the model.
    fn reaches(&mut self, wanted: &State, why: &str) {
        let wanted = serde_json::to_string(wanted).unwrap();
        let answer = self.ask(&format!("until {wanted}"));
        assert_eq!(answer, "reached", "{why}: wanted {wanted}");
    }

    fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it as SIGTERM stops the agent: everything accepted is on disk then.
    fn stop(mut self) {
        assert_eq!(self.ask("stop"), "stopped");
        self.child.wait().unwrap();
    }
}

fn rounds() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let seed = number("LIMPET_SEED").unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        u64::from(now.subsec_nanos()) ^ now.as_secs()
    });
    println!("LIMPET_SEED={seed}");
    let root = tempfile::tempdir().unwrap();
    let manifests = root.path().join("manifests");
    std::fs::create_dir(&manifests).unwrap();
    let mut dice = Dice(seed);
    let mut model = Model::new(manifests);
    let web = Web::start(model.list());
    for round in 0..number("LIMPET_ROUNDS").unwrap_or(ROUNDS) {
        let (mut process, pushed) = Process::start(root.path(), web.port());
        model.settle(&pushed, round);
        for _ in 0..dice.below(6) {
            change(&mut model, &mut dice, &mut process, &web);
        }
        if round % 10 == 9 {
            model.repair();
            model.mark();
            web.serve(model.list());
            process.reaches(&model.desired(), &format!("round {round}"));
        }
        if round % 20 == 19 {
            process.stop();
            without_anything(&model, root.path(), round);
            continue;
        }
        // In the middle of a push, or of what earlier changes have started.
        if dice.below(2) == 0 {
            let push = model.push(&mut dice);
            process.send(&push.command);
            model.pending = Some(push);
        }
        std::thread::sleep(Duration::from_micros(dice.below(5_000)));
        process.kill();
    }
}

/// Without server and directory: the state is restored from the last good manifests.
fn without_anything(model: &Model, root: &Path, round: u64) {
    let away = root.join("away");
    std::fs::rename(&model.manifests, &away).unwrap();
    // No process listens on port 1.
    let (mut process, pushed) = Process::start(root, 1);
    assert_eq!(pushed, model.pushed, "round {round}, without anything");
    process.reaches(&model.desired(), &format!("round {round}, without anything"));
    process.kill();
    std::fs::rename(&away, &model.manifests).unwrap();
}

fn change(model: &mut Model, dice: &mut Dice, process: &mut Process, web: &Web) {
    match dice.below(6) {
        0 | 1 => model.change_file(dice),
        2 => {
            model.change_list(dice);
            web.serve(model.list());
        }
        3 => web.serve(["", "<html>", "a: b: c", "apiVersion: v1\nkind: Pod\n"][dice.index(4)].to_owned()),
        _ => {
            let push = model.push(dice);
            let answer = process.ask(&push.command);
            if answer != "refused" {
                model.pushed = push.after;
            }
        }
    }
}
