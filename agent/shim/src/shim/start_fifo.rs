//! Starts a container as `runc start` does, without the time that this program takes to start.
//!
//! The first process writes to a FIFO before it executes the container's program, and writing waits for a reader.
//! Whatever does not go as expected is left to runc, whose messages clients know.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::event::epoll::EventFlags;
use rustix::fs::{Mode, OFlags};

use super::Shim;
use super::operations::{Kind, Operation, remove};
use crate::failure::Failure;
use crate::poller::Source;
use crate::process::{Call, Key};

/// The file that runc has beside the FIFO.
const RUNC_STATE: &str = "state.json";

/// A start whose FIFO has a reader, and no byte yet.
pub(super) struct PendingStart {
    key: Key,
    call: Call,
    fifo: OwnedFd,
    path: PathBuf,
}

impl Shim {
    /// Starts to read the FIFO at `path`. Returns false if it cannot be read, or is not runc's: crun, which may be
    /// installed under runc's name, has a FIFO that is to be written.
    pub(super) fn start_by_fifo(&mut self, call: Call, key: &Key, path: &Path) -> bool {
        if !path.with_file_name(RUNC_STATE).exists() {
            return false;
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let Ok(fifo) = rustix::fs::open(path, flags, Mode::empty()) else { return false };
        let Some(token) = self.poller.add(&fifo, Source::StartFifo, EventFlags::IN) else { return false };
        let pending = PendingStart { key: key.clone(), call, fifo, path: path.to_owned() };
        self.pending_starts.insert(token, pending);
        true
    }

    /// The first process has written, or has closed the FIFO.
    pub(super) fn read_start_fifo(&mut self, token: u64) {
        let Some(pending) = self.pending_starts.remove(&token) else { return };
        self.poller.remove(&pending.fifo, token);
        if rustix::io::read(&pending.fifo, &mut [0; 8]).is_ok_and(|count| count > 0) {
            // runc takes a container with this file for one that was not started.
            remove(Some(&pending.path));
            return self.complete(Operation::new(&pending.key, Kind::Start, Some(pending.call)), Ok(()));
        }
        self.start_by_runtime(pending);
    }

    /// The first process of container `id` has ended: nobody will write to its FIFO.
    pub(super) fn give_up_start_fifo(&mut self, id: &str) {
        let starts = &self.pending_starts;
        let Some(token) = starts.iter().find(|(_, start)| start.key.container == id).map(|(token, _)| *token) else {
            return;
        };
        // It may have written before it ended.
        self.read_start_fifo(token);
    }

    fn start_by_runtime(&mut self, PendingStart { key, call, fifo, .. }: PendingStart) {
        drop(fifo);
        let operation = Operation::new(&key, Kind::Start, Some(call));
        let called: Result<(), Failure> = self.call_runtime(operation, |runtime, about| runtime.plain(about, "start"));
        if let Err(failure) = called {
            self.complete(Operation::new(&key, Kind::Start, Some(call)), Err(failure));
        }
    }
}
