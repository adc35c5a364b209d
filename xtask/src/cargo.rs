//! cargo, as the tasks call it: the one that runs this task, in the workspace, its output seen.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};

use anyhow::{Context as _, Result, bail};
use limpet_tests::agent::workspace_dir;

/// `cargo ARGS…` in the workspace, not started.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command.args(args).current_dir(workspace_dir());
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
