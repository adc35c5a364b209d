//! Directory change notification from the kernel.
//!
//! Input: the path of one directory, and the names in it that are symlinks. Output: [`WatchEvent`]s. An event requests
//! a read, and never carries content: the kernel merges, reorders and loses events, so the reader stats the names, and
//! lists the directory for a rescan. The path may be missing, replaced, mounted over or reached through symlinks; the
//! watch always covers what the path currently resolves to.
//!
//! inotify needs no privilege and works on every kernel, so only it decides when to read. The [`Attributor`] adds who
//! made a change.

pub mod actors;
mod arming;
mod attribution;
mod trail;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify::{ReadFlags, WatchFlags};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};
use rustix::io::Errno;
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::actors::{Attributor, DirectoryEntry, Feed};
use arming::Arming;
use inotify::{Change, Queue, Wd};
use limpet_host::directory::DirectoryIdentity;
use limpet_host::inotify;
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchSettings;
use limpet_model::directory_id::DirectoryId;

/// Events of names in a directory whose files are read.
const NAMES: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::CREATE)
    .union(WatchFlags::ATTRIB);
/// Events of the directory's own name; none for what is inside it.
const ITSELF: WatchFlags = WatchFlags::DELETE_SELF.union(WatchFlags::MOVE_SELF);
/// A watched inode was removed or moved.
const GONE: ReadFlags =
    ReadFlags::DELETE_SELF.union(ReadFlags::MOVE_SELF).union(ReadFlags::UNMOUNT).union(ReadFlags::IGNORED);

/// Why the whole directory has to be rescanned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RescanReason {
    /// The watch has just begun.
    Start,
    /// The kernel's queue overflowed, so events were lost.
    Overflow,
    /// The path resolves to another directory than before.
    Replaced,
    /// The path resolves to nothing.
    Removed,
    /// The path resolves to a directory again.
    Returned,
    /// The directory's mode or owner changed, so files that could not be read may now be readable.
    Attributes,
    /// The attributor changed its backend or lost events.
    Attributor,
}

/// Who changed which names of the watched directory.
pub type Actors = HashMap<OsString, Arc<Actor>>;

/// What a reader of the directory should do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchEvent {
    /// Read these names; other names have not changed.
    Hint(BTreeSet<OsString>),
    /// Read the whole directory.
    Rescan(RescanReason),
}

/// Watches what one path resolves to.
#[derive(Debug)]
pub struct DirectoryWatch {
    directory: PathBuf,
    queue: Queue,
    /// Readable when a mount of this mount namespace changes, because a mount over the directory causes no inotify
    /// event.
    mounts: Option<AsyncFd<File>>,
    main: Option<(Wd, DirectoryId)>,
    /// Where the path leads to; `None` if it leads to nothing, or the kernel does not report it.
    place: Option<DirectoryIdentity>,
    /// Directories along the path, with the names in them that decide where it resolves to.
    path: HashMap<Wd, HashSet<OsString>>,
    /// Directories on the way of symlinked files: the names in them, each with the names in the watched directory that
    /// depend on it.
    links: HashMap<Wd, HashMap<OsString, BTreeSet<OsString>>>,
    /// The identities of those directories.
    link_ids: HashMap<Wd, DirectoryId>,
    pending: Option<RescanReason>,
    /// Names to read, and for each the directory entry whose change caused it.
    hinted: BTreeMap<OsString, Option<DirectoryEntry>>,
    attributor: Attributor,
    /// The actors of the last event's changes, with the entries they changed.
    actors: HashMap<OsString, (DirectoryEntry, Arc<Actor>)>,
    /// The time at which the queue was empty, if the last read drained it.
    drained: Option<Instant>,
    /// Whether the directory was replaced during each attempt to watch it, so that it is resolved again before the next
    /// event is awaited.
    unsettled: bool,
    /// The path is being resolved.
    arming: Option<Arming>,
    /// The error if part of the path could not be watched, which makes the watch unusable.
    failed: Option<io::Error>,
}

impl DirectoryWatch {
    /// Watches `directory`, which need not exist yet. The first event is `Rescan(Start)`.
    ///
    /// # Errors
    /// The kernel refuses an inotify instance (`EMFILE`: `fs.inotify.max_user_instances`) or a watch
    /// (`ENOSPC`: `fs.inotify.max_user_watches`).
    pub async fn new(directory: &Path) -> io::Result<Self> {
        Self::with_attribution(directory, WatchSettings::default(), None).await
    }

