//! The attributor: which process made each change that inotify reports.
//!
//! It decides nothing. inotify reports *that* something changed. When that change is handled, the attributor looks up
//! its own event for the name, and waits briefly if it has not arrived yet. A backend that fails, or reports nothing
//! while files change, is replaced by the next best one, or finally by none. The directory is then rescanned, and no
//! change is missed, because none depends on attribution.

mod marks;

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, io};

use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::fanotify::{Drained, Fanotify, Marked, Seen};
use crate::active_backend::ActiveBackend;
use crate::feed::Feed;
use limpet_model::actor::Actor;
use limpet_model::attribution::{Backend, ManifestWatch, WatchSettings};
use limpet_model::directory_id::DirectoryId;

/// How long the handling of a change waits for the backend's next event. Both sources report within microseconds.
const NEXT_EVENT_TIMEOUT: Duration = Duration::from_millis(5);
/// How long it waits for the first event, because a BPF program may have been interrupted before it reported.
const FIRST_EVENT_TIMEOUT: Duration = Duration::from_millis(50);
/// How long it waits at most while the backend is still reporting earlier changes.
const BACKLOG_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a record that was used may also stand for a further change of the name, because the backend may have
/// reported both before the first was handled.
const REUSE_WINDOW: Duration = Duration::from_secs(1);
/// How many changes in a row come without an event before the marks are checked.
const CHECK_MARKS_AFTER: u32 = 3;
/// How many come without one before the backend is replaced.
const REPLACE_AFTER: u32 = 8;
/// How many names have a record: as many events as the kernel queues.
const MAX_NAMES: usize = 16_384;

/// A name in a directory.
pub type DirectoryEntry = (DirectoryId, OsString);

/// The last change of a name that the backend reported.
#[derive(Debug)]
struct LastChange {
    actor: Arc<Actor>,
    /// Whether it was looked up already.
    used: bool,
    at: Instant,
}

impl LastChange {
    /// Whether it may be the change that is being handled. Changes made before it was reported may still wait to be
    /// handled as long as the watch has not caught up.
    fn may_apply(&self, caught_up: Instant) -> bool {
        !self.used || self.at > caught_up || self.at.elapsed() < REUSE_WINDOW
    }
}

/// Whether all events have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Completeness {
    /// All events so far have been read.
    Complete,
    /// Events may have been lost.
    EventsLost,
}

/// The attributor of one watch.
#[derive(Debug)]
pub struct Attributor {
    settings: WatchSettings,
    /// Feeds that may come later, because programs are loaded only once pods run.
    feeds: Option<mpsc::Receiver<Feed>>,
    active: ActiveBackend,
    /// The directories to report on, the watched one first.
    directories: Vec<(PathBuf, DirectoryId)>,
    /// The call on a blocking thread that is setting fanotify's marks.
    marking: Option<JoinHandle<Vec<Marked>>>,
    /// Whether other marks are wanted than those being set.
    mark_again: bool,
    last_changes: HashMap<DirectoryEntry, LastChange>,
    /// The time before which all changes have been handled.
    caught_up: Instant,
    /// How many changes in a row came without an event.
    silent: u32,
    /// Why no backend is active, as last logged.
    logged_reason: String,
}

impl Attributor {
    /// Starts the best available backend that `settings` allow.
    pub fn new(settings: WatchSettings, feeds: Option<mpsc::Receiver<Feed>>) -> Self {
        let mut attributor = Self {
            settings,
            feeds,
            active: ActiveBackend::InotifyOnly,
            directories: Vec::new(),
            marking: None,
            mark_again: false,
            last_changes: HashMap::new(),
            caught_up: Instant::now(),
            silent: 0,
            logged_reason: String::new(),
        };
        attributor.select_backend();
        attributor
    }

    /// The active backend.
    pub fn backend(&self) -> Backend {
        match self.active {
            ActiveBackend::InotifyOnly => Backend::Inotify,
            ActiveBackend::Fanotify(_) => Backend::Fanotify,
            ActiveBackend::Ebpf { .. } => Backend::Ebpf,
        }
    }

    fn select_backend(&mut self) {
        let wanted = match self.settings.wanted {
            ManifestWatch::Inotify => return self.settings.observer.watching(Backend::Inotify, None),
            ManifestWatch::Ebpf => {
                tracing::warn!(
                    "manifestWatch: ebpf: the BPF programs are not loaded yet; until then fanotify reports who changes manifests"
                );
                Some(Backend::Ebpf)
            }
            ManifestWatch::Auto | ManifestWatch::Fanotify => None,
        };
        match Fanotify::new() {
            Ok(fanotify) => {
                self.active = ActiveBackend::Fanotify(fanotify);
                self.settings.observer.watching(Backend::Fanotify, wanted);
            }
            Err(error) => self.use_inotify_only(&error),
        }
    }

