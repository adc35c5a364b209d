//! Child processes: one-shot commands whose failure contains what they wrote, and long-lived ones in a separate
//! process group, so that a Ctrl-C at the terminal reaches the harness first, which then ends them.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal};

use crate::wait;

/// Runs `program` and returns what it wrote to stdout; an error holds what it wrote to stderr.
pub fn output<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<String> {
    checked(Command::new(program).args(args))
}

/// The same for a prepared command.
pub fn checked(command: &mut Command) -> Result<String> {
    let output = run(command, b"")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    if !output.status.success() {
        let complaint = String::from_utf8_lossy(&output.stderr);
        bail!("{command:?}: {}: {}{}", output.status, said.trim(), complaint.trim());
    }
    Ok(said)
}

/// `program` in the mount and network namespaces of the process `pid`.
pub fn entering(pid: u32, program: &Path) -> Command {
    let mut command = Command::new("nsenter");
    command.args(["--target", &pid.to_string(), "--mount", "--net", "--"]).arg(program);
    command
}

/// Runs `command` to its end with `input` as its stdin, in its own process group.
pub fn run(command: &mut Command, input: &[u8]) -> Result<Output> {
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("{command:?}"))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A command that does not read its input is not a failure.
        stdin.write_all(input).ok();
    }
    child.wait_with_output().with_context(|| format!("{command:?}"))
}

/// A long-lived child that writes to a log file. Dropping it kills it.
#[derive(Debug)]
pub struct Daemon {
    child: Child,
    log: PathBuf,
}

impl Daemon {
    /// Starts `command` with stdout and stderr appended to `log`.
    pub fn start(command: &mut Command, log: &Path) -> Result<Self> {
        let file =
            OpenOptions::new().create(true).append(true).open(log).with_context(|| format!("{}", log.display()))?;
        command.process_group(0).stdin(Stdio::null()).stdout(clone(&file)?).stderr(file);
        let child = command.spawn().with_context(|| format!("{command:?}"))?;
        Ok(Self { child, log: log.to_owned() })
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends `signal`; it is not an error if the process has already ended.
    pub fn signal(&self, signal: Signal) {
        signal_pid(self.child.id(), signal);
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        self.child.try_wait().with_context(|| format!("wait for {}", self.log.display()))
    }

    /// Waits until it has ended.
    pub fn wait(&mut self, limit: Duration) -> Result<ExitStatus> {
        let what = format!("the end of the process that writes {}", self.log.display());
        wait::until(limit, &what, || self.child.try_wait().ok().flatten())
    }

    /// Ends it at once and reaps it.
    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    /// Ends it and all that it has started, except what has a separate process group.
    pub fn kill_group(&mut self) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            rustix::process::kill_process_group(group, Signal::KILL).ok();
        }
        self.child.wait().ok();
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

fn clone(file: &File) -> Result<File> {
    file.try_clone().context("duplicate a log file")
}

/// Sends `signal` to the process `pid`; one that has ended already is no error.
pub fn signal_pid(pid: u32, signal: Signal) {
    if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
        rustix::process::kill_process(pid, signal).ok();
    }
}

/// Whether the process `pid` is there and no zombie.
pub fn is_alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// The children of these processes.
pub fn children(parents: &[u32]) -> Vec<u32> {
    let lists =
        parents.iter().filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

/// The processes, except this one, whose command line or environment contains `text`.
pub fn mentioning(text: &str) -> Vec<u32> {
    let holds = |path: String| {
        let bytes = std::fs::read(path).unwrap_or_default();
        bytes.windows(text.len()).any(|window| window == text.as_bytes())
    };
    std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| *pid != std::process::id())
        .filter(|pid| holds(format!("/proc/{pid}/cmdline")) || holds(format!("/proc/{pid}/environ")))
        .collect()
}

/// The last `lines` lines of `text`.
pub fn tail(text: &str, lines: usize) -> String {
    let all: Vec<_> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_group_ends_with_what_its_first_process_has_started() {
        let log = std::env::temp_dir().join(format!("limpet-group-{}", std::process::id()));
        let mut shell = Daemon::start(Command::new("sh").args(["-c", "sleep 1000 & echo $!; wait"]), &log).unwrap();
        let child = || shell.log().trim().parse::<u32>().ok();
        let child = wait::until(wait::SOON, "the child", child).unwrap();
        assert!(is_alive(child));
        shell.kill_group();
        wait::until_true(wait::SOON, "the child's end", || !is_alive(child)).unwrap();
        std::fs::remove_file(log).unwrap();
    }
}