    /// The same, with attribution as far as it works here; a feed may come later.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub async fn with_attribution(
        directory: &Path,
        settings: WatchSettings,
        feeds: Option<mpsc::Receiver<Feed>>,
    ) -> io::Result<Self> {
        let mounts = File::open("/proc/self/mountinfo")
            .and_then(|file| inotify::register(file, Interest::PRIORITY.add(Interest::ERROR)))
            .inspect_err(|error| tracing::warn!(%error, "watching mount changes in /proc/self/mountinfo failed"))
            .ok();
        let mut watch = Self {
            directory: std::path::absolute(directory)?,
            queue: Queue::new()?,
            mounts,
            main: None,
            place: None,
            path: HashMap::new(),
            links: HashMap::new(),
            link_ids: HashMap::new(),
            pending: Some(RescanReason::Start),
            hinted: BTreeMap::new(),
            attributor: Attributor::new(settings, feeds),
            actors: HashMap::new(),
            drained: None,
            unsettled: false,
            arming: None,
            failed: None,
        };
        watch.arm_first().await;
        watch.pending = Some(RescanReason::Start);
        watch.take_failure().map_or(Ok(watch), Err)
    }

    /// The next event. Everything that the kernel has queued is combined in it.
    ///
    /// Cancel safe: an event is either returned or still to come.
    ///
    /// # Errors
    /// Reading the kernel's queue failed, or what the path resolves to now cannot be watched; the watch is unusable.
    pub async fn next(&mut self) -> io::Result<WatchEvent> {
        loop {
            if self.unsettled {
                // A process that swaps directories endlessly may need this CPU.
                tokio::task::yield_now().await;
                self.begin_arming(false);
            }
            if self.arming.is_some() {
                self.finish_arming().await;
            }
            if let Some(error) = self.take_failure() {
                return Err(error);
            }
            if self.pending.is_some() || !self.hinted.is_empty() {
                self.attribute().await;
                let names = std::mem::take(&mut self.hinted).into_keys().collect();
                return Ok(self.pending.take().map_or(WatchEvent::Hint(names), WatchEvent::Rescan));
            }
            tokio::select! {
                drained = self.queue.drain() => {
                    let (changes, all) = drained?;
                    self.drained = all.then(Instant::now);
                    self.process(changes);
                }
                completeness = self.attributor.read_events() => self.rescan_if_lost(completeness),
                () = mounts_changed(self.mounts.as_ref()) => {
                    if !self.leads_where_it_did() {
                        self.begin_arming(false);
                    }
                }
            }
        }
    }

    /// Whether the path certainly leads where it led to. Mounts change often elsewhere: runc mounts its own executable
    /// for each command that it runs in a container.
    fn leads_where_it_did(&self) -> bool {
        self.place.is_some() && DirectoryIdentity::of_cached(&self.directory) == self.place
    }

    /// Why the watch is unusable, if it is.
    pub fn take_failure(&mut self) -> Option<io::Error> {
        self.failed.take()
    }

    /// Removes a watch if nothing needs it any more.
    fn release(&mut self, wd: Wd) {
        let needed = self.main.is_some_and(|(main, _)| main == wd)
            || self.path.contains_key(&wd)
            || self.links.contains_key(&wd);
        if !needed {
            self.queue.remove(wd);
        }
    }

    /// Turns drained events into names to read, and a pending rescan when one is due.
    fn process(&mut self, changes: Vec<Change>) {
        let mut recheck = false;
        for change in changes {
            if change.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                self.pending = Some(RescanReason::Overflow);
                recheck = true;
                continue;
            }
            let is_main = self.main.is_some_and(|(main, _)| main == change.wd);
            let gone = change.flags.intersects(GONE);
            if let Some(decisive) = self.path.get(&change.wd) {
                recheck |= gone || change.name.as_ref().is_some_and(|name| decisive.contains(name));
            }
            recheck |= is_main && gone;
            if is_main && change.flags.contains(ReadFlags::IGNORED) {
                // The watch is dead even if the same inode number is back.
                self.main = self.main.map(|(_, id)| (Wd::NONE, id));
            }
            if is_main && change.name.is_none() && change.flags.contains(ReadFlags::ATTRIB) {
                self.pending.get_or_insert(RescanReason::Attributes);
            }
            self.hint(&change, is_main, gone);
        }
        if recheck {
            self.begin_arming(true);
        }
    }

    fn hint(&mut self, change: &Change, is_main: bool, gone: bool) {
        let followed = self.links.get(&change.wd);
        let Some(name) = &change.name else {
            if let (true, Some(followed)) = (gone, followed) {
                self.hinted.extend(followed.values().flatten().map(|name| (name.clone(), None)));
            }
            return;
        };
        if change.flags.contains(ReadFlags::CREATE) && !change.flags.contains(ReadFlags::ISDIR) {
            // A regular file that was just created is still being written; its close is the event to act on.
            let directory = self.queue.path(change.wd).unwrap_or(&self.directory);
            if !complete_at_creation(&directory.join(name)) {
                return;
            }
        }
        let id = self.link_ids.get(&change.wd).copied().or(self.main.filter(|_| is_main).map(|(_, id)| id));
        let entry = id.map(|id| (id, name.clone()));
        let dependents = followed.and_then(|followed| followed.get(name)).into_iter().flatten();
        for name in dependents.chain((is_main && !change.flags.contains(ReadFlags::ISDIR)).then_some(name)) {
            let known = self.hinted.entry(name.clone()).or_default();
            *known = entry.clone().or(known.take());
        }
    }
}

/// Symlinks and hard links hold their content when they appear, and no close follows. A name that was just created is
/// cached; one that is not, on a slow file system, is read to see.
fn complete_at_creation(path: &Path) -> bool {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED) {
        Ok(opened) => {
            let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
            let stat = statx(opened, c"", flags, StatxFlags::TYPE | StatxFlags::NLINK);
            stat.is_ok_and(|stat| FileType::from_raw_mode(stat.stx_mode.into()).is_symlink() || stat.stx_nlink > 1)
        }
        Err(Errno::AGAIN) => true,
        // Linux before 5.12.
        Err(Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
            path.symlink_metadata().is_ok_and(|metadata| metadata.is_symlink() || metadata.nlink() > 1)
        }
        Err(_) => false,
    }
}

/// Resolves when the mount table has changed; never resolves if it cannot be watched.
async fn mounts_changed(mounts: Option<&AsyncFd<File>>) {
    let Some(mounts) = mounts else { return std::future::pending().await };
    match mounts.ready(Interest::PRIORITY.add(Interest::ERROR)).await {
        Ok(mut guard) => guard.clear_ready_matching(Ready::PRIORITY | Ready::ERROR),
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
