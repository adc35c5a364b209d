//! Finds and follows the logger of a running container, and replaces it when it is killed.
//!
//! A pipe without a reader kills its writer (SIGPIPE), and loses its content. The agent therefore also holds the
//! reading ends open, and never reads: a container whose logger was killed only blocks, once the pipe is full, until
//! the next logger reads on. While the agent is not running, nothing holds them.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use tokio::process::Command;

use crate::client::NAMESPACE;
use crate::container::Containers;
use crate::container::runtime::SHIM_PROGRAM;
use crate::error::RuntimeError;
use crate::logger_scan::LoggerScan;
use limpet_host::blocking::{self, DEADLINE};
use limpet_host::process;
use limpet_log::config;
use limpet_log::writer::Invocation;
use limpet_model::container::ContainerId;
use limpet_model::process::{ProcessHandle, container_in_cgroups};

/// A logger that ran for less time has failed rather than been killed, so the next one waits.
const SHORT_LIFE: Duration = Duration::from_secs(10);
/// The first such pause; it doubles each time.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
/// The longest such pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The pause before a failing containerd is asked again for the configuration of a logger that was gone before the
/// agent saw it.
const ASK_AGAIN: Duration = Duration::from_secs(10);

/// A container's logger, as far as it is known, and the container's output.
#[derive(Debug)]
struct Logger {
    /// The reading ends of stdout and stderr; `None` if not found.
    pipes: [Option<OwnedFd>; 2],
    /// Its process and configuration; `None` if it was already gone.
    running: Option<(u32, Arc<dyn ProcessHandle>, OsString)>,
}

impl Containers {
    /// Follows the logger of container `id`, whose first process is `pid`, while it is polled, and replaces it with
    /// `executable` when it is killed. Each replacement is passed to `report`. Returns when the container's output
    /// has ended, or its logger cannot be followed.
    pub async fn keep_logger(
        &self,
        id: &ContainerId,
        pid: u32,
        executable: &Path,
        report: &(dyn Fn(String) + Send + Sync),
    ) {
        let (subject, container, scan) = (PathBuf::from(format!("/proc/{pid}")), id.clone(), Arc::clone(&self.loggers));
        let logger = blocking::run(subject, DEADLINE, move |_| find(pid, &container, &scan));
        let Ok(Some(logger)) = logger.await else { return };
        let (value, mut ended) = match logger.running {
            Some((pid, handle, value)) => {
                // Its end cannot be awaited, as on a kernel without pidfds.
                if handle.ended().await.is_err() {
                    return;
                }
                (value, format!("its logger (process {pid}) was killed"))
            }
            None => (self.logger_value(id).await, "its logger was killed while no agent followed it".to_owned()),
        };
        if logger.pipes.iter().all(Option::is_none) {
            report(format!("{ended}: what it writes is lost until it is restarted"));
            return;
        }
        let (mut pause, mut reported) = (Duration::ZERO, false);
        while !is_over(&logger.pipes) {
            tokio::time::sleep(pause).await;
            let began = Instant::now();
            let invocation = Invocation { value: value.clone(), replaces: true };
            match start(&logger.pipes, invocation, id, executable).await {
                Ok((pid, handle)) => {
                    report(format!(
                        "{ended}; process {pid} continues its log, where the last lines before may be missing"
                    ));
                    reported = false;
                    let Some(Ok(())) = (match handle {
                        Some(handle) => Some(handle.ended().await),
                        None => None,
                    }) else {
                        return;
                    };
                    ended = format!("its logger (process {pid}) was killed");
                }
                Err(error) if !std::mem::replace(&mut reported, true) => {
                    report(format!("{ended}, and cannot be replaced: start {}: {error}", executable.display()));
                }
                Err(_) => {}
            }
            pause = match began.elapsed() < SHORT_LIFE {
                true => (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE),
                false => Duration::ZERO,
            };
        }
    }

    /// The logger's configuration from containerd's record of the task. Waits while containerd is away.
    async fn logger_value(&self, id: &ContainerId) -> OsString {
        let mut connections = self.client.connections();
        loop {
            match self.stdout_uri(id).await {
                Ok(uri) => match uri.as_deref().and_then(config::value) {
                    Some(value) => return value,
                    // The task is gone, or its output goes elsewhere. The caller learns of its end in another way.
                    None => std::future::pending().await,
                },
                Err(error) => {
                    tracing::debug!(container = %id, %error, "the logger's configuration is not known yet");
                    match error {
                        RuntimeError::Unavailable { .. } => {
                            // This cannot fail, because the client has the sender.
                            let _ = connections.changed().await;
                        }
                        _ => tokio::time::sleep(ASK_AGAIN).await,
                    }
                }
            }
        }
    }
}

