//! The end-to-end suites, of which several run at a time, because they mostly wait for graces, pauses and probes. Each
//! prints what `cargo test` would show of it once it has finished; the errors of failed cases are repeated at the end
//! of the run.

mod failures;

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::iter;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, ensure};
use limpet_tests::agent::workspace_dir;
use limpet_tests::wait;

use crate::cargo::{self, Executable};
use crate::test_kernels;

/// The suites that take longest. They start first, so that none is left for the end.
const LONG_SUITES: [&str; 4] = ["csi", "faults", "api_pods", "leaks"];

/// The suite that emulates machines.
const EMULATED_SUITE: &str = "vm";
/// Multiplies the limits of its waits: an emulated machine beside a suite may take many times as long as alone.
const EMULATED_PATIENCE: (&str, &str) = (wait::PATIENCE_VARIABLE, "3");

/// The suite that measures an idle agent, which runs alone: each mount on the machine wakes an agent to check whether
/// its manifests were mounted over.
const IDLE_AGENT_SUITE: &str = "leaks";

/// What a lane takes next.
enum Job {
    /// The BPF programs in stock kernels.
    Kernels,
    Suite(Executable),
}

/// Runs the suites of package limpet-tests, with the variables that `environment` has. Fails with the names of those
/// that failed and the errors of their cases.
///
/// Two run at a time. One lane begins with the emulated machines, one after the other: two at once, or one beside two
/// suites, are so slow on two cores that what they wait for times out.
pub(crate) fn run(mut suites: Vec<Executable>, environment: &Command) -> Result<()> {
    let place = |name: &str| LONG_SUITES.iter().position(|first| *first == name).unwrap_or(LONG_SUITES.len());
    suites.sort_by_key(|suite| place(&suite.name));
    let (emulated, suites): (Vec<_>, Vec<_>) = suites.into_iter().partition(|suite| suite.name == EMULATED_SUITE);
    let emulated = [Job::Kernels].into_iter().chain(emulated.into_iter().map(Job::Suite));
    let suites = Mutex::new(suites.into_iter().map(Job::Suite));
    let next = || suites.lock().unwrap_or_else(PoisonError::into_inner).next();
    let failed = Mutex::new(Vec::new());
    let run = |job: Job| {
        if let Err(error) = job.run(environment) {
            eprintln!("error: {}: {error:#}", job.name());
            let failure = (job.name().to_owned(), format!("{}: {error:#}", job.name()));
            failed.lock().unwrap_or_else(PoisonError::into_inner).push(failure);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| emulated.chain(iter::from_fn(next)).for_each(run));
        scope.spawn(|| iter::from_fn(next).for_each(run));
    });
    let (failed, errors): (Vec<_>, Vec<_>) = failed.into_inner().unwrap_or_default().into_iter().unzip();
    ensure!(failed.is_empty(), "failed: {}\n{}", failed.join(", "), errors.join("\n"));
    Ok(())
}

/// The suites, and the arguments by which `cargo test` runs all other tests.
pub(crate) fn all() -> Result<(Vec<Executable>, Vec<String>)> {
    // They are built as every test run builds them: for their package alone they would be compiled once more.
    let mut executables = cargo::executables(&mut cargo::command(&["test", "--workspace", "--tests", "--no-run"]))?;
    executables.retain(|executable| executable.is_test);
    let package = workspace_dir().join("tests");
    let is_suite = |executable: &Executable| executable.kind == "test" && executable.source.starts_with(&package);
    let (suites, others): (Vec<_>, Vec<_>) = executables.into_iter().partition(is_suite);
    let mut arguments: Vec<String> = ["--workspace", "--no-fail-fast", "--lib"].map(str::to_owned).into();
    // `--bins` would have cargo run those as well that are not to be tested.
    for executable in others.iter().filter(|executable| ["bin", "test"].contains(&executable.kind.as_str())) {
        arguments.extend([format!("--{}", executable.kind), executable.name.clone()]);
    }
    Ok((suites, arguments))
}

impl Job {
    fn name(&self) -> &str {
        match self {
            Self::Kernels => "test-kernels",
            Self::Suite(suite) => &suite.name,
        }
    }

    fn run(&self, environment: &Command) -> Result<()> {
        match self {
            Self::Kernels => test_kernels::everyday(),
            Self::Suite(suite) => run_suite(suite, environment),
        }
    }
}

/// Runs a suite as cargo does, and prints its output as a whole.
fn run_suite(suite: &Executable, environment: &Command) -> Result<()> {
    let log = suite.path.with_extension("log");
    let output = File::create(&log).with_context(|| log.display().to_string())?;
    let package = workspace_dir().join("tests");
    let mut command = Command::new(&suite.path);
    cargo::set_environment_of(environment, &mut command);
    command.current_dir(&package).env("CARGO_MANIFEST_DIR", &package);
    if suite.name == EMULATED_SUITE && std::env::var_os(EMULATED_PATIENCE.0).is_none() {
        command.env(EMULATED_PATIENCE.0, EMULATED_PATIENCE.1);
    }
    if suite.name == IDLE_AGENT_SUITE {
        command = cargo::in_own_mount_namespace(&command);
    }
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let begun = Instant::now();
    let status = command.status().with_context(|| suite.path.display().to_string())?;
    let seconds = begun.elapsed().as_secs();
    let output = fs::read(&log).with_context(|| log.display().to_string())?;
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "     Running {} ({}), {seconds} s", suite.name, suite.path.display())?;
    stdout.write_all(&output)?;
    let cases = failures::failed_cases(&String::from_utf8_lossy(&output)).join("\n");
    ensure!(status.success(), "{status}, to rerun pass `-p limpet-tests --test {}`\n{cases}", suite.name);
    Ok(())
}
