//! The file source: a directory of manifests, or one file, as kubelet's `staticPodPath`.
//!
//! In: the directory, hints from [`crate::watch`], last good manifests from [`crate::store`]. Out: snapshots.
//! Events are hints: what they name is looked at, and read if it changed; the directory is listed at the start, when
//! it is replaced, when events were lost, to confirm that a name is gone, and every few minutes in case a file
//! system told nothing. What appears acts at once; a name that vanished waits a moment, because editors rename a
//! file away before they write it. Nothing unreadable, missing or broken ever stops a pod. What is accepted or refused
//! carries who did it, where the watch knows.

mod at_hand;
mod look;
mod names;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::attribution::Feed;
use crate::source::Pulse;
use crate::source::keep::Keeper;
use crate::store::Store;
use crate::watch::DirectoryWatch;
use jiff::Timestamp;
use limpet_core::last_good::LastGood;
use limpet_core::source::change::ChangeLog;
use limpet_core::source::rejection_log::RejectionLog;
use limpet_core::source::view::{Contents, View};
use limpet_core::source::{Decoder, Health, SourceSnapshot};
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchSettings;
use limpet_model::directory_id::DirectoryId;
use limpet_model::manifest::Manifest;
use limpet_model::source::SourceKind;
pub use look::read_all;
use look::{Finding, KnownFiles, Listing, Look, Place};
use watching::{listen, next_event};

/// How long a vanished name waits for its successor.
const VANISH: Duration = Duration::from_millis(50);

/// How often everything is looked at although nothing was told.
#[derive(Debug, Clone, Copy)]
struct Pace {
    /// While the kernel tells of changes.
    watched: Duration,
    /// While it does not, or where changes can be made that the kernel does not see.
    blind: Duration,
}

/// The second one is kubelet's `fileCheckFrequency`.
impl Default for Pace {
    fn default() -> Self {
        Self { watched: Duration::from_secs(300), blind: Duration::from_secs(20) }
    }
}

/// The file source, ready to run.
#[derive(Debug)]
pub struct FileSource {
    place: Arc<Place>,
    /// The configured path, for people and the store.
    path_key: Arc<str>,
    watch: Option<DirectoryWatch>,
    settings: WatchSettings,
    /// Where programs that tell of changes may come from, until the watch has it.
    feeds: Option<mpsc::Receiver<Feed>>,
    /// Why there is no watch.
    blind: Option<Arc<str>>,
    /// The file system whose changes are not all seen, if it is one.
    unseen: Option<&'static str>,
    pace: Pace,
    /// When everything is looked at although nothing was told.
    resync: Instant,
    view: View,
    known: KnownFiles,
    last_good: BTreeMap<Arc<str>, LastGood>,
    accepted: Option<DirectoryId>,
    /// Names that are gone, not yet for certain, and who removed them.
    vanishing: BTreeMap<Arc<str>, Option<Arc<Actor>>>,
    /// Who changed the files that are looked at now.
    actors: BTreeMap<Arc<str>, Arc<Actor>>,
    confirm_at: Option<Instant>,
    links: BTreeSet<Arc<str>>,
    /// Skipped names already spoken of.
    told_skipped: BTreeSet<String>,
    told: RejectionLog,
    ledger: ChangeLog,
    ready: bool,
    health: Health,
    keeper: Keeper,
    pulse: Arc<Pulse>,
}

impl FileSource {
    /// A source for `path`: a directory, or one file; what does not exist is a file if it is named like a manifest.
    pub fn new(path: &Path, node_name: &str, store: Arc<Store>, decoder: Decoder) -> Self {
        Self::with_pace(path, node_name, store, decoder, Pace::default())
    }

    fn with_pace(path: &Path, node_name: &str, store: Arc<Store>, decoder: Decoder, pace: Pace) -> Self {
        let (place, path) = Place::at(path, node_name, decoder);
        let path_key: Arc<str> = Arc::from(path.to_string_lossy());
        let pulse = Arc::<Pulse>::default();
        Self {
            place: Arc::new(place),
            path_key: Arc::clone(&path_key),
            watch: None,
            settings: WatchSettings::default(),
            feeds: None,
            blind: None,
            unseen: None,
            pace,
            resync: Instant::now(),
            view: View::default(),
            known: KnownFiles::new(),
            last_good: BTreeMap::new(),
            accepted: None,
            vanishing: BTreeMap::new(),
            actors: BTreeMap::new(),
            confirm_at: None,
            links: BTreeSet::new(),
            told_skipped: BTreeSet::new(),
            told: RejectionLog::new(SourceKind::File),
            ledger: ChangeLog::new(SourceKind::File),
            ready: false,
            health: Health::Starting,
            keeper: Keeper::new(store, SourceKind::File, Arc::clone(&pulse)),
            pulse,
        }
    }

    /// Has the directory watched as `settings` say; feeds may come later.
    #[must_use]
    pub fn watched(mut self, settings: WatchSettings, feeds: Option<mpsc::Receiver<Feed>>) -> Self {
        self.settings = settings;
        self.feeds = feeds;
        self
    }

