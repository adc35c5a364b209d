//! The stub for builds without `limpet-attribution`: inotify reports changes, and no actor is known.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use limpet_model::actor::Actor;
use limpet_model::attribution::{Backend, WatchObserver, WatchSettings};
use limpet_model::directory_id::DirectoryId;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A name in a directory.
pub type DirectoryEntry = (DirectoryId, OsString);

/// What BPF programs report; never constructed in this build.
#[derive(Debug)]
pub enum Feed {}

/// Whether all events arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// All events so far were read.
    Complete,
    /// Events may have been lost; never in this build.
    EventsLost,
}

/// An attributor that knows no actor.
#[derive(Debug)]
pub struct Attributor;

impl Attributor {
    /// Uses only inotify, whatever `settings` say.
    pub fn new(settings: WatchSettings, _: Option<mpsc::Receiver<Feed>>) -> Self {
        settings.observer.watching(Backend::Inotify, None);
        Self
    }

    pub fn backend(&self) -> Backend {
        Backend::Inotify
    }

    pub fn set_directories(&mut self, _: Vec<(PathBuf, DirectoryId)>) {}

    pub async fn marked(&mut self) {}

    pub async fn read_events(&mut self) -> Completeness {
        std::future::pending().await
    }

    pub async fn wait_for(&mut self, _: &[&DirectoryEntry]) -> Completeness {
        Completeness::Complete
    }

    pub fn actor_of(&mut self, _: &DirectoryEntry) -> Option<Arc<Actor>> {
        None
    }

    pub fn actors_in(&mut self, _: DirectoryId) -> HashMap<OsString, Arc<Actor>> {
        HashMap::new()
    }

    pub fn is_superseded(&mut self, _: &DirectoryEntry, _: &Arc<Actor>) -> bool {
        false
    }

    pub fn set_caught_up(&mut self, _: Instant) {}

    pub fn prune(&mut self) {}
}

/// The process by its pid only.
pub fn actor_of_process(pid: u32, _: BorrowedFd<'_>, _: &dyn WatchObserver) -> Actor {
    Actor { pid: Some(pid), ..Actor::default() }
}

pub fn cgroup_path(_: u64) -> Option<String> {
    None
}

/// Not available in this build.
///
/// # Errors
///
/// Always.
pub async fn probe_fanotify(_: &Path) -> io::Result<Arc<Actor>> {
    Err(left_out())
}

/// Not available in this build.
///
/// # Errors
///
/// Always.
pub fn can_mark(_: &Path) -> io::Result<()> {
    Err(left_out())
}

fn left_out() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "left out of this build")
}
