//! Places the watches: along the path of the directory, and along those of symlinked manifests.
//!
//! Resolving a path may wait for a file system that does not answer, so it is done on a blocking thread, with a
//! deadline. The watch keeps the call: a waiter for an event may be dropped meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::trail::{self, Trail};
use super::{DirectoryWatch, ITSELF, NAMES, RescanReason};
use limpet_host::blocking::{self, DEADLINE, Progress};
use limpet_host::directory::{DirectoryIdentity, directory_id};
use limpet_host::inotify::{WatchAdder, Wd};
use limpet_model::directory_id::DirectoryId;

/// How often a path that keeps changing under the watch is resolved again before the next event is awaited.
const SETTLE_ROUNDS: usize = 4;

/// The path being resolved.
pub(super) struct Arming {
    call: BoxFuture<'static, io::Result<Armed>>,
    /// Whether an event requested it, so that files of another directory may have been read meanwhile.
    by_event: bool,
}

impl fmt::Debug for Arming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arming").field("by_event", &self.by_event).finish_non_exhaustive()
    }
}

/// What was watched along the path.
#[derive(Debug, Default)]
struct Armed {
    /// Directories along the path, with the name in them that decides where it resolves to.
    path: Vec<(Wd, PathBuf, Option<OsString>)>,
    main: Option<(Wd, PathBuf, DirectoryId)>,
    /// Where the path led to, if that was the same before and after it was resolved. `None` also if a symlink is on the
    /// way, because it may have been another one meanwhile.
    place: Option<DirectoryIdentity>,
    /// The watches of rounds that were overtaken by a replacement.
    overtaken: Vec<Wd>,
    unsettled: bool,
    failure: Option<io::Error>,
}

impl Armed {
    fn failed(error: io::Error) -> Self {
        Self { failure: Some(error), ..Self::default() }
    }
}

/// What was watched on the way of symlinked files.
#[derive(Debug, Default)]
struct SymlinkWatches {
    steps: Vec<(Wd, WatchedStep)>,
    failure: Option<io::Error>,
}

#[derive(Debug)]
struct WatchedStep {
    directory: PathBuf,
    id: Option<DirectoryId>,
    name: OsString,
    dependents: BTreeSet<OsString>,
}

impl DirectoryWatch {
    /// Resolves the path again and rescans if it leads elsewhere.
    pub async fn recheck(&mut self) {
        self.finish_arming().await;
        self.begin_arming(false);
        self.finish_arming().await;
    }

    /// Begins to watch the directories along the path and its end as they are now; watches that stay lose no event.
    pub(super) fn begin_arming(&mut self, by_event: bool) {
        let by_event = by_event || self.arming.take().is_some_and(|arming| arming.by_event);
        self.unsettled = false;
        let directory = self.directory.clone();
        match self.queue.adder() {
            Ok(adder) => {
                let call = blocking::run(directory.clone(), DEADLINE, move |_| arm(&adder, &directory)).boxed();
                self.arming = Some(Arming { call, by_event });
            }
            Err(error) => self.failed = Some(error),
        }
    }

    /// Waits until the path is resolved for the first time. Who makes changes is read only after that: a backend that
    /// takes over requests its own rescan.
    pub(super) async fn arm_first(&mut self) {
        self.begin_arming(false);
        if let Some(arming) = self.arming.take() {
            let armed = arming.call.await;
            self.apply(armed.unwrap_or_else(Armed::failed), false);
            self.attributor.marked().await;
        }
    }

    /// Waits until the path is resolved, and reads meanwhile who makes changes. Cancel safe.
    pub(super) async fn finish_arming(&mut self) {
        while let Some(arming) = &mut self.arming {
            tokio::select! {
                armed = &mut arming.call => {
                    let by_event = self.arming.take().is_some_and(|arming| arming.by_event);
                    self.apply(armed.unwrap_or_else(Armed::failed), by_event);
                    self.attributor.marked().await;
                }
                completeness = self.attributor.read_events() => self.rescan_if_lost(completeness),
            }
        }
    }

    fn apply(&mut self, armed: Armed, by_event: bool) {
        let before = self.main;
        let old: Vec<Wd> = self.path.drain().map(|(wd, _)| wd).chain(before.map(|(wd, _)| wd)).collect();
        for (wd, directory, decides) in armed.path {
            self.queue.add_path(wd, directory);
            self.path.entry(wd).or_default().extend(decides);
        }
        self.main = armed.main.map(|(wd, directory, id)| {
            self.queue.add_path(wd, directory);
            (wd, id)
        });
        self.place = armed.place;
        for wd in old.into_iter().chain(armed.overtaken) {
            self.release(wd);
        }
        self.unsettled = armed.unsettled;
        self.failed = armed.failure;
        self.pending = match (before, self.main) {
            (None, Some(_)) => Some(RescanReason::Returned),
            (Some(_), None) => Some(RescanReason::Removed),
            (before, now) if before != now => Some(RescanReason::Replaced),
            _ => self.pending,
        };
        if by_event && self.main.is_some() {
            // Even if it is the same directory again, files of another one may have been read meanwhile.
            self.pending.get_or_insert(RescanReason::Replaced);
        }
        self.update_attributor();
    }

