//! The logger: a small process beside each container that writes its output as a CRI log and rotates it.
//!
//! containerd's shim starts limpet's executable for a `binary://` URI, with the container's stdout and stderr as file
//! descriptors 3 and 4. So logging does not depend on the agent, and no line wakes it. The process lives as long as the
//! container: it must stay small (fixed buffers, one thread, no allocation per line), and it must never exit early,
//! because SIGPIPE kills a process that writes to a pipe without a reader.

mod file;
mod followers;
mod stamp;

use std::ffi::{CStr, OsStr, OsString};
use std::fmt::Write as _;
use std::io::BufRead as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::file::LogFile;
use self::followers::Followers;
use self::stamp::{STAMP_LENGTH, Stamp};
use crate::attach::AttachPoint;
use crate::log::LogRotation;

/// The first argument that makes the executable a logger.
const ARGUMENT: &str = "logger";
/// The third argument of one that the agent has started.
const REPLACEMENT: &str = "replacement";
/// The process's name (`comm`).
const NAME: &CStr = c"limpet-logger";
/// Longest text of one log line; longer ones are written in parts (CRI).
const MAX_PART: usize = 16 << 10;
/// The input buffer of one stream: one part and further bytes.
const INPUT_BUFFER: usize = MAX_PART + (4 << 10);
/// Log lines collected for one write.
const OUTPUT_BUFFER: usize = 32 << 10;
/// `2026-01-02T03:04:05.678901234Z stdout F `.
const HEADER_LENGTH: usize = STAMP_LENGTH + 10;
/// How often reporting lost lines is retried while the container is silent. No event reports that a disk has space again.
const LOSS_REPORT_INTERVAL: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// How long an unterminated line is buffered before it is written as a partial line: less than readers wait for the last
/// line of a container that has exited, whose pipes the shim holds open.
const PARTIAL_LINE_TIMEOUT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// The configuration of a logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WriterConfig {
    /// When to rotate, and how many files to keep.
    pub rotation: LogRotation,
    /// The log's newest file, absolute.
    pub path: PathBuf,
    /// The directory of the container's terminal, absolute; `None`: clients cannot attach to it.
    pub terminal: Option<PathBuf>,
    /// On the host, the user who is to own the pipes; `None`: runc can give them to the container's own.
    pub owner: Option<u32>,
}

impl WriterConfig {
    /// Parses `<max size>:<max files>:<length>:<terminal><path>`, with the length of `<terminal>` in bytes, and
    /// `@<owner>@` before it if there is one; `None` when it is invalid.
    pub fn parse(value: &OsStr) -> Option<Self> {
        let mut parts = value.as_bytes().splitn(4, |byte| *byte == b':');
        let mut next = || parts.next();
        let first = next()?;
        let (owner, max_size) = match first.strip_prefix(b"@") {
            None => (None, number(first)?),
            Some(owner) => {
                let at = owner.iter().position(|byte| *byte == b'@')?;
                (Some(number(&owner[..at])?), number(&owner[at + 1..])?)
            }
        };
        let max_files = number(next()?)?;
        let length = number(next()?)?;
        let (terminal, path) = next()?.split_at_checked(length)?;
        let absolute = |bytes| Some(PathBuf::from(OsStr::from_bytes(bytes))).filter(|path| path.is_absolute());
        let terminal = if terminal.is_empty() { None } else { Some(absolute(terminal)?) };
        Some(Self { rotation: LogRotation { max_size, max_files }, path: absolute(path)?, terminal, owner })
    }
}

fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The URI for a task's stdout and stderr in containerd, so that `executable` logs to `log_path`, and passes output on
/// to those who are attached at `terminal`. `owner`: who opens them in the container, as the host knows it, in a pod
/// with a user namespace.
///
/// It has only one query parameter: the shim converts parameters to arguments in random order.
pub fn uri(
    executable: &Path,
    rotation: LogRotation,
    log_path: &Path,
    terminal: Option<&AttachPoint>,
    owner: Option<u32>,
) -> String {
    let owner = owner.map(|owner| format!("%40{owner}%40")).unwrap_or_default();
    let mut uri = String::from("binary://");
    escape(&mut uri, executable.as_os_str().as_bytes());
    let terminal = terminal.map(|terminal| terminal.directory().as_os_str().as_bytes()).unwrap_or_default();
    // Writing to a String cannot fail.
    let _ = write!(uri, "?{ARGUMENT}={owner}{}:{}:{}:", rotation.max_size, rotation.max_files, terminal.len());
    escape(&mut uri, terminal);
    escape(&mut uri, log_path.as_os_str().as_bytes());
    uri
}

/// Percent-encodes all characters that Go's URL parser could misinterpret, in a path as in a query.
fn escape(uri: &mut String, bytes: &[u8]) {
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' => uri.push(char::from(*byte)),
            // Writing to a String cannot fail.
            _ => drop(write!(uri, "%{byte:02X}")),
        }
    }
}