    /// Uses no backend, because none works: changes are reported without an actor.
    fn use_inotify_only(&mut self, reason: &dyn fmt::Display) {
        let reason = reason.to_string();
        match self.settings.wanted {
            _ if reason == self.logged_reason => {}
            ManifestWatch::Auto => {
                tracing::info!(%reason, "fanotify does not work here: who changes a manifest is not known");
            }
            wanted => tracing::warn!(
                %reason, manifest_watch = wanted.as_str(),
                "fanotify does not work here: inotify watches the manifests, and who changes one is not known"
            ),
        }
        self.logged_reason = reason;
        self.activate(ActiveBackend::InotifyOnly);
        self.last_changes = HashMap::new();
        self.settings.observer.watching(Backend::Inotify, Some(Backend::Fanotify));
    }

    /// Switches to the next best backend, because the active one failed.
    fn fall_back(&mut self, reason: &dyn fmt::Display) {
        self.silent = 0;
        let lost = self.backend();
        let next = match lost {
            Backend::Ebpf => Fanotify::new(),
            _ => return self.use_inotify_only(reason),
        };
        match next {
            Ok(fanotify) => {
                tracing::warn!(%reason, "the BPF programs that report who changes manifests failed; falling back to fanotify");
                self.activate(ActiveBackend::Fanotify(fanotify));
                self.settings.observer.watching(Backend::Fanotify, Some(lost));
                self.update_marks();
            }
            Err(error) => self.use_inotify_only(&error),
        }
    }

    /// Switches to BPF programs, which have been loaded.
    fn use_feed(&mut self, feed: Feed) {
        if matches!(self.settings.wanted, ManifestWatch::Auto | ManifestWatch::Ebpf) {
            tracing::info!("BPF programs report who changes manifests");
            self.activate(ActiveBackend::ebpf(feed));
            self.settings.observer.watching(Backend::Ebpf, None);
            self.update_marks();
        }
    }

    /// Reports on these directories from now on; the first is the watched one. [`Self::marked`] waits until it does.
    pub fn set_directories(&mut self, directories: Vec<(PathBuf, DirectoryId)>) {
        if self.directories != directories {
            self.directories = directories;
            self.last_changes.retain(|(directory, _), _| self.directories.iter().any(|(_, id)| id == directory));
            self.retry_fanotify();
        }
        self.update_marks();
    }

    /// Tries fanotify again: it may have been refused only for the previous directory.
    fn retry_fanotify(&mut self) {
        if matches!(self.active, ActiveBackend::InotifyOnly)
            && self.settings.wanted != ManifestWatch::Inotify
            && let Ok(fanotify) = Fanotify::new()
        {
            self.activate(ActiveBackend::Fanotify(fanotify));
            self.settings.observer.watching(Backend::Fanotify, None);
        }
    }

    /// Replaces the active backend, whose marks are no longer waited for.
    fn activate(&mut self, backend: ActiveBackend) {
        self.active = backend;
        (self.marking, self.mark_again) = (None, false);
    }

    /// Resolves when events were read, or another backend became active. Cancel safe.
    pub async fn read_events(&mut self) -> Completeness {
        let observer = &*self.settings.observer;
        let drained = tokio::select! {
            drained = self.active.read_events(observer) => drained,
            feed = next_feed(&mut self.feeds) => {
                self.use_feed(feed);
                return Completeness::EventsLost;
            }
            marked = marks::next_marks(&mut self.marking) => {
                self.take_marks(marked);
                return Completeness::Complete;
            }
        };
        self.record_all(drained)
    }

    fn read_pending(&mut self) -> Completeness {
        let drained = self.active.read_pending(&*self.settings.observer);
        self.record_all(drained)
    }

    fn record_all(&mut self, drained: io::Result<Drained>) -> Completeness {
        match drained {
            Ok(drained) => {
                let now = Instant::now();
                drained.seen.into_iter().for_each(|seen| self.record(seen, now));
                if drained.overflow {
                    // The records may describe a later change than the one handled next.
                    self.last_changes = HashMap::new();
                    return Completeness::EventsLost;
                }
                Completeness::Complete
            }
            Err(error) => {
                self.fall_back(&error);
                Completeness::EventsLost
            }
        }
    }

    fn record(&mut self, seen: Seen, now: Instant) {
        if seen.actor.resident.is_some() {
            self.settings.observer.pod_wrote(&seen.name, &seen.actor);
        }
        self.silent = 0;
        if self.last_changes.len() >= MAX_NAMES {
            self.last_changes = HashMap::new();
        }
        let change = LastChange { actor: seen.actor, used: false, at: now };
        let entry = (seen.directory, seen.name);
        // A process that changes the mode of a file that another process has just written has not written it.
        if !(seen.attributes_only && self.last_changes.get(&entry).is_some_and(|known| !known.used)) {
            self.last_changes.insert(entry, change);
        }
    }

