//! The file source: a directory of manifests, or one file, as kubelet's `staticPodPath`.
//!
//! In: the directory, hints from [`crate::watch`], last good manifests from [`crate::store`]. Out: snapshots.
//! Events are hints: what they name is looked at, and read if it changed; the directory is listed at the start, when
//! it is replaced, when events were lost, to confirm that a name is gone, and every few minutes in case a file
//! system told nothing. What appears acts at once; a name that vanished waits a moment, because editors rename a
//! file away before they write it. Nothing unreadable, missing or broken ever stops a pod.

mod keep;
mod look;
mod names;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use imbl::ordmap::DiffItem;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info, warn};

use crate::pod::{Fault, Kept, Manifest, Severity};
use crate::source::{Health, Rejection, SourceKind, SourceSnapshot};
use crate::store::{Manifests, Store};
use crate::watch::{DirectoryId, DirectoryWatch, WatchEvent};
use keep::Keeper;
use look::{Finding, KnownFiles, Listing, Look, Place};
use view::{Contents, View};

/// How long a vanished name waits for its successor.
const VANISH: Duration = Duration::from_millis(50);
/// How often everything is looked at although nothing was told.
const RESYNC: Duration = Duration::from_secs(300);
/// The same while the kernel gives no watch; kubelet's `fileCheckFrequency`.
const RESYNC_BLIND: Duration = Duration::from_secs(20);

/// Reads a manifest that was accepted once.
pub type Restore = fn(&[u8], &str, SourceKind, &str) -> Result<Kept, Vec<Fault>>;

/// The two ways bytes become pods. Arguments: bytes, origin, source, node name.
#[derive(Debug, Clone, Copy)]
pub struct Decoder {
    /// Reads a file as authored.
    pub read: fn(&[u8], &str, SourceKind, &str) -> Manifest,
    /// Reads a manifest that was accepted once.
    pub restore: Restore,
}

/// The file source, ready to run.
#[derive(Debug)]
pub struct FileSource {
    place: Arc<Place>,
    /// The configured path, for people and the store.
    path_key: Arc<str>,
    watch: Option<DirectoryWatch>,
    view: View,
    known: KnownFiles,
    last_good: BTreeMap<Arc<str>, Manifests>,
    accepted: Option<DirectoryId>,
    vanishing: BTreeSet<Arc<str>>,
    confirm_at: Option<Instant>,
    links: BTreeSet<Arc<str>>,
    /// Skipped names already spoken of.
    told: BTreeSet<String>,
    warned: BTreeMap<Arc<str>, Vec<Fault>>,
    rejected: imbl::OrdMap<Arc<str>, Arc<Rejection>>,
    ready: bool,
    health: Health,
    keeper: Keeper,
}

impl FileSource {
    /// A source for `path`: a directory, or one file; what does not exist is a file if it is named like a manifest.
    pub fn new(path: &Path, node_name: &str, store: Arc<Store>, decoder: Decoder) -> Self {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let named_as_file = path.extension().is_some_and(|end| end == "yaml" || end == "yml" || end == "json");
        let single = path.is_file() || (named_as_file && !path.is_dir());
        let (directory, only) = match (path.parent(), path.file_name().and_then(OsStr::to_str)) {
            (Some(parent), Some(name)) if single => (parent.to_owned(), Some(Arc::from(name))),
            _ => (path.clone(), None),
        };
        let path_key: Arc<str> = Arc::from(path.to_string_lossy());
        let place = Place { directory, only, node_name: Arc::from(node_name), decoder };
        Self {
            place: Arc::new(place),
            path_key: Arc::clone(&path_key),
            watch: None,
            view: View::default(),
            known: KnownFiles::new(),
            last_good: BTreeMap::new(),
            accepted: None,
            vanishing: BTreeSet::new(),
            confirm_at: None,
            links: BTreeSet::new(),
            told: BTreeSet::new(),
            warned: BTreeMap::new(),
            rejected: imbl::OrdMap::new(),
            ready: false,
            health: Health::Starting,
            keeper: Keeper::new(store, Arc::clone(&path_key)),
        }
    }