/// Whether the pipes have no writer and are empty, which means that the logger has ended by itself.
fn is_over(pipes: &[Option<OwnedFd>; 2]) -> bool {
    pipes.iter().flatten().all(|pipe| {
        let mut polls = [PollFd::new(pipe, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let polled = poll(&mut polls, Some(&at_once));
        polled.is_ok() && polls[0].revents() == PollFlags::HUP
    })
}

/// Starts a logger that reads from `pipes`. It outlives the agent.
async fn start(
    pipes: &[Option<OwnedFd>; 2],
    invocation: Invocation,
    id: &ContainerId,
    executable: &Path,
) -> io::Result<(u32, Option<Arc<dyn ProcessHandle>>)> {
    let input = |pipe: &Option<OwnedFd>| {
        pipe.as_ref().map_or_else(|| Ok(Stdio::null()), |pipe| pipe.try_clone().map(Stdio::from))
    };
    let mut command = Command::new(executable);
    command.args(invocation.arguments()).env_clear();
    command.env("CONTAINER_ID", id.as_str()).env("CONTAINER_NAMESPACE", NAMESPACE);
    command.stdin(input(&pipes[0])?).stdout(input(&pipes[1])?).stderr(Stdio::null()).process_group(0);
    // Returns once the executable was read from its file system.
    let child = blocking::run(executable.to_owned(), DEADLINE, move |_| command.spawn()).await??;
    // tokio reaps the child, although nothing waits for it.
    let pid = child.id().ok_or(io::ErrorKind::NotFound)?;
    Ok((pid, process::open(pid)))
}

/// The logger of container `id`, whose first process is `container`; `None` if that has exited, it has limpet's shim,
/// or the kernel has no pidfds.
fn find(container: u32, id: &ContainerId, scan: &LoggerScan) -> Option<Logger> {
    let shim = process::parent(container)?;
    if is_limpets(shim) {
        // limpet's shim writes the log itself.
        return None;
    }
    // A replacement logger is not a child of the shim.
    let others = std::iter::once_with(|| scan.candidates(id)).flatten();
    let candidates = process::children(shim).into_iter().chain(others);
    for pid in candidates {
        let Some(invocation) = invocation(pid, id) else { continue };
        let handle = process::open(pid)?;
        let pipes = invocation.descriptors().map(|number| open_pipe(pid, u32::from(number)));
        if handle.is_alive() && pipes.iter().any(Option::is_some) {
            return Some(Logger { pipes, running: Some((pid, handle, invocation.value)) });
        }
    }
    let is_containers = process::is_in_container(container, id);
    let pipes =
        [1, 2].map(|number| open_pipe(container, number).filter(|_| is_containers && feeds(shim, container, number)));
    Some(Logger { pipes, running: None })
}

fn is_limpets(shim: u32) -> bool {
    let arguments = std::fs::read(format!("/proc/{shim}/cmdline")).unwrap_or_default();
    let program = arguments.split(|byte| *byte == 0).next().unwrap_or_default();
    Path::new(OsStr::from_bytes(program)).file_name().is_some_and(|name| name == SHIM_PROGRAM)
}

/// How the process `pid` was started, if it was started as the logger of container `id`. A process in a container may
/// claim to be one.
fn invocation(pid: u32, id: &ContainerId) -> Option<Invocation> {
    let read = |file: &str| std::fs::read(format!("/proc/{pid}/{file}"));
    let arguments = read("cmdline").ok()?;
    let arguments = arguments.strip_suffix(b"\0")?.split(|byte| *byte == 0);
    let invocation = Invocation::parse(arguments.skip(1).map(|argument| OsString::from_vec(argument.to_vec())))?;
    let cgroups = String::from_utf8_lossy(&read("cgroup").ok()?).into_owned();
    if container_in_cgroups(&cgroups).is_some() {
        return None;
    }
    let wanted = format!("CONTAINER_ID={id}");
    let environment = read("environ").ok()?;
    environment.split(|byte| *byte == 0).any(|pair| pair == wanted.as_bytes()).then_some(invocation)
}

/// Opens the pipe that the process has as descriptor `number` for reading; `None` if it is not a pipe.
fn open_pipe(pid: u32, number: u32) -> Option<OwnedFd> {
    let path = format!("/proc/{pid}/fd/{number}");
    pipe_name(&path)?;
    rustix::fs::open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok()
}

/// Whether the shim has the writing end of the pipe that the container's process has as descriptor `number`;
/// otherwise the pipe is the container's own.
fn feeds(shim: u32, container: u32, number: u32) -> bool {
    let Some(name) = pipe_name(format!("/proc/{container}/fd/{number}")) else { return false };
    let descriptors = std::fs::read_dir(format!("/proc/{shim}/fd")).into_iter().flatten().flatten();
    let mut same = descriptors.filter(|entry| pipe_name(entry.path()).is_some_and(|other| other == name));
    same.any(|entry| {
        let info = Path::new("/proc").join(shim.to_string()).join("fdinfo").join(entry.file_name());
        is_writable(&std::fs::read_to_string(info).unwrap_or_default())
    })
}

/// Whether a descriptor with this text in `fdinfo` is writable.
fn is_writable(info: &str) -> bool {
    let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::RWMODE.bits() != OFlags::RDONLY.bits())
}

/// `pipe:[<inode>]`; `None` if the descriptor is not a pipe.
fn pipe_name(path: impl AsRef<Path>) -> Option<OsString> {
    let target = std::fs::read_link(path).ok()?.into_os_string();
    OsStr::as_bytes(&target).starts_with(b"pipe:[").then_some(target)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
