//! The shim's state of a container and its processes.

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
use crate::transfer::{Transfer, Waiting};

/// A request that is answered later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Call {
    /// The connection of the request.
    pub(crate) client: u64,
    /// Its stream on that connection.
    pub(crate) stream: u32,
}

/// Identifies a process by its container and exec id, which is empty for the first process.
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

/// The state of a process.
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

    /// The word for messages.
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
    /// 0 until it is started.
    pub(crate) pid: u32,
    pub(crate) exit: Option<Exit>,
    pub(crate) stdio: Stdio,
    pub(crate) streams: Streams,
    /// Calls that wait for its exit.
    pub(crate) waiters: Vec<Call>,
    /// The call that waits for its deletion until its output has been passed on, and the deadline.
    pub(crate) deleting: Option<(Call, Instant)>,
    /// The OCI process of an exec.
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

    /// Whether it was started and has not ended.
    pub(crate) fn runs(&self) -> bool {
        matches!(self.state, State::Starting | State::Running | State::Pausing | State::Paused)
    }
}

/// The streams of a process, with their tokens.
#[derive(Debug, Default)]
pub(crate) struct Streams {
    pub(crate) log: Option<ContainerLog>,
    /// The tokens of the log's two streams.
    pub(crate) log_tokens: [Option<u64>; 2],
    /// The token of the socket for attached clients.
    pub(crate) follower_token: Option<u64>,
    /// The token of a client of the log that does not take its output.
    pub(crate) blocked_token: Option<u64>,
    /// When an unfinished line of the log is to be written, or a client is dropped.
    pub(crate) log_due: Option<Instant>,
    /// Stdin, stdout and stderr, if the shim copies them.
    pub(crate) transfers: [Option<Transfer>; 3],
    pub(crate) transfer_tokens: [Option<u64>; 3],
    pub(crate) console: Option<OwnedFd>,
    /// Holds the input open while clients come and go, until it is closed.
    pub(crate) input_keeper: Option<OwnedFd>,
}

impl Streams {
    /// Whether output waits until somebody takes it.
    pub(crate) fn awaits_reader(&self) -> bool {
        let mut outputs = self.transfers.iter().skip(1).flatten();
        outputs.any(|transfer| transfer.waiting == Waiting::Space)
            || self.log.as_ref().is_some_and(|log| log.blocked_client().is_some())
    }

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
    /// Whether the shim has mounted its root file system.
    pub(crate) has_rootfs: bool,
    /// Whether its processes may outlive the first one.
    pub(crate) shares_pids: bool,
    pub(crate) exit_file: PathBuf,
    /// The FIFO at which its first process waits for the start, if the shim can start it without the runtime.
    pub(crate) start_fifo: Option<PathBuf>,
    pub(crate) cgroup: Option<Cgroup>,
    /// Reports memory shortage, with its token.
    pub(crate) oom: Option<(OomWatch, u64)>,
    /// The number of OOM kills at the last report.
    pub(crate) oom_kills: u64,
    /// Whether the runtime is changing it.
    pub(crate) busy: bool,
    /// Requests that wait while it is busy.
    pub(crate) deferred: Vec<(Call, Request)>,
    /// The exit of its first process, which is reported after the runtime has started it and all other exits were
    /// reported.
    pub(crate) ended: Option<Exit>,
}

impl Container {
    pub(crate) fn process_mut(&mut self, exec: &str) -> Option<&mut Process> {
        if exec.is_empty() { Some(&mut self.init) } else { self.execs.get_mut(exec) }
    }

    /// Its processes by exec id; the first one's id is empty.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (&str, &Process)> {
        let execs = self.execs.iter().map(|(id, process)| (id.as_str(), process));
        std::iter::once(("", &self.init)).chain(execs)
    }

    pub(crate) fn processes_mut(&mut self) -> impl Iterator<Item = &mut Process> {
        std::iter::once(&mut self.init).chain(self.execs.values_mut())
    }
}
