//! Tests of the BPF programs in a kernel: on this machine as far as permitted, and as init of an emulated one.
//!
//! `cargo xtask test-kernels` boots this executable in stock kernels and reads its output. On a real machine it runs only
//! the cases that change nothing there. Each case proves the purpose of its programs.

mod act;
mod guard;
mod lifecycle;
mod machine;
mod watch;
mod watch_tests;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use limpet_bpf::{Event, Events, Kernel, Loaded, ProgramState, Purpose, Request};

/// The result of a case: a reason when it was skipped.
type CaseResult = Result<Option<String>, String>;

/// How long an event may take on a busy, emulated machine.
const SOON: Duration = Duration::from_secs(240);

/// A case: its name, whether it needs a machine of its own, and what it does.
struct Case {
    name: &'static str,
    alone: bool,
    run: fn(&Kernel) -> CaseResult,
}

const CASES: [Case; 14] = [
    Case { name: "programs are attached or report why not", alone: false, run: programs_are_attached },
    Case { name: "an exit and its signal are reported", alone: false, run: lifecycle::exits_are_reported },
    Case { name: "of many signals the last is reported", alone: false, run: lifecycle::last_signal_is_reported },
    Case { name: "exits of other processes send no event", alone: false, run: lifecycle::others_are_silent },
    Case { name: "an OOM victim is named", alone: true, run: lifecycle::victims_are_named },
    Case { name: "a writer that exits at once is known", alone: true, run: watch::short_lived_writers },
    Case { name: "each change is reported with its operation", alone: true, run: watch::each_change },
    Case { name: "the guard refuses pods every change", alone: true, run: guard::every_change_is_refused },
    Case { name: "each hook of the guard is needed", alone: true, run: guard::each_hook_is_needed },
    Case { name: "the guard's modes", alone: true, run: guard::modes },
    Case { name: "what is the host's is refused to pods alone", alone: true, run: guard::from_pods },
    Case { name: "a file opened by its handle is refused to pods", alone: true, run: guard::handles },
    Case { name: "attempts that repeat are counted", alone: true, run: guard::repetitions_are_counted },
    Case { name: "the guard outlives the agent", alone: true, run: guard::outlives },
];

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().collect();
    if arguments.get(1).is_some_and(|argument| argument == act::COMMAND) {
        return act::main(&arguments[2..]);
    }
    let alone = std::process::id() == 1;
    if alone {
        // For test-kernels: an earlier panic is the emulator's.
        println!("the first process runs");
    }
    if alone && let Err(error) = machine::set_up() {
        println!("FAILED: the machine was not set up: {error}");
        machine::power_off();
    }
    let failed = run_all(alone);
    if alone {
        machine::power_off();
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// How many cases ended in each way.
#[derive(Default)]
struct Tally {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl Tally {
    /// Runs a case and reports its result.
    fn run(&mut self, name: &str, case: impl FnOnce() -> CaseResult) {
        let start = Instant::now();
        match case() {
            Ok(None) => {
                self.passed += 1;
                println!("test {name} ... ok ({:.1} s)", start.elapsed().as_secs_f64());
            }
            Ok(Some(reason)) => {
                self.skipped += 1;
                println!("test {name} ... skipped: {reason}");
            }
            Err(error) => {
                self.failed += 1;
                println!("test {name} ... FAILED: {error}");
            }
        }
    }
}

/// Runs all cases; the last line always has the same format, and a machine that never prints it has failed.
fn run_all(alone: bool) -> usize {
    let mut tally = Tally::default();
    let obstacle = (!rustix::process::geteuid().is_root()).then(|| "needs root".to_owned());
    let start = Instant::now();
    let kernel = Kernel::read();
    println!("  the kernel's types were read in {:.1} s", start.elapsed().as_secs_f64());
    for case in &CASES {
        tally.run(case.name, || match (&obstacle, case.alone && !alone) {
            (Some(obstacle), _) => Ok(Some(obstacle.clone())),
            (None, true) => Ok(Some("needs a machine of its own: cargo xtask test-kernels".to_owned())),
            (None, false) => (case.run)(&kernel),
        });
    }
    if alone {
        match watch_tests::names() {
            Ok(names) => names.iter().for_each(|name| tally.run(name, || watch_tests::test(name))),
            Err(error) => tally.run("the tests of the watch", || Err(error)),
        }
    }
    println!("kernels: {} passed, {} failed, {} skipped", tally.passed, tally.failed, tally.skipped);
    tally.failed
}

/// Runs `body` where events can be awaited.
fn block_on<T>(body: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(to_text)?;
    Ok(runtime.block_on(body))
}

fn to_text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// The first event that `accept` takes.
async fn event<T>(events: &mut Events, what: &str, accept: impl Fn(Event) -> Option<T>) -> Result<T, String> {
    let matching = async {
        loop {
            let event = events.next().await.map_err(to_text)?;
            if let Some(accepted) = accept(event) {
                return Ok(accepted);
            }
        }
    };
    tokio::time::timeout(SOON, matching).await.map_err(|_| format!("no event within {SOON:?}: {what}"))?
}

fn failures(loaded: &Loaded, purpose: Purpose) -> Vec<&ProgramState> {
    loaded.programs().iter().filter(|state| state.purpose == purpose && state.failure.is_some()).collect()
}

/// Skips, when this kernel refuses the programs for `purpose`; in a machine of its own that is a failure.
fn refused(loaded: &Loaded, purpose: Purpose) -> Result<Option<String>, String> {
    let Some(first) = failures(loaded, purpose).first().copied().cloned() else { return Ok(None) };
    let reason = format!("{} at {}: {}", first.name, first.hook, first.failure.unwrap_or_default());
    if std::process::id() == 1 { Err(reason) } else { Ok(Some(reason)) }
}

fn programs_are_attached(kernel: &Kernel) -> CaseResult {
    let request = Request { lifecycle: true, watch: true, guard: Some(guard::nothing_guarded()) };
    let loaded = kernel.load(&request).map_err(to_text)?;
    let mut failed = 0;
    for state in loaded.programs() {
        let status = state.failure.as_deref().unwrap_or("attached");
        println!("  {} at {}: {status}", state.name, state.hook);
        failed += usize::from(state.failure.is_some());
    }
    if failed > 0 && std::process::id() == 1 {
        return Err(format!("{failed} programs are not attached"));
    }
    let silent = |state: &&ProgramState| state.failure.as_ref().is_some_and(String::is_empty);
    match loaded.programs().iter().find(silent) {
        Some(state) => Err(format!("{} reports no reason", state.name)),
        None => Ok(None),
    }
}
