//! Who did it: what stands beside inotify and knows the process behind each change.
//!
//! A attributor decides nothing. inotify says *that* something changed; when that is handled, what the attributor has seen
//! of the name is looked up, and waited for a moment if it has not spoken yet. A attributor that fails, or falls silent
//! while things change, is replaced by the next best, down to none; the directory is read anew then, and nothing is
//! missed, because nothing depends on it.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};

use super::fanotify::{Drained, Fanotify, Seen};
use crate::active_backend::ActiveBackend;
use crate::feed::Feed;
use limpet_model::actor::Actor;
use limpet_model::attribution::ManifestWatch;
use limpet_model::attribution::{Backend, WatchSettings};
use limpet_model::directory_id::DirectoryId;

/// How long a change that is handled waits for the attributor's word. Both hear of it within microseconds.
const PATIENCE: Duration = Duration::from_millis(5);
/// How long it waits for a first word: a program may have been interrupted before it told.
const INTERRUPTED: Duration = Duration::from_millis(50);
/// How long it waits at most while the attributor still tells of earlier ones.
const BACKLOG: Duration = Duration::from_secs(2);
/// A word that was used may stand for a further change of the name for so long: the attributor may have heard of both before
/// the first was handled.
const LINGERS: Duration = Duration::from_secs(1);
/// After so many changes of which the attributor says nothing, it is asked whether it still has its marks.
const SUSPICIOUS: u32 = 3;
/// After so many, it is given up.
const MUTE: u32 = 8;
/// Names of which a word is kept; as many as the kernel queues.
const MOST_NAMES: usize = 16_384;

/// What something was done to: a name in a directory.
pub type Place = (DirectoryId, OsString);

/// The last word on a name.
#[derive(Debug)]
struct Word {
    actor: Arc<Actor>,
    /// It was asked for already.
    used: bool,
    at: Instant,
}

impl Word {
    /// Whether what is handled now may be what it is about. Changes that were made before it was heard may still wait to be
    /// handled, as long as the watch has not caught up.
    fn may_stand(&self, caught_up: Instant) -> bool {
        !self.used || self.at > caught_up || self.at.elapsed() < LINGERS
    }
}

/// What came of looking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outlook {
    /// Whatever there was to see is known.
    Seen,
    /// Something may have been missed.
    Lost,
}

/// The attributor of one watch.
#[derive(Debug)]
pub struct Attributor {
    settings: WatchSettings,
    /// Feeds that may come later: programs are loaded once pods run.
    feeds: Option<mpsc::Receiver<Feed>>,
    active: ActiveBackend,
    /// The directories to look at, the watched one first.
    directories: Vec<(PathBuf, DirectoryId)>,
    words: HashMap<Place, Word>,
    /// All that was done before has been handled.
    caught_up: Instant,
    silent: u32,
    /// Why nobody is at work, as it was told.
    told: String,
}

impl Attributor {
    /// Whether it is told of changes of mode, owner and times alone: the programs look at names and contents.
    pub fn tells_attributes(&self) -> bool {
        !matches!(self.active, ActiveBackend::Ebpf { .. })
    }

    /// The best there is of what is wanted.
    pub fn new(settings: WatchSettings, feeds: Option<mpsc::Receiver<Feed>>) -> Self {
        let mut attributor = Self {
            settings,
            feeds,
            active: ActiveBackend::Nobody,
            directories: Vec::new(),
            words: HashMap::new(),
            caught_up: Instant::now(),
            silent: 0,
            told: String::new(),
        };
        attributor.choose();
        attributor
    }

    /// What is at work.
    pub fn backend(&self) -> Backend {
        match self.active {
            ActiveBackend::Nobody => Backend::Inotify,
            ActiveBackend::Fanotify(_) => Backend::Fanotify,
            ActiveBackend::Ebpf { .. } => Backend::Ebpf,
        }
    }

    fn choose(&mut self) {
        let wanted = match self.settings.wanted {
            ManifestWatch::Inotify => return self.settings.onlooker.watching(Backend::Inotify, None),
            ManifestWatch::Ebpf => {
                tracing::warn!(
                    "manifestWatch: ebpf: its programs are not loaded; fanotify tells who changes manifests meanwhile"
                );
                Some(Backend::Ebpf)
            }
            ManifestWatch::Auto | ManifestWatch::Fanotify => None,
        };
        match Fanotify::new() {
            Ok(fanotify) => {
                self.active = ActiveBackend::Fanotify(fanotify);
                self.settings.onlooker.watching(Backend::Fanotify, wanted);
            }
            Err(error) => self.nobody(&error),
        }
    }

