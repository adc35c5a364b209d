//! Runs a program of the node: CNI plugins, credential providers, mount tools. It gets standard input, bounded output
//! and a deadline.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use crate::blocking::{self, DEADLINE};

/// The most bytes of a result; more is an error.
const MAX_STDOUT: u64 = 1 << 20;

/// The most bytes of a program's stderr that are kept; the rest is read and dropped.
const MAX_STDERR: u64 = 16 << 10;

/// The usual size of a result in bytes.
const INITIAL_CAPACITY: usize = 1 << 10;

/// A program's exit status and output.
#[derive(Debug)]
pub struct Output {
    /// Whether it exited with 0.
    pub success: bool,
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    /// The beginning of its stderr.
    pub stderr: Vec<u8>,
}

/// The executable `name`, from the first directory that has it.
///
/// # Errors
///
/// A directory's file system does not respond.
pub(crate) async fn find(name: &str, dirs: &[PathBuf]) -> io::Result<Option<PathBuf>> {
    let paths: Vec<PathBuf> = dirs.iter().map(|dir| dir.join(name)).collect();
    let Some(first) = paths.first().cloned() else { return Ok(None) };
    blocking::run(first, DEADLINE, move |progress| {
        paths.into_iter().find(|path| {
            progress.at(path);
            path.is_file()
        })
    })
    .await
}

/// The variables of the agent's environment that programs get: where to find programs and certificates, which proxy
/// to use, and their language and time zone.
const PASSED_ON: [&str; 17] = [
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "NO_PROXY",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "LD_LIBRARY_PATH",
    "XTABLES_LIBDIR",
    "XTABLES_LOCKFILE",
];

/// Variables that systemd sets for a service: with some of them a program could act as the agent.
const OF_THE_SERVICE: [&str; 12] = [
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_FDNAMES",
    "LISTEN_PID",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
    "CREDENTIALS_DIRECTORY",
    "FDSTORE",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "MAINPID",
    "MEMORY_PRESSURE_WATCH",
];

/// Whether every program gets the variable.
fn is_passed_on(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    name.starts_with("LC_") || PASSED_ON.iter().any(|known| known.eq_ignore_ascii_case(name))
}

/// The agent's environment without the service's own variables, for programs that are configured by it.
pub fn whole_environment() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| OF_THE_SERVICE.iter().all(|of_service| name != of_service))
}

/// Removes all variables except those that the command sets itself and those that every program gets.
fn narrow_environment(command: &mut std::process::Command) {
    let set: Vec<OsString> = command.get_envs().map(|(name, _)| name.to_owned()).collect();
    let others = std::env::vars_os().map(|(name, _)| name).filter(|name| !set.contains(name) && !is_passed_on(name));
    others.for_each(|name| _ = command.env_remove(name));
}

/// Runs `command` with `input` on its standard input, in its own process group. It gets only a few variables of the
/// agent's environment; plugins need `PATH`. After `deadline` it is killed with all its child processes.
///
/// # Errors
///
/// The program could not be run, printed more than 1 MiB, or took too long (`TimedOut`).
pub async fn run(mut command: Command, input: &[u8], deadline: Duration) -> io::Result<Output> {
    narrow_environment(command.as_std_mut());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).kill_on_drop(true);
    let program = PathBuf::from(command.as_std().get_program());
    // Returns once the executable was read from its file system.
    let mut child = blocking::run(program, DEADLINE, move |_| command.spawn()).await??;
    match tokio::time::timeout(deadline, talk(&mut child, input)).await {
        Ok(result) => result,
        Err(_) => {
            kill_group(&child);
            // A process that waits for a device or a server cannot be killed before that responds, so it is left to
            // end by itself.
            let _ = tokio::time::timeout(DEADLINE, child.wait()).await;
            Err(io::Error::from(io::ErrorKind::TimedOut))
        }
    }
}