/// How a process was started as a logger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Invocation {
    /// Its configuration, as in the URI.
    pub value: OsString,
    /// The agent has started it, in place of one that was killed; otherwise a shim has.
    pub replaces: bool,
}

impl Invocation {
    /// That of a process with these arguments, without its name; `None`: it is no logger.
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

    /// The arguments of such a process, without its name.
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

/// Runs the process as a logger until the container's streams end.
///
/// Reports readiness on descriptor 5, for which the shim waits. Exits with 2 when its value was not created by [`uri`], with
/// 1 when it was not started by a shim.
pub fn main(invocation: &Invocation) -> ExitCode {
    let Some(config) = WriterConfig::parse(&invocation.value) else {
        eprintln!(
            "limpet logger: expected <max size>:<max files>:<length>:<terminal><path>; it is started by containerd"
        );
        return ExitCode::from(2);
    };
    block_signals();
    // Without a name of its own it would be killed with the agent by name. It is a name only: a failure changes nothing.
    let _ = rustix::thread::set_name(NAME);
    // Otherwise the shim's bundle directory would stay busy.
    let _ = rustix::process::chdir("/");
    // Opening them again returns owned descriptors; the inherited ones stay open unused.
    let [out, err] = invocation.descriptors();
    let streams = inherited(out, OFlags::RDONLY).and_then(|stdout| Ok((stdout, inherited(err, OFlags::RDONLY)?)));
    let Ok((stdout, stderr)) = streams else {
        eprintln!("limpet logger: descriptors {out} and {err} are not pipes; it is started by containerd");
        return ExitCode::FAILURE;
    };
    // runc may not do it there. A process that cannot open its output by name still has it open.
    for pipe in [&stdout, &stderr] {
        let _ = config.owner.map(|owner| std::os::unix::fs::fchown(pipe, Some(owner), None));
    }
    run(stdout, stderr, config, |contended| {
        if contended {
            kill_predecessor();
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

/// Kills the logger of an earlier attempt to create this container: a shim whose `Tasks.Create` was interrupted holds the
/// other end of that logger's pipes open, without ever writing to them.
fn kill_predecessor() {
    if let Ok(id) = std::env::var("CONTAINER_ID") {
        limpet_host::orphan_processes::end_others("CONTAINER_ID", &id);
    }
}

/// The value of a task's stdout URI, which [`uri`] has made; `None`: it is another URI.
pub fn value(uri: &str) -> Option<OsString> {
    let encoded = uri.strip_prefix("binary://")?.split_once(&format!("?{ARGUMENT}="))?.1.as_bytes();
    let mut value = Vec::with_capacity(encoded.len());
    let mut rest = encoded;
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            value.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            value.push(*first);
        }
    }
    Some(OsString::from_vec(value))
}

fn inherited(number: u8, access: OFlags) -> Result<OwnedFd, Errno> {
    let path = [b"/proc/self/fd/".as_slice(), &[b'0' + number]].concat();
    rustix::fs::open(path.as_slice(), access | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())
}

/// Blocks signals: the shim sends SIGTERM before the last lines are read, and a terminal's or a service's signals must not
/// stop the logger. Rust itself ignores SIGPIPE.
fn block_signals() {
    use nix::sys::signal::{SigSet, Signal};
    let signals: SigSet = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGPIPE].into_iter().collect();
    // It only fails for an invalid mask.
    let _ = signals.thread_block();
}

/// Writes the output of both streams until both are closed; calls `ready` once the file is open, with whether another
/// process holds its lock.
pub fn run(stdout: OwnedFd, stderr: OwnedFd, config: WriterConfig, ready: impl FnOnce(bool)) {
    let mut followers = config.terminal.as_deref().map(Followers::listen).unwrap_or_default();
    let mut log = Log {
        file: LogFile::open(config.path, config.rotation),
        lines: Vec::with_capacity(OUTPUT_BUFFER),
        stamp: Stamp::now(),
    };
    let mut streams = [Stream::new(stdout, b"stdout"), Stream::new(stderr, b"stderr")];
    ready(log.file.is_contended());
    loop {
        let pending = streams.iter().any(|stream| stream.unended() > 0);
        let timeout =
            if pending { Some(&PARTIAL_LINE_TIMEOUT) } else { log.file.has_losses().then_some(&LOSS_REPORT_INTERVAL) };
        let Some(readable) = wait(&streams, &followers, timeout) else { break };
        log.stamp = Stamp::now();
        if pending && readable.is_nothing() {
            streams.iter_mut().for_each(|stream| stream.write_unended(&mut log));
        }
        for (stream, readable) in streams.iter_mut().zip(readable.streams) {
            if readable {
                followers.pass_on(stream.read());
                stream.cut(&mut log);
            }
        }
        log.flush();
        if readable.listener {
            followers.accept();
        }
    }
}

/// What there is to do.
struct Readable {
    streams: [bool; 2],
    listener: bool,
}

impl Readable {
    fn is_nothing(&self) -> bool {
        !self.listener && self.streams == [false; 2]
    }
}

/// Waits until streams are readable or closed, or a client connects; `None` once both streams are closed.
fn wait(streams: &[Stream; 2], followers: &Followers, timeout: Option<&Timespec>) -> Option<Readable> {
    let pipes = streams.iter().filter_map(|stream| stream.pipe.as_ref());
    let mut polls: Vec<_> = pipes.map(|pipe| PollFd::new(pipe, PollFlags::IN)).collect();
    if polls.is_empty() {
        return None;
    }
    polls.extend(followers.listener().map(|listener| PollFd::new(listener, PollFlags::IN)));
    // An error is an interrupted call, and then nothing is readable.
    let _ = rustix::event::poll(&mut polls, timeout);
    let mut readable = polls.iter().map(|poll| !poll.revents().is_empty());
    let mut next = || readable.next().unwrap_or(false);
    let streams = streams.each_ref().map(|stream| stream.pipe.is_some() && next());
    Some(Readable { streams, listener: next() })
}

/// One of the container's output streams, with its incomplete line.
struct Stream {
    /// `None` once it is closed.
    pipe: Option<OwnedFd>,
    name: &'static [u8; 6],
    buffer: Vec<u8>,
    filled: usize,
}

impl Stream {
    fn new(pipe: OwnedFd, name: &'static [u8; 6]) -> Self {
        Self { pipe: Some(pipe), name, buffer: vec![0; INPUT_BUFFER], filled: 0 }
    }

    /// Reads once, and returns what was read. The buffer always has space: `cut` leaves at most one part in it.
    fn read(&mut self) -> &[u8] {
        let start = self.filled;
        if let Some(pipe) = &self.pipe {
            match rustix::io::read(pipe, &mut self.buffer[start..]) {
                Ok(0) => self.pipe = None,
                Ok(count) => self.filled += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.pipe = None,
            }
        }
        &self.buffer[start..self.filled]
    }

    /// Passes on whole lines, and parts of a line that is too long; at the end of the stream also the rest.
    fn cut(&mut self, log: &mut Log) {
        let mut start = 0;
        while start < self.filled {
            let rest = &self.buffer[start..self.filled];
            // The standard library's fastest search for a byte; reading from a slice cannot fail.
            let length = (&*rest).skip_until(b'\n').unwrap_or(rest.len());
            if let Some(line) = rest[..length].strip_suffix(b"\n") {
                // As containerd: a terminal writes both.
                let mut line = line.strip_suffix(b"\r").unwrap_or(line);
                while line.len() > MAX_PART {
                    log.push(self.name, b'P', &line[..MAX_PART]);
                    line = &line[MAX_PART..];
                }
                log.push(self.name, b'F', line);
                start += length;
            } else if rest.len() > MAX_PART {
                log.push(self.name, b'P', &rest[..MAX_PART]);
                start += MAX_PART;
            } else if self.pipe.is_none() {
                // As containerd: a line without an end is a part.
                log.push(self.name, b'P', rest);
                start += length;
            } else {
                break;
            }
        }
        self.buffer.copy_within(start..self.filled, 0);
        self.filled -= start;
    }

    /// The bytes of a line without its end that may be passed on: a carriage return may belong to that end.
    fn unended(&self) -> usize {
        self.filled - usize::from(self.buffer[..self.filled].ends_with(b"\r"))
    }

    /// Passes on the start of a line whose end does not come.
    fn write_unended(&mut self, log: &mut Log) {
        let length = self.unended();
        if length > 0 {
            log.push(self.name, b'P', &self.buffer[..length]);
            self.buffer.copy_within(length..self.filled, 0);
            self.filled -= length;
        }
    }
}

/// Log lines to be written to the file.
struct Log {
    file: LogFile,
    lines: Vec<u8>,
    stamp: Stamp,
}

impl Log {
    fn push(&mut self, stream: &[u8; 6], tag: u8, text: &[u8]) {
        if self.lines.len() + HEADER_LENGTH + text.len() + 1 > OUTPUT_BUFFER {
            self.flush();
        }
        self.lines.extend_from_slice(self.stamp.text());
        self.lines.push(b' ');
        self.lines.extend_from_slice(stream);
        self.lines.extend_from_slice(&[b' ', tag, b' ']);
        self.lines.extend_from_slice(text);
        self.lines.push(b'\n');
        self.stamp.advance();
        if self.lines.len() as u64 >= self.file.room() {
            self.flush();
        }
    }

    /// Writes the collected lines; also called without any, to report lost lines.
    fn flush(&mut self) {
        if !self.lines.is_empty() || self.file.has_losses() {
            self.file.append(&self.lines, &self.stamp);
            self.lines.clear();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::expect_used)]
mod tests;
