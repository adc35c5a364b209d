//! The streams of processes: opens and copies them, and writes logs.

use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::process::Stdio as ChildStdio;
use std::time::Instant;

use limpet_log::config::WriterConfig;
use limpet_log::container_log::{Buffers, ContainerLog};
use rustix::event::epoll::EventFlags;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use super::{Shim, process_in};
use crate::logger_program::{self, StartingLogger};
use crate::poller::Source;
use crate::process::{Key, Streams};
use crate::stdio::{self, Output, Stdio, input_pipe, open_input_fifo, open_output_fifo, open_output_file, output_pipe};
use crate::transfer::{BUFFER, Transfer, Waiting};

/// How often an output is read when its process is deleted: enough for more than a pipe holds.
const LAST_READS: usize = 64;

/// The opened streams of a process: the shim's ends, the process's, and the logger that must be ready before it runs.
pub(super) struct Opened {
    pub(super) streams: Streams,
    pub(super) process: ProcessStdio,
    pub(super) logger: Option<StartingLogger>,
}

/// The standard streams of a new process.
pub(super) struct ProcessStdio {
    pub(super) stdin: ChildStdio,
    pub(super) stdout: ChildStdio,
    pub(super) stderr: ChildStdio,
}

impl Shim {
    /// Opens the streams of a process without a terminal.
    pub(super) fn open_streams(&self, id: &str, stdio: &Stdio, owner: (u32, u32)) -> io::Result<Opened> {
        let mut logger = None;
        let mut streams = Streams::default();
        let child = |fd: OwnedFd| ChildStdio::from(fd);
        let mut process =
            ProcessStdio { stdin: ChildStdio::null(), stdout: ChildStdio::null(), stderr: ChildStdio::null() };
        let output = Output::parse(&stdio.stdout)?;
        let reads_directly = matches!(output, Output::Log(_));
        match output {
            Output::Log(config) => {
                let owner = config.owner.map_or(owner, |user| (user, u32::MAX));
                let (stdout, writer) = output_pipe(owner)?;
                process.stdout = child(writer);
                let (stderr, writer) = output_pipe(owner)?;
                process.stderr = child(writer);
                streams.log = Some(ContainerLog::open(config, [Some(stdout), Some(stderr)]));
            }
            Output::Binary(program) => {
                let (stdout, stdout_writer) = pipe_with(PipeFlags::CLOEXEC)?;
                let (stderr, stderr_writer) = pipe_with(PipeFlags::CLOEXEC)?;
                logger = Some(logger_program::start(&program, id, &self.namespace, stdout, stderr)?);
                process.stdout = child(stdout_writer);
                process.stderr = child(stderr_writer);
            }
            output => {
                if let Some(to) = open_output(output)? {
                    let (from, writer) = output_pipe(owner)?;
                    streams.transfers[1] = Some(Transfer::new(from, to));
                    process.stdout = child(writer);
                }
                if let Some(to) = open_output(Output::parse(&stdio.stderr)?)? {
                    let (from, writer) = output_pipe(owner)?;
                    streams.transfers[2] = Some(Transfer::new(from, to));
                    process.stderr = child(writer);
                }
            }
        }
        if !stdio.stdin.is_empty() {
            let (reader, keeper) = open_input_fifo(&PathBuf::from(&stdio.stdin))?;
            streams.input_keeper = Some(keeper);
            if reads_directly {
                // The process is the only reader, so a client that attaches learns whether it still reads.
                rustix::fs::fcntl_setfl(&reader, OFlags::empty())?;
                process.stdin = child(reader);
            } else {
                let (pipe, to) = input_pipe(owner)?;
                streams.transfers[0] = Some(Transfer::new(reader, to));
                process.stdin = child(pipe);
            }
        }
        Ok(Opened { streams, process, logger })
    }

    /// Starts the logger of a terminal, if its output goes to one. Returns it, and where to write the output.
    pub(super) fn start_terminal_logger(
        &self,
        id: &str,
        stdout: &str,
    ) -> io::Result<Option<(StartingLogger, OwnedFd)>> {
        let Output::Binary(program) = Output::parse(stdout)? else { return Ok(None) };
        let (stdout, to) = pipe_with(PipeFlags::CLOEXEC)?;
        let (stderr, _) = pipe_with(PipeFlags::CLOEXEC)?;
        let logger = logger_program::start(&program, id, &self.namespace, stdout, stderr)?;
        stdio::set_nonblocking(&to)?;
        Ok(Some((logger, to)))
    }

