//! cargo as the tasks call it: the cargo that runs this task, in the workspace, with visible output.

use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};
use limpet_tests::agent;

/// `cargo ARGS…` in the workspace, not started.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = agent::cargo();
    command.args(args);
    command
}

/// The directory of cargo's results.
pub(crate) fn target_dir() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| agent::workspace_dir().join("target"), PathBuf::from)
}

/// Runs a command, whose output is seen, to its end.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command.status().with_context(|| format!("{command:?}"))
}

/// Runs a command; any failure is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{command:?}: {status}");
    }
    Ok(())
}

/// A program that cargo has built.
#[derive(Debug)]
pub(crate) struct Executable {
    /// The target's name in its `Cargo.toml`.
    pub(crate) name: String,
    pub(crate) path: PathBuf,
    /// The file with which its source begins.
    pub(crate) source: PathBuf,
    /// The kind of its target: `lib`, `bin` or `test`, among others.
    pub(crate) kind: String,
    pub(crate) is_test: bool,
}

/// Runs a build and returns the artifacts that it made or found up to date.
pub(crate) fn executables(command: &mut Command) -> Result<Vec<Executable>> {
    executables_linked(command, &[])
}

/// As [`executables`], by `cargo rustc`, with flags for the last step alone.
fn executables_linked(command: &mut Command, flags: &[&str]) -> Result<Vec<Executable>> {
    command.arg("--message-format=json");
    if !flags.is_empty() {
        command.arg("--").args(flags);
    }
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.with_context(|| format!("{command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}", output.status);
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs = messages.lines().filter_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        let (target, path) = (&message["target"], text(&message["executable"])?.into());
        Some(Executable {
            name: text(&target["name"])?,
            path,
            source: text(&target["src_path"])?.into(),
            kind: text(&target["kind"][0])?,
            is_test: message["profile"]["test"] == true,
        })
    });
    Ok(programs.collect())
}

/// Runs a build of one target and returns the path of its executable.
pub(crate) fn executable(command: &mut Command, name: &str) -> Result<PathBuf> {
    executable_linked(command, name, &[])
}

/// As [`executable`], by `cargo rustc`, with flags for the last step alone.
pub(crate) fn executable_linked(command: &mut Command, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let executable = executables_linked(command, flags)?.into_iter().find(|target| target.name == name);
    Ok(executable.with_context(|| format!("{command:?} reports no executable of {name}"))?.path)
}

/// Sets and removes for `other` the environment variables that are set and removed for `command`.
pub(crate) fn set_environment_of(command: &Command, other: &mut Command) {
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
}

/// The same command in its own mount namespace, which does not see mounts and unmounts of others.
pub(crate) fn in_own_mount_namespace(command: &Command) -> Command {
    let mut wrapped = Command::new("unshare");
    wrapped.arg("--mount").arg(command.get_program()).args(command.get_args());
    set_environment_of(command, &mut wrapped);
    if let Some(dir) = command.get_current_dir() {
        wrapped.current_dir(dir);
    }
    wrapped
}
