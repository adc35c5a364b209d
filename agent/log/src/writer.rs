//! The logger: a small process beside each container that writes its output as a CRI log and rotates it.
//!
//! containerd's shim starts limpet's executable for a `binary://` URI, with the container's stdout and stderr as file
//! descriptors 3 and 4. So logging does not depend on the agent, and no line wakes it. The process lives as long as
//! the container: it must stay small (fixed buffers, one thread, no allocation per line), and it must never exit
//! early, because SIGPIPE kills a process that writes to a pipe without a reader.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use crate::config::{ARGUMENT, WriterConfig};
use crate::container_log::{Buffers, ContainerLog};

/// The third argument if the agent has started the logger.
const REPLACEMENT: &str = "replacement";
/// The process's name (`comm`).
const NAME: &CStr = c"limpet-logger";

/// How a process was started as a logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    pub value: OsString,
    /// Whether the agent has started it to replace one that was killed; otherwise a shim has.
    pub replaces: bool,
}

impl Invocation {
    /// Parses a process's arguments, without its name; `None` if it is not a logger.
    pub fn parse(mut arguments: impl Iterator<Item = OsString>) -> Option<Self> {
        arguments.next().filter(|first| first == ARGUMENT)?;
        let value = arguments.next()?;
        let replaces = match arguments.next() {
            None => false,
            Some(third) if third == REPLACEMENT => true,
            Some(_) => return None,
        };
        arguments.next().is_none().then_some(Self { value, replaces })
    }

    /// The arguments of the process, without its name.
    pub fn arguments(&self) -> impl Iterator<Item = &OsStr> {
        let third = self.replaces.then_some(OsStr::new(REPLACEMENT));
        [OsStr::new(ARGUMENT), &self.value].into_iter().chain(third)
    }

    /// The descriptors of the container's stdout and stderr.
    pub fn descriptors(&self) -> [u8; 2] {
        if self.replaces { [0, 1] } else { [3, 4] }
    }
}

/// How this process was started, if as a logger.
///
/// Call it first in `main`: `if let Some(logger) = writer::invoked() { return writer::main(&logger); }`.
pub fn invoked() -> Option<Invocation> {
    Invocation::parse(std::env::args_os().skip(1))
}

/// Runs the process as a logger until the container's streams end. `end_others` kills the other loggers of the
/// container with this id.
///
/// Reports readiness on descriptor 5, for which the shim waits. Exits with 2 if its value does not come from
/// [`crate::config::uri`], with 1 if no shim has started it.
pub fn main(invocation: &Invocation, end_others: impl FnOnce(&str)) -> ExitCode {
    let Some(config) = WriterConfig::parse(&invocation.value) else {
        eprintln!(
            "limpet logger: expected <max size>:<max files>:<length>:<terminal><path>; it is started by containerd"
        );
        return ExitCode::from(2);
    };
    block_signals();
    // Otherwise killing the agent by name would kill it, too. A failure has no other effect.
    let _ = rustix::thread::set_name(NAME);
    // Otherwise the shim's bundle directory would stay busy.
    let _ = rustix::process::chdir("/");
    // Reopening them returns owned descriptors; the inherited ones stay open unused.
    let [out, err] = invocation.descriptors();
    let streams = inherited(out, OFlags::RDONLY).and_then(|stdout| Ok((stdout, inherited(err, OFlags::RDONLY)?)));
    let Ok((stdout, stderr)) = streams else {
        eprintln!("limpet logger: descriptors {out} and {err} are not pipes; it is started by containerd");
        return ExitCode::FAILURE;
    };
    // runc may not be allowed to do this. Processes that cannot reopen their output by name still have it open.
    for pipe in [&stdout, &stderr] {
        let _ = config.owner.map(|owner| std::os::unix::fs::fchown(pipe, Some(owner), None));
    }
    run(stdout, stderr, config, |contended| {
        // The other logger stems from an earlier attempt to create this container: a shim whose `Tasks.Create` was
        // interrupted holds that logger's pipes open without ever writing to them.
        if contended && let Ok(id) = std::env::var("CONTAINER_ID") {
            end_others(&id);
        }
        if !invocation.replaces
            && let Ok(ready) = inherited(5, OFlags::WRONLY)
        {
            // The logger continues even if the shim does not wait for it.
            let _ = rustix::io::write(&ready, b"1");
        }
    });
    ExitCode::SUCCESS
}

fn inherited(number: u8, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = [b"/proc/self/fd/".as_slice(), &[b'0' + number]].concat();
    rustix::fs::open(path.as_slice(), access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// Blocks signals: the shim sends SIGTERM before the last lines are read, and signals of a terminal or a service must
/// not stop the logger. Rust itself ignores SIGPIPE.
fn block_signals() {
    use nix::sys::signal::{SigSet, Signal};
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE].into_iter().collect();
    // This only fails for an invalid mask.
    let _ = signals.thread_block();
}

/// Writes the output of both streams until both are closed. Calls `ready` once the file is open, with whether another
/// process holds its lock.
pub fn run(stdout: OwnedFd, stderr: OwnedFd, config: WriterConfig, ready: impl FnOnce(bool)) {
    let mut buffers = Buffers::default();
    let mut log = ContainerLog::open(config, [Some(stdout), Some(stderr)]);
    ready(log.is_contended());
    while log.is_open() {
        let readable = wait(&log);
        if log.timeout().is_some() {
            log.catch_up(&mut buffers);
        }
        for (index, readable) in readable.streams.into_iter().enumerate() {
            if readable && !log.read(index, &mut buffers) {
                log.end(index, &mut buffers);
            }
        }
        if readable.listener {
            log.accept();
        }
    }
}

/// What is ready.
struct Readable {
    streams: [bool; 2],
    listener: bool,
}

/// Waits until streams are readable or closed, a client connects, or the log has to catch up. While a client does not take
/// its output, waits for it instead of the streams.
fn wait(log: &ContainerLog) -> Readable {
    let blocked = log.blocked_client();
    let streams = [0, 1].map(|index| log.stream(index).filter(|_| blocked.is_none()));
    let mut polls: Vec<_> = streams.iter().flatten().map(|stream| PollFd::new(stream, PollFlags::IN)).collect();
    polls.extend(log.listener().map(|listener| PollFd::new(listener, PollFlags::IN)));
    polls.extend(blocked.as_ref().map(|client| PollFd::new(client, PollFlags::OUT)));
    let timespec =
        |time: Duration| Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() };
    // The only error is an interrupted call, after which nothing is readable.
    let _ = rustix::event::poll(&mut polls, log.timeout().map(timespec).as_ref());
    let mut readable = polls.iter().map(|poll| !poll.revents().is_empty());
    let mut next = || readable.next().unwrap_or(false);
    let streams = streams.map(|stream| stream.is_some() && next());
    Readable { streams, listener: log.listener().is_some() && next() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