    /// Connects a terminal with the streams of its process: its output with `to`, if that is open already.
    pub(super) fn open_terminal(stdio: &Stdio, console: OwnedFd, to: Option<OwnedFd>) -> io::Result<Streams> {
        let mut streams = Streams::default();
        match (Output::parse(&stdio.stdout)?, to) {
            (Output::Log(config), _) => streams.log = Some(log_of_terminal(config, &console)?),
            (_, Some(to)) => streams.transfers[1] = Some(Transfer::new(console.try_clone()?, to)),
            (output, None) => {
                // Without a reader a terminal's buffer fills up and blocks its processes.
                let to = match open_output(output)? {
                    Some(to) => to,
                    None => std::fs::File::options().write(true).open("/dev/null")?.into(),
                };
                streams.transfers[1] = Some(Transfer::new(console.try_clone()?, to));
            }
        }
        if !stdio.stdin.is_empty() {
            let (from, keeper) = open_input_fifo(&PathBuf::from(&stdio.stdin))?;
            streams.input_keeper = Some(keeper);
            streams.transfers[0] = Some(Transfer::new(from, console.try_clone()?));
        }
        streams.console = Some(console);
        Ok(streams)
    }

    /// Starts to wait for the streams of a process.
    pub(super) fn watch_streams(&mut self, key: &Key) {
        for index in 0..3 {
            self.watch_transfer(key, index);
        }
        let Some(process) = process_in(&mut self.containers, key) else { return };
        let streams = &mut process.streams;
        let Some(log) = &streams.log else { return };
        for index in 0..2 {
            if let Some(fd) = log.stream(index) {
                streams.log_tokens[index] = self.poller.add(fd, Source::Log(key.clone(), index), EventFlags::IN);
            }
        }
        if let Some(listener) = log.listener() {
            streams.follower_token = self.poller.add(listener, Source::Follower(key.clone()), EventFlags::IN);
        }
    }

    fn watch_transfer(&mut self, key: &Key, index: usize) {
        let Some(process) = process_in(&mut self.containers, key) else { return };
        let Some(transfer) = process.streams.transfers.get(index).and_then(Option::as_ref) else { return };
        let flags = if transfer.waiting == Waiting::Space { EventFlags::OUT } else { EventFlags::IN };
        let Some(fd) = transfer.awaited() else { return };
        let token = self.poller.add(fd, Source::Transfer(key.clone(), index), flags);
        if let Some(slot) = process.streams.transfer_tokens.get_mut(index) {
            *slot = token;
        }
    }

    /// Copies what is available, and updates what the copying waits for.
    pub(super) fn advance_transfer(&mut self, key: &Key, index: usize) {
        let mut buffer = [0; BUFFER];
        let Some(process) = process_in(&mut self.containers, key) else { return };
        let streams = &mut process.streams;
        let (Some(transfer), Some(token)) = (
            streams.transfers.get_mut(index).and_then(Option::as_mut),
            streams.transfer_tokens.get(index).copied().flatten(),
        ) else {
            return;
        };
        let before = transfer.waiting;
        let now = transfer.advance(&mut buffer);
        if now == before {
            return;
        }
        if let Some(fd) = transfer.descriptor(before) {
            self.poller.remove(fd, token);
        }
        if let Some(slot) = streams.transfer_tokens.get_mut(index) {
            *slot = None;
        }
        if now == Waiting::Ended {
            if let Some(slot) = streams.transfers.get_mut(index) {
                *slot = None;
            }
            self.output_has_ended(key);
        } else {
            self.watch_transfer(key, index);
        }
    }

    /// Continues a deletion that waits for this.
    fn output_has_ended(&mut self, key: &Key) {
        let process = self.process_mut(key);
        if process.is_some_and(|process| process.deleting.is_some() && !process.streams.passes_output_on()) {
            self.finish_deletion(key);
        }
    }

    pub(super) fn read_log(&mut self, key: &Key, index: usize) {
        let is_open = self.use_log(key, |log, buffers| log.read(index, buffers.get_or_insert_with(Buffers::default)));
        if is_open != Some(false) {
            return;
        }
        let Some(process) = process_in(&mut self.containers, key) else { return };
        let streams = &mut process.streams;
        let Some(log) = &mut streams.log else { return };
        if let (Some(token), Some(fd)) = (streams.log_tokens.get_mut(index).and_then(Option::take), log.stream(index)) {
            self.poller.remove(fd, token);
        }
        log.end(index, self.buffers.get_or_insert_with(Buffers::default));
        if log.is_open() {
            streams.log_due = log.timeout().map(|timeout| Instant::now() + timeout);
        } else {
            self.close_log(key);
        }
    }