    /// Waits for an event on each of `entries`, unless none is expected. Cancel safe.
    pub async fn wait_for(&mut self, entries: &[&DirectoryEntry]) -> Completeness {
        let mut read = self.read_pending();
        let (began, progress) = (Instant::now(), self.active.progress());
        while read == Completeness::Complete && entries.iter().any(|entry| self.is_expected(entry)) {
            let silent = tokio::select! {
                biased;
                completeness = self.read_events() => {
                    read = completeness;
                    false
                }
                () = sleep(NEXT_EVENT_TIMEOUT) => true,
            };
            if read == Completeness::Complete && self.is_settled(entries, progress, silent, began.elapsed()) {
                read = self.read_pending();
                return if read == Completeness::Complete { self.check_silence(entries) } else { read };
            }
        }
        read
    }

    /// Whether no further event is expected. `began` is the progress when the wait began; `silent`: the last wait
    /// timed out.
    fn is_settled(&self, entries: &[&DirectoryEntry], began: u64, silent: bool, waited: Duration) -> bool {
        let now = self.active.progress();
        // Either all that was pending at that time has been reported, or nothing is being reported now.
        let all = now >= began + 2 - began % 2 || (silent && now.is_multiple_of(2));
        let missing = entries.iter().any(|entry| self.last_change(entry).is_none());
        waited > BACKLOG_TIMEOUT || (all && (!missing || waited > FIRST_EVENT_TIMEOUT))
    }

    /// Whether an event on the entry may still come.
    fn is_expected(&self, entry: &DirectoryEntry) -> bool {
        let watched = match &self.active {
            ActiveBackend::InotifyOnly => false,
            ActiveBackend::Fanotify(fanotify) => fanotify.has_mark(&entry.0),
            ActiveBackend::Ebpf { .. } => true,
        };
        watched && self.last_changes.get(entry).is_none_or(|change| change.used)
    }

    /// Counts changes without an event. One may be chance, several in a row mean that the backend does not work.
    fn check_silence(&mut self, entries: &[&DirectoryEntry]) -> Completeness {
        if entries.iter().any(|entry| self.last_change(entry).is_some()) {
            return Completeness::Complete;
        }
        self.silent += 1;
        if self.silent >= REPLACE_AFTER {
            self.fall_back(&"it reports no events");
            return Completeness::EventsLost;
        }
        if self.silent >= CHECK_MARKS_AFTER
            && let ActiveBackend::Fanotify(fanotify) = &self.active
            && entries.iter().any(|(directory, _)| !fanotify.is_marked(directory))
        {
            tracing::warn!("fanotify lost its marks; they are added again");
            self.update_marks();
            self.silent = 0;
            return Completeness::EventsLost;
        }
        Completeness::Complete
    }

    fn last_change(&self, entry: &DirectoryEntry) -> Option<&LastChange> {
        self.last_changes.get(entry).filter(|change| change.may_apply(self.caught_up))
    }

    /// Who made the change of `entry` that is being handled.
    pub fn actor_of(&mut self, entry: &DirectoryEntry) -> Option<Arc<Actor>> {
        let actor = self.last_change(entry).map(|change| Arc::clone(&change.actor));
        self.last_changes.entry(entry.clone()).and_modify(|change| change.used = true);
        actor
    }

    /// Who made the changes in `directory` that are being handled, by name.
    pub fn actors_in(&mut self, directory: DirectoryId) -> HashMap<OsString, Arc<Actor>> {
        let unused = self.last_changes.iter_mut().filter(|((id, _), change)| *id == directory && !change.used);
        let actors = unused.map(|((_, name), change)| {
            change.used = true;
            (name.clone(), Arc::clone(&change.actor))
        });
        actors.collect()
    }

    /// Whether another actor has changed the entry since then.
    pub fn is_superseded(&mut self, entry: &DirectoryEntry, actor: &Arc<Actor>) -> bool {
        // Events lost here cost only an actor, never a change.
        let _ = self.read_pending();
        self.last_changes.get(entry).is_some_and(|change| !change.used && change.actor != *actor)
    }

    /// Records that all changes until then have been handled.
    pub fn set_caught_up(&mut self, until: Instant) {
        self.caught_up = until;
    }

    /// Drops records that were used and cannot apply to a further change.
    pub fn prune(&mut self) {
        let caught_up = self.caught_up;
        self.last_changes.retain(|_, change| change.may_apply(caught_up));
        if self.last_changes.is_empty() {
            self.last_changes = HashMap::new();
        }
    }

    /// Whether the last changes came without events.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn is_silent(&self) -> bool {
        self.silent > 0
    }

    /// Behaves as if the kernel had removed fanotify's marks.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn lose_marks(&self) {
        if let ActiveBackend::Fanotify(fanotify) = &self.active {
            fanotify.lose_marks();
        }
    }
}

/// The next feed that is offered; never resolves if none will be.
async fn next_feed(feeds: &mut Option<mpsc::Receiver<Feed>>) -> Feed {
    if let Some(offered) = feeds {
        if let Some(feed) = offered.recv().await {
            return feed;
        }
        *feeds = None;
    }
    std::future::pending().await
}