    /// The last one has failed, too.
    fn nobody(&mut self, reason: &dyn fmt::Display) {
        let reason = reason.to_string();
        match self.settings.wanted {
            _ if reason == self.told => {}
            ManifestWatch::Auto => {
                tracing::info!(%reason, "fanotify does not work here: who changes a manifest is not known");
            }
            wanted => tracing::warn!(
                %reason, manifest_watch = wanted.as_str(),
                "fanotify does not work here: inotify watches the manifests, and who changes one is not known"
            ),
        }
        self.told = reason;
        self.active = ActiveBackend::Nobody;
        self.words = HashMap::new();
        self.settings.onlooker.watching(Backend::Inotify, Some(Backend::Fanotify));
    }

    /// What is at work is not of use any more: the next best takes its place.
    fn replace(&mut self, reason: &dyn fmt::Display) {
        self.silent = 0;
        let lost = self.backend();
        let next = match lost {
            Backend::Ebpf => Fanotify::new(),
            _ => return self.nobody(reason),
        };
        match next {
            Ok(fanotify) => {
                tracing::warn!(%reason, "the programs that tell who changes manifests are gone, fanotify takes over");
                self.active = ActiveBackend::Fanotify(fanotify);
                self.settings.onlooker.watching(Backend::Fanotify, Some(lost));
                self.mark();
            }
            Err(error) => self.nobody(&error),
        }
    }

    /// Programs are there now.
    fn take(&mut self, feed: Feed) {
        if matches!(self.settings.wanted, ManifestWatch::Auto | ManifestWatch::Ebpf) {
            tracing::info!("BPF programs tell who changes manifests");
            self.active = ActiveBackend::ebpf(feed);
            self.settings.onlooker.watching(Backend::Ebpf, None);
            self.mark();
        }
    }

    /// Looks at these directories from now on, the first of which is the watched one.
    pub fn look_at(&mut self, directories: Vec<(PathBuf, DirectoryId)>) {
        if self.directories != directories {
            self.directories = directories;
            self.words.retain(|(directory, _), _| self.directories.iter().any(|(_, id)| id == directory));
            self.try_again();
        }
        self.mark();
    }

    /// What was refused for the directory that was there may be had for the one that is there now.
    fn try_again(&mut self) {
        if matches!(self.active, ActiveBackend::Nobody)
            && self.settings.wanted != ManifestWatch::Inotify
            && let Ok(fanotify) = Fanotify::new()
        {
            self.active = ActiveBackend::Fanotify(fanotify);
            self.settings.onlooker.watching(Backend::Fanotify, None);
        }
    }

    fn mark(&mut self) {
        let directories = &self.directories;
        match &mut self.active {
            ActiveBackend::Nobody => {}
            ActiveBackend::Ebpf { feed, .. } => {
                let wanted: BTreeSet<DirectoryId> = directories.iter().map(|(_, id)| *id).collect();
                feed.directories.send_if_modified(|now| std::mem::replace(now, wanted.clone()) != wanted);
            }
            ActiveBackend::Fanotify(fanotify) => {
                fanotify.keep_only(|marked| directories.iter().any(|(_, id)| id == marked));
                for (index, (path, id)) in directories.iter().enumerate() {
                    match fanotify.mark(path, *id) {
                        Ok(()) => {}
                        // It went away in between, which inotify tells.
                        Err(error)
                            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                        Err(error) if index == 0 => {
                            let reason = format!("{}: {error}", path.display());
                            return self.replace(&reason);
                        }
                        Err(error) => {
                            tracing::debug!(%error, directory = %path.display(), "who changes files here is not known");
                        }
                    }
                }
            }
        }
    }

    /// Resolves when something was seen, or another backend is at work. Cancel safe.
    pub async fn look(&mut self) -> Outlook {
        let onlooker = &*self.settings.onlooker;
        let drained = tokio::select! {
            drained = self.active.look(onlooker) => drained,
            feed = next_feed(&mut self.feeds) => {
                self.take(feed);
                return Outlook::Lost;
            }
        };
        self.hear(drained)
    }

    fn look_now(&mut self) -> Outlook {
        let drained = self.active.look_now(&*self.settings.onlooker);
        self.hear(drained)
    }

    fn hear(&mut self, drained: io::Result<Drained>) -> Outlook {
        match drained {
            Ok(drained) => {
                let now = Instant::now();
                drained.seen.into_iter().for_each(|seen| self.note(seen, now));
                if drained.overflow {
                    // Words may be of another change than the next one that is handled.
                    self.words = HashMap::new();
                    return Outlook::Lost;
                }
                Outlook::Seen
            }
            Err(error) => {
                self.replace(&error);
                Outlook::Lost
            }
        }
    }

    fn note(&mut self, seen: Seen, now: Instant) {
        if seen.actor.resident.is_some() {
            self.settings.onlooker.pod_wrote(&seen.name, &seen.actor);
        }
        self.silent = 0;
        if self.words.len() >= MOST_NAMES {
            self.words = HashMap::new();
        }
        let word = Word { actor: seen.actor, used: false, at: now };
        let place = (seen.directory, seen.name);
        // Whoever changes the mode of what another has just written has not written it.
        if !(seen.attributes_only && self.words.get(&place).is_some_and(|known| !known.used)) {
            self.words.insert(place, word);
        }
    }