    /// Uses the log of a process, and then waits for its streams or, while a client does not take its output, for that
    /// client.
    fn use_log<T>(&mut self, key: &Key, act: impl FnOnce(&mut ContainerLog, &mut Option<Buffers>) -> T) -> Option<T> {
        let streams = &mut process_in(&mut self.containers, key)?.streams;
        let log = streams.log.as_mut()?;
        if let (Some(token), Some(client)) = (streams.blocked_token.take(), log.blocked_client()) {
            self.poller.remove(client, token);
        }
        let done = act(log, &mut self.buffers);
        streams.log_due = log.timeout().map(|timeout| Instant::now() + timeout);
        let blocked = log.blocked_client();
        for (index, token) in streams.log_tokens.iter_mut().enumerate() {
            let Some(fd) = log.stream(index) else { continue };
            if blocked.is_none() && token.is_none() {
                *token = self.poller.add(fd, Source::Log(key.clone(), index), EventFlags::IN);
            } else if blocked.is_some()
                && let Some(token) = token.take()
            {
                self.poller.remove(fd, token);
            }
        }
        if let Some(client) = blocked {
            streams.blocked_token = self.poller.add(client, Source::BlockedFollower(key.clone()), EventFlags::OUT);
        }
        Some(done)
    }

    /// Closes a log whose outputs have ended; its readers learn from its lock that no line follows.
    fn close_log(&mut self, key: &Key) {
        let Some(process) = process_in(&mut self.containers, key) else { return };
        let streams = &mut process.streams;
        let Some(log) = streams.log.take() else { return };
        if let (Some(token), Some(listener)) = (streams.follower_token.take(), log.listener()) {
            self.poller.remove(listener, token);
        }
        if let (Some(token), Some(client)) = (streams.blocked_token.take(), log.blocked_client()) {
            self.poller.remove(client, token);
        }
        streams.log_tokens = [None; 2];
        streams.log_due = None;
    }

    pub(super) fn catch_up_log(&mut self, key: &Key) {
        self.use_log(key, |log, buffers| log.catch_up(buffers.get_or_insert_with(Buffers::default)));
        self.clients_have_taken(key);
    }

    pub(super) fn serve_followers(&mut self, key: &Key) {
        self.use_log(key, |log, _| log.serve_clients());
        self.clients_have_taken(key);
    }

    /// Continues a deletion that waits for the clients of a log.
    fn clients_have_taken(&mut self, key: &Key) {
        let process = self.process_mut(key);
        if process.is_some_and(|process| process.deleting.is_some() && !process.streams.awaits_reader()) {
            self.finish_deletion(key);
        }
    }

    pub(super) fn accept_follower(&mut self, key: &Key) {
        let listens = self.use_log(key, |log, _| {
            log.accept();
            log.listener().is_some()
        });
        if listens == Some(false)
            && let Some(process) = process_in(&mut self.containers, key)
            && let Some(token) = process.streams.follower_token.take()
        {
            self.poller.forget(token);
        }
    }

    /// Drains a process's pipes, and closes its streams.
    pub(super) fn close_streams(&mut self, key: &Key) {
        for index in 0..2 {
            // A pipe holds less than this. A process that still writes is not waited for.
            for _ in 0..LAST_READS {
                if self.has_output(key, index) {
                    self.read_log(key, index);
                }
            }
        }
        let Some(process) = process_in(&mut self.containers, key) else { return };
        let mut streams = std::mem::take(&mut process.streams);
        if let Some(log) = &mut streams.log {
            let buffers = self.buffers.get_or_insert_with(Buffers::default);
            for index in 0..2 {
                if let (Some(token), Some(fd)) = (streams.log_tokens[index], log.stream(index)) {
                    self.poller.remove(fd, token);
                }
                log.end(index, buffers);
            }
            log.serve_clients();
            if let (Some(token), Some(listener)) = (streams.follower_token, log.listener()) {
                self.poller.remove(listener, token);
            }
            if let (Some(token), Some(client)) = (streams.blocked_token, log.blocked_client()) {
                self.poller.remove(client, token);
            }
        }
        for (transfer, token) in streams.transfers.iter().zip(streams.transfer_tokens) {
            if let (Some(fd), Some(token)) = (transfer.as_ref().and_then(Transfer::awaited), token) {
                self.poller.remove(fd, token);
            }
        }
    }

    /// Whether an output of a log can be read without blocking; true at its end, which reading then closes.
    fn has_output(&mut self, key: &Key, index: usize) -> bool {
        let log = process_in(&mut self.containers, key).and_then(|process| process.streams.log.as_ref());
        let Some(fd) = log.and_then(|log| log.stream(index)) else { return false };
        let mut polls = [PollFd::new(&fd, PollFlags::IN)];
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut polls, Some(&at_once)).is_ok_and(|ready| ready > 0)
    }
}

/// Opens the destination of an output; `None` if it is discarded.
fn open_output(output: Output) -> io::Result<Option<OwnedFd>> {
    match output {
        Output::Null => Ok(None),
        Output::Fifo(path) => open_output_fifo(&path).map(Some),
        Output::File(path) => open_output_file(&path).map(Some),
        Output::Binary(_) | Output::Log(_) => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, "stderr needs the scheme of stdout"))
        }
    }
}

/// The log of a terminal, which is a stream like a pipe.
fn log_of_terminal(config: WriterConfig, console: &OwnedFd) -> io::Result<ContainerLog> {
    Ok(ContainerLog::open(config, [Some(console.try_clone()?), None]))
}