    /// Watches the targets of the symlinks `names` and the directories on their way, instead of those followed before.
    ///
    /// Returns whether a directory is newly watched: it may have changed before, so read the names again.
    pub async fn follow<'a>(&mut self, names: impl IntoIterator<Item = &'a OsStr>) -> bool {
        let (directory, names) = (self.directory.clone(), names.into_iter().map(OsStr::to_owned).collect::<Vec<_>>());
        let adder = match self.queue.adder() {
            Ok(adder) => adder,
            Err(error) => {
                self.failed = Some(error);
                return false;
            }
        };
        let subject = directory.join("symlinks");
        let work = move |progress: &Progress| follow(&adder, &directory, &names, progress);
        match blocking::run(subject, DEADLINE, work).await {
            Ok(followed) => {
                let read_again = self.apply_followed(followed);
                self.attributor.marked().await;
                read_again
            }
            Err(error) => {
                tracing::warn!(%error, "updating the watches of symlinked manifests failed; the earlier ones stay");
                false
            }
        }
    }

    fn apply_followed(&mut self, followed: SymlinkWatches) -> bool {
        let before = std::mem::take(&mut self.links);
        self.link_ids.clear();
        for (wd, step) in followed.steps {
            self.queue.add_path(wd, step.directory);
            self.links.entry(wd).or_default().entry(step.name).or_default().extend(step.dependents);
            self.link_ids.extend(step.id.map(|id| (wd, id)));
        }
        self.failed = followed.failure.or(self.failed.take());
        for wd in before.keys() {
            self.release(*wd);
        }
        self.update_attributor();
        self.links.keys().any(|wd| !before.contains_key(wd) && self.main.is_none_or(|(main, _)| main != *wd))
    }
}

/// Watches along the path of `directory`. Blocks.
fn arm(adder: &WatchAdder, directory: &Path) -> Armed {
    let mut armed = Armed::default();
    for _ in 0..SETTLE_ROUNDS {
        let place = DirectoryIdentity::resolve(directory);
        let trail = trail::resolve(directory);
        let path = armed.path.drain(..).map(|(wd, ..)| wd).chain(armed.main.take().map(|(wd, ..)| wd));
        let overtaken = std::mem::take(&mut armed.overtaken).into_iter().chain(path).collect();
        armed = Armed { overtaken, ..arm_trail(adder, &trail) };
        // A directory that was removed before it was watched sends no event: it has to be resolved again.
        armed.unsettled = armed.failure.is_none() && trail.end.is_some() != armed.main.is_some();
        // A watched directory sends an event when it is moved away.
        armed.place = place
            .filter(|before| trail.is_straight() && DirectoryIdentity::resolve(directory).as_ref() == Some(before));
        if !armed.unsettled && directory_id(directory).ok() == armed.main.as_ref().map(|(.., id)| *id) {
            break;
        }
    }
    armed
}

fn arm_trail(adder: &WatchAdder, trail: &Trail) -> Armed {
    let mut armed = Armed::default();
    let mut failure = None;
    for step in &trail.steps {
        // A step that is neither a symlink nor missing changes only when the directory itself moves away.
        let decides = step.link || !step.directory_follows;
        let mask = if decides { ITSELF | NAMES } else { ITSELF };
        match adder.add(&step.directory, mask) {
            Ok(wd) => armed.path.push((wd, step.directory.clone(), decides.then(|| step.name.clone()))),
            Err(error) => failure = Some(error),
        }
    }
    if let Some(end) = &trail.end {
        match directory_id(end).and_then(|id| Ok((adder.add(end, NAMES | ITSELF)?, end.clone(), id))) {
            Ok(main) => armed.main = Some(main),
            Err(error) => failure = Some(error),
        }
    }
    // A directory removed in between is reported by its parent, which is watched.
    armed.failure = failure.filter(|error| !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory));
    armed
}

/// Watches on the way of the symlinks `names` in `directory`. Blocks.
fn follow(adder: &WatchAdder, directory: &Path, names: &[OsString], progress: &Progress) -> SymlinkWatches {
    let mut steps: BTreeMap<(PathBuf, OsString), BTreeSet<OsString>> = BTreeMap::new();
    for name in names {
        progress.at(&directory.join(name));
        for step in trail::from(directory, name).steps {
            steps.entry((step.directory, step.name)).or_default().insert(name.to_owned());
        }
    }
    let mut followed = SymlinkWatches::default();
    for ((directory, name), dependents) in steps {
        progress.at(&directory);
        match adder.add(&directory, NAMES | ITSELF) {
            Ok(wd) => {
                let id = directory_id(&directory).ok();
                followed.steps.push((wd, WatchedStep { directory, id, name, dependents }));
            }
            Err(error) if error.kind() == ErrorKind::StorageFull => followed.failure = Some(error),
            Err(error) => {
                tracing::warn!(%error, directory = %directory.display(), "watching the target of a symlinked manifest failed");
            }
        }
    }
    followed
}