async fn talk(child: &mut Child, input: &[u8]) -> io::Result<Output> {
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            // A plugin may exit without reading everything. Its exit status is more useful than a broken pipe.
            let _ = stdin.write_all(input).await;
        }
    };
    let ((), stdout, stderr) = tokio::join!(write, read(stdout, MAX_STDOUT, false), read(stderr, MAX_STDERR, true));
    let status = child.wait().await?;
    Ok(Output { success: status.success(), code: status.code(), stdout: stdout?, stderr: stderr? })
}

/// Reads up to `limit` bytes. The rest is dropped, or an error.
async fn read(pipe: Option<impl AsyncRead + Unpin>, limit: u64, drop_rest: bool) -> io::Result<Vec<u8>> {
    let Some(mut pipe) = pipe else { return Ok(Vec::new()) };
    // Most programs print little. A buffer that grows would leave copies of a key in freed memory.
    let mut bytes = Vec::with_capacity(INITIAL_CAPACITY);
    (&mut pipe).take(limit).read_to_end(&mut bytes).await?;
    let rest = tokio::io::copy(&mut pipe, &mut tokio::io::sink()).await?;
    if rest > 0 && !drop_rest {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("it printed more than {limit} bytes")));
    }
    Ok(bytes)
}

fn kill_group(child: &Child) {
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // If the plugin has just exited, no process is left to kill.
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_directory_wins() {
        let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let paths: Vec<_> = dirs.iter().map(|dir| dir.path().to_owned()).collect();
        assert_eq!(find("bridge", &paths).await.unwrap(), None);
        std::fs::write(paths[1].join("bridge"), "").unwrap();
        assert_eq!(find("bridge", &paths).await.unwrap(), Some(paths[1].join("bridge")));
        std::fs::write(paths[0].join("bridge"), "").unwrap();
        assert_eq!(find("bridge", &paths).await.unwrap(), Some(paths[0].join("bridge")));
    }

    const LONG: Duration = Duration::from_secs(60);

    async fn sh(script: &str, deadline: Duration) -> io::Result<Output> {
        // A shell reads its script from standard input, as a plugin its configuration.
        let mut command = Command::new("/bin/sh");
        command.env("CNI_COMMAND", "ADD");
        run(command, script.as_bytes(), deadline).await
    }

    #[tokio::test]
    async fn input_output_and_status() {
        let output = sh("echo $CNI_COMMAND; echo log >&2; exit 3", LONG).await.unwrap();
        assert!(!output.success && output.code == Some(3));
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"ADD\n"[..], &b"log\n"[..]));
    }

    #[tokio::test]
    async fn a_program_gets_little_of_the_environment() {
        // cargo sets this variable for the test's process, as an operator may set a token for the agent.
        assert!(std::env::var_os("CARGO_MANIFEST_DIR").is_some());
        let output = sh("echo ${CARGO_MANIFEST_DIR-none} $CNI_COMMAND ${PATH:+path}", LONG).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "none ADD path\n");
        let mut command = Command::new("/bin/sh");
        command.envs(whole_environment());
        let output = run(command, b"echo ${CARGO_MANIFEST_DIR:+set}", LONG).await.unwrap();
        assert_eq!(output.stdout, b"set\n");
        for (name, passed) in
            [("PATH", true), ("https_proxy", true), ("LC_TIME", true), ("NOTIFY_SOCKET", false), ("TOKEN", false)]
        {
            assert_eq!(is_passed_on(OsStr::new(name)), passed, "{name}");
        }
    }

    #[tokio::test]
    async fn too_much_output_is_an_error_and_too_much_log_is_not() {
        let error = sh("head -c 1048577 /dev/zero", LONG).await.unwrap_err();
        assert_eq!(error.to_string(), "it printed more than 1048576 bytes");
        let output = sh("head -c 1048577 /dev/zero >&2; echo fine", LONG).await.unwrap();
        assert_eq!(output.stdout, b"fine\n");
        assert_eq!(output.stderr.len() as u64, MAX_STDERR);
    }

    #[tokio::test]
    async fn a_plugin_that_hangs_is_killed_with_its_children() {
        // The plugin's child holds the pipes open, so only killing the group ends the wait.
        let error = sh("sleep 1000 & wait", Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
