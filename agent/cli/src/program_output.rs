//! Runs another program for its output.

use std::ffi::OsStr;
use std::process::Stdio;
use std::time::Duration;

/// The deadline of a program. A slow node may need several seconds to read it from its disk.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A program's output if it succeeds in time; `None` otherwise.
pub async fn output_of(program: impl AsRef<OsStr>, arguments: &[&str]) -> Option<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(TIMEOUT, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}
