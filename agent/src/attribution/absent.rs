//! Stands in for `limpet-attribution` in a build without it: inotify reports changes, and nobody is known to make them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use limpet_model::actor::Actor;
use limpet_model::attribution::{Backend, Onlooker, WatchSettings};
use limpet_model::directory_id::DirectoryId;
use tokio::sync::mpsc;
use tokio::time::Instant;

/// A name in a directory.
pub type Place = (DirectoryId, OsString);

/// What BPF programs report; never made in this build.
#[derive(Debug)]
pub enum Feed {}

/// What came of looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Whatever there was to see is known.
    Seen,
    /// Something may have been missed; never in this build.
    Lost,
}

/// Knows nobody.
#[derive(Debug)]
pub struct Attributor;

impl Attributor {
    /// inotify alone, whatever is wanted.
    pub fn new(settings: WatchSettings, _: Option<mpsc::Receiver<Feed>>) -> Self {
        settings.onlooker.watching(Backend::Inotify, None);
        Self
    }

    /// What is active.
    pub fn backend(&self) -> Backend {
        Backend::Inotify
    }

    /// Whether changes of mode, owner and times alone are reported.
    pub fn tells_attributes(&self) -> bool {
        true
    }

    /// Looks at nothing.
    pub fn look_at(&mut self, _: Vec<(PathBuf, DirectoryId)>) {}

    /// Never resolves.
    pub async fn look(&mut self) -> Outlook {
        std::future::pending().await
    }

    /// Waits for nothing.
    pub async fn settle(&mut self, _: &[&Place]) -> Outlook {
        Outlook::Seen
    }

    /// Nobody.
    pub fn who(&mut self, _: &Place) -> Option<Arc<Actor>> {
        None
    }

    /// Nobody.
    pub fn who_all(&mut self, _: DirectoryId) -> HashMap<OsString, Arc<Actor>> {
        HashMap::new()
    }

    /// Never.
    pub fn is_overtaken(&mut self, _: &Place, _: &Arc<Actor>) -> bool {
        false
    }

    /// Forgets nothing.
    pub fn caught_up(&mut self, _: Instant) {}

    /// Forgets nothing.
    pub fn tidy(&mut self) {}
}

/// The process by its number alone.
pub fn actor_of_process(pid: u32, _: BorrowedFd<'_>, _: &dyn Onlooker) -> Actor {
    Actor { pid: Some(pid), ..Actor::default() }
}

/// Unknown.
pub fn cgroup_path(_: u64) -> Option<String> {
    None
}

/// Names nobody.
///
/// # Errors
/// Always.
pub async fn probe_fanotify(_: &Path) -> io::Result<Arc<Actor>> {
    Err(left_out())
}

/// Marks nothing.
///
/// # Errors
/// Always.
pub fn can_mark(_: &Path) -> io::Result<()> {
    Err(left_out())
}

fn left_out() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "left out of this build")
}