    /// Watches and publishes until `stop`. `publish` must not block.
    pub async fn run(mut self, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        (self.last_good, self.accepted) = self.keeper.load().await;
        self.open_watch();
        if self.watch.is_none() {
            self.look_at_all(&publish).await;
        }
        let mut resync = self.next_resync();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                event = next_event(self.watch.as_mut()) => match event {
                    Ok(WatchEvent::Hint(names)) if self.health == Health::Good => {
                        let names = names.iter().filter_map(|name| name.to_str()).filter(|name| self.place.counts(name));
                        let names = names.map(Arc::from).collect();
                        self.look_at(names, &publish).await;
                    }
                    Ok(WatchEvent::Hint(_)) => self.look_at_all(&publish).await,
                    Ok(WatchEvent::Rescan(reason)) => {
                        debug!(?reason, directory = %self.place.directory.display(), "rescan");
                        self.look_at_all(&publish).await;
                    }
                    Err(error) => {
                        error!(%error, "file watch failed, opening another");
                        self.watch = None;
                        self.open_watch();
                    }
                },
                () = at(self.confirm_at) => self.look_at_all(&publish).await,
                () = self.keeper.written() => {}
                () = sleep_until(resync) => {
                    match &mut self.watch {
                        Some(watch) => watch.recheck(),
                        None => self.open_watch(),
                    }
                    self.look_at_all(&publish).await;
                    resync = self.next_resync();
                }
            }
        }
        self.keeper.flush().await;
    }

    fn next_resync(&self) -> Instant {
        Instant::now() + jittered(if self.watch.is_some() { RESYNC } else { RESYNC_BLIND })
    }

    fn open_watch(&mut self) {
        match DirectoryWatch::new(&self.place.directory) {
            Ok(watch) => {
                self.watch = Some(watch);
                self.links.clear();
            }
            Err(error) => {
                let every = RESYNC_BLIND.as_secs();
                warn!(%error, directory = %self.place.directory.display(), "no file watch, reading every {every} s instead");
            }
        }
    }

    /// Looks at `names`, and at what they turn out to lead through.
    async fn look_at(&mut self, names: BTreeSet<Arc<str>>, publish: &impl Fn(Arc<SourceSnapshot>)) {
        if names.is_empty() {
            return;
        }
        let named = names.clone();
        let look = self.blocking(move |place, known| place.look_at(names, known)).await;
        self.take(look);
        // Nothing but what was named is looked through: an event costs the same however many files there are.
        if named.iter().any(|name| self.links.contains(name) || self.is_link(name)) {
            self.follow_links(true).await;
        }
        self.publish(publish);
    }

    async fn look_at_all(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        let confirms = self.confirm_at.is_some_and(|at| at <= Instant::now());
        let told = self.told.clone();
        let mut look = self.blocking(move |place, known| place.look_at_all(known, &told)).await;
        match look.listing.take() {
            Some(Ok(listing)) => {
                self.take(look);
                self.take_listing(listing, confirms);
                self.follow_links(true).await;
            }
            Some(Err(reason)) => {
                self.known = look.known;
                self.unavailable(reason);
            }
            None => self.known = look.known,
        }
        self.publish(publish);
    }

    /// Runs one look off this thread.
    async fn blocking(&mut self, look: impl FnOnce(&Place, KnownFiles) -> Look + Send + 'static) -> Look {
        let (place, known) = (Arc::clone(&self.place), std::mem::take(&mut self.known));
        match tokio::task::spawn_blocking(move || look(&place, known)).await {
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
            match finding {
                Finding::Read(manifest) => self.accept(name, manifest),
                Finding::Absent => self.vanish(name),
            }
        }
    }

    fn accept(&mut self, name: Arc<str>, manifest: Manifest) {
        self.vanishing.remove(&name);
        self.warn(&name, &manifest.faults);
        let (place, last_good) = (&self.place, &self.last_good);
        self.view.accept(&name, manifest, || restore(place, &name, last_good.get(&name)));
        let manifests = self.view.manifests(&name);
        self.keeper.put(name, manifests);
    }

    fn vanish(&mut self, name: Arc<str>) {
        if self.view.contains(&name) && self.vanishing.insert(Arc::clone(&name)) {
            self.view.set_vanishing(&name, true);
            self.confirm_at.get_or_insert_with(|| Instant::now() + VANISH);
        }
    }

    fn take_listing(&mut self, listing: Listing, confirms: bool) {
        for name in listing.skipped {
            warn!(file = name, "skipped: it looks like a manifest, but only .yaml, .yml and .json are read");
            self.told.insert(name);
        }
        if listing.excess > 0 {
            warn!(excess = listing.excess, "more than {} manifests, the last ones are not read", look::MAX_FILES);
        }
        if listing.names.is_empty() && self.accepted != Some(listing.id) && self.has_something_to_lose() {
            let place = self.path_key.clone();
            return self.unavailable(format!("{place} is empty, and not the directory its pods came from"));
        }
        let absent: Vec<Arc<str>> = self.view.names().filter(|name| !listing.names.contains(*name)).cloned().collect();
        if confirms {
            self.confirm_at = None;
        }
        for name in absent {
            if confirms && self.vanishing.remove(&name) {
                info!(file = %name, "manifest gone");
                self.view.remove(&name);
                self.warned.remove(&name);
                self.keeper.put(name, None);
            } else {
                self.vanish(name);
            }
        }
        if !self.vanishing.is_empty() {
            self.confirm_at.get_or_insert_with(|| Instant::now() + VANISH);
        }
        // Removed while the agent was down: neither on disk nor in the view.
        for name in std::mem::take(&mut self.last_good).into_keys() {
            if !self.view.contains(&name) {
                self.keeper.put(name, None);
            }
        }
        if self.accepted != Some(listing.id) {
            self.accepted = Some(listing.id);
            self.keeper.put_directory(listing.id);
        }
        self.ready = true;
        self.set_health(Health::Good);
    }

    fn has_something_to_lose(&self) -> bool {
        !self.view.is_empty() || self.last_good.values().any(|manifests| !manifests.is_empty())
    }

    /// Nothing can be said about the files now: what there is stays, and comes back from the store if need be.
    fn unavailable(&mut self, reason: String) {
        for (name, manifests) in &self.last_good {
            if !self.view.contains(name) {
                self.view.restore(name, restore(&self.place, name, Some(manifests)));
            }
        }
        for name in std::mem::take(&mut self.vanishing) {
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

    fn publish(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        if let Some(snapshot) = self.view.settle(self.ready, self.health.clone()) {
            self.tell_rejections(&snapshot);
            publish(snapshot);
        }
        self.keeper.write();
    }

    fn tell_rejections(&mut self, snapshot: &SourceSnapshot) {
        for difference in self.rejected.diff(&snapshot.rejected) {
            let (name, rejection) = match difference {
                DiffItem::Add(name, rejection) | DiffItem::Update { new: (name, rejection), .. } => (name, rejection),
                DiffItem::Remove(name, _) => {
                    info!(file = %name, "manifest no longer rejected");
                    continue;
                }
            };
            for fault in rejection.faults.iter().filter(|fault| fault.severity == Severity::Error) {
                let line = fault.position.map(|(line, _)| line);
                let said = Fault { origin: Arc::from(""), ..fault.clone() };
                warn!(file = %name, line, error = %said, kept = ?rejection.kept, "manifest rejected");
            }
        }
        self.rejected = snapshot.rejected.clone();
    }

    /// Speaks of warnings once a version of the file.
    fn warn(&mut self, name: &Arc<str>, faults: &[Fault]) {
        let warnings: Vec<Fault> = faults.iter().filter(|fault| fault.severity == Severity::Warning).cloned().collect();
        if self.warned.get(name).map_or(&[][..], Vec::as_slice) == warnings {
            return;
        }
        for fault in &warnings {
            warn!(warning = %fault, "manifest warning");
        }
        self.warned.insert(Arc::clone(name), warnings);
    }
}

/// What a file's last good manifests hold. What this version of the agent refuses is left out and told.
fn restore(place: &Place, name: &Arc<str>, manifests: Option<&Manifests>) -> Contents {
    let mut contents = Contents::default();
    for manifest in manifests.into_iter().flatten() {
        match (place.decoder.restore)(manifest, name, SourceKind::File, &place.node_name) {
            Ok(Kept::Pod(pod)) => drop(contents.pods.insert(pod.key.clone(), Arc::from(pod))),
            Ok(Kept::Object(object)) => drop(contents.objects.insert(object.key.clone(), Arc::new(object))),
            Err(faults) => {
                for fault in faults {
                    warn!(file = %name, error = %fault, "last good version is not accepted any more");
                }
            }
        }
    }
    contents
}

/// Within a tenth of `period`, so that many nodes on one network file system do not read at once.
fn jittered(period: Duration) -> Duration {
    let dice = u32::try_from(RandomState::new().hash_one(()) % 201).unwrap_or(100);
    period * (900 + dice) / 1_000
}

async fn next_event(watch: Option<&mut DirectoryWatch>) -> std::io::Result<WatchEvent> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
