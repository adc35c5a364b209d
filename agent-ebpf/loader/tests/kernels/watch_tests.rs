//! The unit tests of `limpet-watch`, each a case: inotify, fanotify and BPF programs, and the fallback when one fails.
//!
//! Each runs in a process of its own, so that none passes, fails or is skipped without being counted.

use std::process::{Command, Output};

use crate::{CaseResult, machine, to_text};

const PROGRAM: &str = "/bin/watch-tests";
/// How a test reports that the machine lacks something (`limpet_tests::need`).
const SKIPPED: &str = "skipped: ";

/// The names of the tests.
pub(crate) fn names() -> Result<Vec<String>, String> {
    let installed = Command::new("/bin/busybox").args(["--install", "-s", "/bin"]).status().map_err(to_text)?;
    if !installed.success() {
        return Err(format!("busybox: {installed}"));
    }
    let listed = run(&["--list", "--format=terse"])?;
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: Vec<_> = text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect();
    if names.is_empty() { Err(format!("no test is listed: {}", output_of(&listed))) } else { Ok(names) }
}

/// Runs one of them.
pub(crate) fn test(name: &str) -> CaseResult {
    let ended = run(&[name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])?;
    let text = output_of(&ended);
    // Figures, for the reader of the console.
    text.lines().filter(|line| line.contains(" known")).for_each(|line| println!("  {line}"));
    if !ended.status.success() || !text.contains("test result: ok. 1 passed;") {
        return Err(format!("{}\n{text}", ended.status));
    }
    let skipped = text.lines().find_map(|line| Some(line.split_once(SKIPPED)?.1.to_owned()));
    Ok(skipped)
}

fn run(arguments: &[&str]) -> Result<Output, String> {
    let mut tests = Command::new(PROGRAM);
    tests.args(arguments).env("PATH", "/bin").env("TMPDIR", machine::directory());
    // Its limits are for machines that are not emulated.
    tests.env("LIMPET_TEST_PATIENCE", "4").output().map_err(to_text)
}

fn output_of(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}