    /// Sees to it that there is a word on each of `places`, as far as there will be one. Cancel safe.
    pub async fn settle(&mut self, places: &[&Place]) -> Outlook {
        let mut outlook = self.look_now();
        let (began, progress) = (Instant::now(), self.active.progress());
        while outlook == Outlook::Seen && places.iter().any(|place| self.is_awaited(place)) {
            let silent = tokio::select! {
                biased;
                seen = self.look() => {
                    outlook = seen;
                    false
                }
                () = sleep(PATIENCE) => true,
            };
            if outlook == Outlook::Seen && self.has_told(places, progress, silent, began.elapsed()) {
                outlook = self.look_now();
                return if outlook == Outlook::Seen { self.suspect(places) } else { outlook };
            }
        }
        outlook
    }

    /// Whether there will be no further word. `began`: the progress when the wait began; `silent`: nothing was just heard.
    fn has_told(&self, places: &[&Place], began: u64, silent: bool, waited: Duration) -> bool {
        let now = self.active.progress();
        // All that was to be told then has been told; or nothing is being told now.
        let all = now >= began + 2 - began % 2 || (silent && now.is_multiple_of(2));
        let unheard = places.iter().any(|place| self.word(place).is_none());
        waited > BACKLOG || (all && (!unheard || waited > INTERRUPTED))
    }

    /// Whether a word on the place may still come.
    fn is_awaited(&self, place: &Place) -> bool {
        let looked_at = match &self.active {
            ActiveBackend::Nobody => false,
            ActiveBackend::Fanotify(fanotify) => fanotify.has_mark(&place.0),
            ActiveBackend::Ebpf { .. } => true,
        };
        looked_at && self.words.get(place).is_none_or(|word| word.used)
    }

    /// Nothing was said of some of the places: once may be chance, again and again is silence.
    fn suspect(&mut self, places: &[&Place]) -> Outlook {
        if places.iter().any(|place| self.word(place).is_some()) {
            return Outlook::Seen;
        }
        self.silent += 1;
        if self.silent >= MUTE {
            self.replace(&"it has fallen silent");
            return Outlook::Lost;
        }
        if self.silent >= SUSPICIOUS
            && let ActiveBackend::Fanotify(fanotify) = &self.active
            && places.iter().any(|(directory, _)| !fanotify.is_marked(directory))
        {
            tracing::warn!("fanotify lost its marks; they are put anew");
            self.mark();
            self.silent = 0;
            return Outlook::Lost;
        }
        Outlook::Seen
    }

    fn word(&self, place: &Place) -> Option<&Word> {
        self.words.get(place).filter(|word| word.may_stand(self.caught_up))
    }

    /// Who did what is handled now.
    pub fn who(&mut self, place: &Place) -> Option<Arc<Actor>> {
        let actor = self.word(place).map(|word| Arc::clone(&word.actor));
        self.words.entry(place.clone()).and_modify(|word| word.used = true);
        actor
    }

    /// Everything known of names in `directory`, to be handled now.
    pub fn who_all(&mut self, directory: DirectoryId) -> HashMap<OsString, Arc<Actor>> {
        let of_directory = self.words.iter_mut().filter(|((place, _), word)| *place == directory && !word.used);
        let told = of_directory.map(|((_, name), word)| {
            word.used = true;
            (name.clone(), Arc::clone(&word.actor))
        });
        told.collect()
    }

    /// Whether somebody else has been at the place since.
    pub fn is_overtaken(&mut self, place: &Place, actor: &Arc<Actor>) -> bool {
        // What it loses here costs an actor and no change.
        let _ = self.look_now();
        self.words.get(place).is_some_and(|word| !word.used && word.actor != *actor)
    }

    /// Everything done until then has been handled.
    pub fn caught_up(&mut self, until: Instant) {
        self.caught_up = until;
    }

    /// Forgets what has been handled and can stand for nothing more.
    pub fn tidy(&mut self) {
        let caught_up = self.caught_up;
        self.words.retain(|_, word| word.may_stand(caught_up));
        if self.words.is_empty() {
            self.words = HashMap::new();
        }
    }

    /// Whether changes came of which it said nothing.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn is_silent(&self) -> bool {
        self.silent > 0
    }

    /// As if the kernel had taken fanotify's marks away.
    #[cfg(any(test, feature = "fixtures"))]
    pub fn lose_marks(&self) {
        if let ActiveBackend::Fanotify(fanotify) = &self.active {
            fanotify.lose_marks();
        }
    }
}

/// The next feed that is offered; never when none will be.
async fn next_feed(feeds: &mut Option<mpsc::Receiver<Feed>>) -> Feed {
    if let Some(offered) = feeds {
        if let Some(feed) = offered.recv().await {
            return feed;
        }
        *feeds = None;
    }
    std::future::pending().await
}
