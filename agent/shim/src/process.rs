//! What the shim knows of a container and its processes.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::Instant;

use limpet_log::container_log::ContainerLog;
use prost_types::Any;

use crate::cgroup::{Cgroup, OomWatch};
use crate::exit::Exit;
use crate::messages::Request;
use crate::runtime::Runtime;
use crate::stdio::Stdio;
use crate::transfer::Transfer;

/// A request that is answered later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The connection it came on.
    pub(crate) client: u64,
    /// Its stream there.
    pub(crate) stream: u32,
}

/// Names a process: a container, and which of its processes; the first one has no id.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) container: String,
    pub(crate) exec: String,
}

impl Key {
    pub(crate) fn init(container: &str) -> Self {
        Self { container: container.to_owned(), exec: String::new() }
    }

    pub(crate) fn is_init(&self) -> bool {
        self.exec.is_empty()
    }
}

/// The life of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// The runtime is creating the container.
    Creating,
    Created,
    /// The runtime is starting it.
    Starting,
    Running,
    Pausing,
    Paused,
    Stopped,
}

impl State {
    /// The number in `containerd.v1.types.Status`.
    pub(crate) fn number(self) -> i32 {
        match self {
            Self::Creating | Self::Created | Self::Starting => 1,
            Self::Running => 2,
            Self::Stopped => 3,
            Self::Paused => 4,
            Self::Pausing => 5,
        }
    }

    /// The word in messages.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Creating | Self::Created => "created",
            Self::Starting | Self::Running => "running",
            Self::Pausing | Self::Paused => "paused",
            Self::Stopped => "stopped",
        }
    }
}

/// A process in a container.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) state: State,
    /// 0 before it was started.
    pub(crate) pid: u32,
    pub(crate) exit: Option<Exit>,
    pub(crate) stdio: Stdio,
    pub(crate) streams: Streams,
    /// Who waits for its end.
    pub(crate) waiters: Vec<Call>,
    /// Who waits for its deletion, until its output has been passed on, and until when.
    pub(crate) deleting: Option<(Call, Instant)>,
    /// What an exec is to run.
    pub(crate) spec: Option<Any>,
}

impl Process {
    pub(crate) fn new(state: State, stdio: Stdio) -> Self {
        Self {
            state,
            pid: 0,
            exit: None,
            stdio,
            streams: Streams::default(),
            waiters: Vec::new(),
            deleting: None,
            spec: None,
        }
    }

    /// Whether it has been started and has not ended.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.state, State::Starting | State::Running | State::Pausing | State::Paused)
    }
}

/// The streams of a process, each with what it is waited for by.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    /// The CRI log that the shim writes.
    pub(crate) log: Option<ContainerLog>,
    /// The tokens of the log's two streams.
    pub(crate) log_tokens: [Option<u64>; 2],
    /// And of the socket of attached clients.
    pub(crate) follower_token: Option<u64>,
    /// When an unfinished line of the log is to be written.
    pub(crate) log_due: Option<Instant>,
    /// Input, output and error output, where the shim copies them.
    pub(crate) transfers: [Option<Transfer>; 3],
    pub(crate) transfer_tokens: [Option<u64>; 3],
    /// The terminal.
    pub(crate) console: Option<OwnedFd>,
    /// Keeps the input open while clients come and go, until it is closed.
    pub(crate) input_keeper: Option<OwnedFd>,
}

impl Streams {
    /// Whether output is being passed on.
    pub(crate) fn passes_output_on(&self) -> bool {
        self.transfers.iter().skip(1).any(Option::is_some)
    }
}

/// A container.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) bundle: PathBuf,
    pub(crate) runtime: Runtime,
    pub(crate) init: Process,
    pub(crate) execs: BTreeMap<String, Process>,
    /// Its root file system is mounted by the shim.
    pub(crate) has_rootfs: bool,
    /// Its processes may outlive the first one.
    pub(crate) shares_pids: bool,
    /// Where its exit is recorded.
    pub(crate) exit_file: PathBuf,
    pub(crate) cgroup: Option<Cgroup>,
    /// What reports that its memory ran out, with its token.
    pub(crate) oom: Option<(OomWatch, u64)>,
    /// How many processes the kernel had killed for want of it when that was reported last.
    pub(crate) oom_kills: u64,
    /// The runtime is changing it.
    pub(crate) busy: bool,
    /// Requests that wait for that.
    pub(crate) deferred: Vec<(Call, Request)>,
    /// Its first process has ended: reported once the runtime has started it, and after the ends of all others.
    pub(crate) ended: Option<Exit>,
}

impl Container {
    pub(crate) fn process_mut(&mut self, exec: &str) -> Option<&mut Process> {
        if exec.is_empty() { Some(&mut self.init) } else { self.execs.get_mut(exec) }
    }

    /// Its processes by their exec ids, the first one with an empty one.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&str, &Process)> {
        let execs = self.execs.iter().map(|(id, process)| (id.as_str(), process));
        std::iter::once(("", &self.init)).chain(execs)
    }

    pub(crate) fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        std::iter::once(&mut self.init).chain(self.execs.values_mut())
    }
}
