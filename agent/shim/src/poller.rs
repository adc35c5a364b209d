//! Waits for descriptors, each with the source that it stands for.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::process::Key;

/// The most events per wait.
const EVENTS: usize = 16;

/// The source behind a token.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A client connects.
    Listener,
    /// A child has ended, or the shim is asked to end.
    Signals,
    /// The connection for publishing events.
    Publisher,
    /// The connection of a client.
    Client,
    /// One of the copied streams: 0 is stdin, 1 stdout, 2 stderr.
    Transfer(Key, usize),
    /// An output of a log: 0 is stdout, 1 is stderr.
    Log(Key, usize),
    /// A client attaches to a container's log.
    Follower(Key),
    /// A client of a container's log takes output again.
    BlockedFollower(Key),
    /// A container's memory.
    Memory(String),
    /// A client's logger reports that it is ready.
    Logger,
    /// A container's first process waits for its start.
    StartFifo,
}

pub(crate) struct Poller {
    epoll: OwnedFd,
    sources: BTreeMap<u64, Source>,
    last_token: u64,
    events: Vec<Event>,
}

impl Poller {
    pub(crate) fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, sources: BTreeMap::new(), last_token: 0, events: Vec::with_capacity(EVENTS) })
    }

    /// Starts to wait for `fd`; `None` if the kernel refuses, as for a regular file.
    pub(crate) fn add(&mut self, fd: impl AsFd, source: Source, flags: EventFlags) -> Option<u64> {
        let token = self.last_token + 1;
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags).ok()?;
        self.last_token = token;
        self.sources.insert(token, source);
        Some(token)
    }

    /// Stops waiting for `fd`. Must be called before it is closed, because another descriptor of the same file would
    /// keep it registered.
    pub(crate) fn remove(&mut self, fd: impl AsFd, token: u64) {
        // An error means that it is already gone.
        let _ = epoll::delete(&self.epoll, fd);
        self.sources.remove(&token);
    }

    /// Forgets a descriptor that is closed.
    pub(crate) fn forget(&mut self, token: u64) {
        self.sources.remove(&token);
    }

    /// Waits until an event, or until `due`. Returns the events by token.
    pub(crate) fn wait(&mut self, due: Option<Instant>) -> io::Result<Vec<(u64, EventFlags)>> {
        let timeout = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| (event.data.u64(), event.flags)).collect())
    }

    /// The source of a token; `None` if it was removed.
    pub(crate) fn source(&self, token: u64) -> Option<Source> {
        self.sources.get(&token).cloned()
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
