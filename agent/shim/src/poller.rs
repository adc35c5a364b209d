//! What the shim waits for: descriptors, and what each of them stands for.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::process::Key;

/// The most events of one waiting.
const EVENTS: usize = 16;

/// What a token stands for.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    /// A client connects.
    Listener,
    /// A child has ended, or the shim is asked to end.
    Signals,
    /// The connection for events.
    Publisher,
    /// The connection of a client.
    Client,
    /// One of the streams that are copied: 0 is input, 1 output, 2 error output.
    Transfer(Key, usize),
    /// An output of a log: 0 is stdout, 1 is stderr.
    Log(Key, usize),
    /// A client attaches to what a log's container writes.
    Follower(Key),
    /// The memory of a container.
    Memory(String),
}

/// The descriptors that are waited for.
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

    /// Waits for `fd` from now on; `None`: the kernel refuses, as for a regular file.
    pub(crate) fn add(&mut self, fd: impl AsFd, source: Source, flags: EventFlags) -> Option<u64> {
        let token = self.last_token + 1;
        epoll::add(&self.epoll, fd, EventData::new_u64(token), flags).ok()?;
        self.last_token = token;
        self.sources.insert(token, source);
        Some(token)
    }

    /// No longer waits for `fd`. To be called before it is closed: another descriptor of the same file would keep it.
    pub(crate) fn remove(&mut self, fd: impl AsFd, token: u64) {
        // It is gone either way.
        let _ = epoll::delete(&self.epoll, fd);
        self.sources.remove(&token);
    }

    /// Forgets a descriptor that is closed.
    pub(crate) fn forget(&mut self, token: u64) {
        self.sources.remove(&token);
    }

    /// Waits until something happens, or until `due`. Returns what happened, by token.
    pub(crate) fn wait(&mut self, due: Option<Instant>) -> io::Result<Vec<(u64, EventFlags)>> {
        let timeout = due.map(|due| timespec(due.saturating_duration_since(Instant::now())));
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(self.events.iter().map(|event| (event.data.u64(), event.flags)).collect())
    }

    /// What a token stands for; `None`: it is no longer waited for.
    pub(crate) fn source(&self, token: u64) -> Option<Source> {
        self.sources.get(&token).cloned()
    }
}

fn timespec(time: Duration) -> Timespec {
    Timespec { tv_sec: time.as_secs().cast_signed(), tv_nsec: time.subsec_nanos().into() }
}
