//! cargo, as the tasks call it: the one that runs this task, in the workspace, its output seen.

use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, bail};
use limpet_tests::agent;

/// `cargo ARGS…` in the workspace, not started.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = agent::cargo();
    command.args(args);
    command
}

/// Runs it to its end.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("{command:?}"))
}

/// Runs it; any failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}