    /// When it read last, for people.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Watches and publishes until `stop`. `publish` must not block.
    pub async fn run(mut self, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        let path = Arc::clone(&self.path_key);
        let kept = self.keeper.load(move |store| Ok((store.last_good(SourceKind::File)?, store.directory(&path)?)));
        (self.last_good, self.accepted) = kept.await.unwrap_or_default();
        self.ledger.expect(&self.last_good);
        self.open_watch();
        if self.watch.is_none() {
            self.look_at_all(&publish).await;
        }
        self.set_resync();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                event = next_event(self.watch.as_mut()) => self.handle(event, &publish).await,
                () = at(self.confirm_at) => self.look_at_all(&publish).await,
                () = self.keeper.written() => self.keep_again(),
                () = sleep_until(self.resync) => {
                    match &mut self.watch {
                        Some(watch) => watch.recheck(),
                        None => self.open_watch(),
                    }
                    self.look_at_all(&publish).await;
                    self.set_resync();
                }
            }
        }
        self.keeper.flush().await;
    }

    /// Looks at `names`, and at what they turn out to lead through.
    async fn look_at(&mut self, names: BTreeSet<Arc<str>>, publish: &impl Fn(Arc<SourceSnapshot>)) {
        if names.is_empty() {
            self.actors.clear();
            return;
        }
        if self.look_at_hand(&names) {
            return self.publish(publish).await;
        }
        let named = names.clone();
        let look = self.blocking(move |place, known| place.look_at(names, known)).await;
        self.drop_uncertain();
        self.take(look);
        // Nothing but what was named is looked through: an event costs the same however many files there are.
        if named.iter().any(|name| self.links.contains(name) || self.is_link(name)) {
            self.follow_links(true).await;
        }
        self.publish(publish).await;
    }

    async fn look_at_all(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        let confirms = self.confirm_at.take_if(|at| *at <= Instant::now()).is_some();
        let told = self.told_skipped.clone();
        let mut look = self.blocking(move |place, known| place.look_at_all(known, &told)).await;
        self.drop_uncertain();
        match look.listing.take() {
            Some(Ok(listing)) => {
                self.take(look);
                self.follow_links(true).await;
                if let Some(error) = self.watch.as_mut().and_then(DirectoryWatch::take_failure) {
                    self.go_blind(&error);
                }
                self.take_listing(listing, confirms);
            }
            Some(Err(reason)) => {
                self.known = look.known;
                self.unavailable(reason);
            }
            None => self.known = look.known,
        }
        self.publish(publish).await;
    }

    /// Runs one look off this thread.
    async fn blocking(&mut self, look: impl FnOnce(&Place, KnownFiles) -> Look + Send + 'static) -> Look {
        let (place, known) = (Arc::clone(&self.place), std::mem::take(&mut self.known));
        let mut looking = tokio::task::spawn_blocking(move || look(&place, known));
        let looked = loop {
            tokio::select! {
                looked = &mut looking => break looked,
                // Who writes meanwhile may not live until the next change is handled.
                () = listen(self.watch.as_mut()) => {}
            }
        };
        match looked {
            Ok(look) => look,
            Err(error) => {
                error!(%error, "reading manifests failed");
                Look { known: KnownFiles::new(), findings: Vec::new(), listing: None }
            }
        }
    }

    fn take(&mut self, look: Look) {
        self.known = look.known;
        for (name, finding) in look.findings {
            self.find(name, finding);
        }
    }

    fn find(&mut self, name: Arc<str>, finding: Finding) {
        match finding {
            Finding::Read(manifest) => self.accept(name, manifest),
            Finding::Absent => self.vanish(name),
            Finding::BeingWritten => self.confirm_in(look::WRITER_PAUSES),
        }
    }

    fn accept(&mut self, name: Arc<str>, manifest: Manifest) {
        self.vanishing.remove(&name);
        self.told.warnings(&name, &manifest.faults);
        let (place, last_good) = (&self.place, &self.last_good);
        self.view.accept(&name, manifest, || restore(place, &name, last_good.get(&name)));
        let manifests = self.view.manifests(&name);
        self.keeper.put(name, manifests.map(|manifests| LastGood::new(manifests, Timestamp::now())));
    }

    fn vanish(&mut self, name: Arc<str>) {
        if self.view.contains(&name) && !self.vanishing.contains_key(&name) {
            self.vanishing.insert(Arc::clone(&name), self.actors.get(&name).cloned());
            self.view.set_vanishing(&name, true);
            self.confirm_in(VANISH);
        }
    }

    /// Looks at everything again after `pause` at the latest.
    fn confirm_in(&mut self, pause: Duration) {
        let at = Instant::now() + pause;
        self.confirm_at = Some(self.confirm_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn take_listing(&mut self, listing: Listing, confirms: bool) {
        for name in listing.skipped {
            warn!(file = name, "skipped: it looks like a manifest, but only .yaml, .yml and .json are read");
            self.told_skipped.insert(name);
        }
        if listing.excess > 0 {
            warn!(excess = listing.excess, "more than {} manifests, the last ones are not read", look::MAX_FILES);
        }
        if listing.names.is_empty() && self.accepted != Some(listing.id) && self.has_something_to_lose() {
            let place = self.path_key.clone();
            return self.unavailable(format!("{place} is empty, and not the directory its pods came from"));
        }
        let absent: Vec<Arc<str>> = self.view.names().filter(|name| !listing.names.contains(*name)).cloned().collect();
        for name in absent {
            if confirms && let Some(actor) = self.vanishing.remove(&name) {
                self.actors.extend(actor.map(|actor| (Arc::clone(&name), actor)));
                info!(file = %name, "manifest gone");
                self.view.remove(&name);
                self.told.forget(&name);
                self.keeper.put(name, None);
            } else {
                self.vanish(name);
            }
        }
        if !self.vanishing.is_empty() {
            self.confirm_in(VANISH);
        }
        // Removed while the agent was down: neither on disk nor in the view.
        for name in std::mem::take(&mut self.last_good).into_keys() {
            if !self.view.contains(&name) {
                self.keeper.put(name, None);
            }
        }
        if self.accepted != Some(listing.id) {
            self.accepted = Some(listing.id);
            self.keeper.put_directory(Arc::clone(&self.path_key), listing.id);
        }
        if self.unseen != listing.unseen {
            self.unseen = listing.unseen;
            self.set_resync();
        }
        self.ready = true;
        self.pulse.succeeded(jiff::Timestamp::now());
        self.set_health(self.blind.clone().map_or(Health::Good, Health::Blind));
    }

    fn has_something_to_lose(&self) -> bool {
        !self.view.is_empty() || self.last_good.values().any(|kept| !kept.manifests.is_empty())
    }

    /// Nothing can be said about the files now: what there is stays, and comes back from the store if need be.
    fn unavailable(&mut self, reason: String) {
        for (name, kept) in &self.last_good {
            if !self.view.contains(name) {
                self.view.restore(name, restore(&self.place, name, Some(kept)));
            }
        }
        for name in std::mem::take(&mut self.vanishing).into_keys() {
            self.view.set_vanishing(&name, false);
        }
        self.confirm_at = None;
        let pods = self.view.pods();
        self.set_health(Health::Unavailable(format!("{reason}; {pods} pods are kept").into()));
    }

    fn set_health(&mut self, health: Health) {
        if self.health == health {
            return;
        }
        match &health {
            Health::Unavailable(reason) => warn!(%reason, "file source unavailable"),
            Health::Blind(reason) => warn!(%reason, path = %self.path_key, "file source is not told of changes"),
            Health::Good => info!(path = %self.path_key, pods = self.view.pods(), "file source reads"),
            Health::Starting => {}
        }
        self.health = health;
    }

    fn is_link(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|known| known.link)
    }

    /// Watches what symlinked manifests lead through, and looks again if that was not watched when they were read.
    async fn follow_links(&mut self, links_changed: bool) {
        let links: BTreeSet<Arc<str>> =
            self.known.iter().filter(|(_, known)| known.link).map(|(name, _)| Arc::clone(name)).collect();
        let Some(watch) = self.watch.as_mut().filter(|_| links != self.links || (links_changed && !links.is_empty()))
        else {
            return;
        };
        let unseen = watch.follow(links.iter().map(|name| OsStr::new(&**name)));
        self.links = links;
        if unseen {
            let names = self.links.clone();
            let look = self.blocking(move |place, known| place.look_at(names, known)).await;
            self.take(look);
        }
    }

    /// After the database had to be replaced: what this source knows is put into the new one.
    fn keep_again(&mut self) {
        if self.keeper.must_begin_again() {
            for name in self.view.names() {
                self.keeper.put(
                    Arc::clone(name),
                    self.view.manifests(name).map(|manifests| LastGood::new(manifests, Timestamp::now())),
                );
            }
            self.accepted.into_iter().for_each(|id| self.keeper.put_directory(Arc::clone(&self.path_key), id));
            self.keeper.write();
        }
    }

    async fn publish(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        self.pulse.set_backend(self.backend());
        let (place, actors) = (&self.place, std::mem::take(&mut self.actors));
        if let Some(snapshot) = self.view.settle(self.ready, self.health.clone()) {
            let restore = |name: &str, kept: &LastGood| restore(place, name, Some(kept));
            let snapshot = self.ledger.enter(snapshot, Timestamp::now(), restore, |origin| actors.get(origin).cloned());
            self.keeper.put_history(&snapshot.changes);
            self.told.snapshot(&snapshot);
            publish(snapshot);
        }
        // The change goes ahead of its copy for the disk: to call another thread takes a while.
        tokio::task::yield_now().await;
        self.keeper.write();
    }
}

/// What a file's last good manifests hold.
fn restore(place: &Place, name: &str, kept: Option<&LastGood>) -> Contents {
    let manifests = kept.map_or(&[][..], |kept| kept.manifests.as_slice());
    place.decoder.restore_all(manifests, name, SourceKind::File, &place.node_name)
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
