//! The file source: a directory of manifests, or one file, as kubelet's `staticPodPath`.
//!
//! Input: the directory, events from [`limpet_watch`], last good manifests from [`limpet_store`]. Output: snapshots.
//! Events are only hints: the named files are checked, and read if they changed. The directory is listed at the
//! start, when it is replaced, when events were lost, to confirm a removal, and every few minutes in case a file
//! system sent no events. A new file takes effect at once. A removed name is confirmed after a delay, because editors
//! rename a file away before they write it. An unreadable, missing or broken file never stops a pod. Each accepted or
//! rejected manifest carries the actor who changed it, if the watch knows.

mod scan;
mod scan_result;
mod scan_run;
mod scanning;
mod stamp;
mod watching;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::Pulse;
use crate::persist::Persister;
use jiff::Timestamp;
use limpet_core::last_good::LastGood;
use limpet_core::source::change::ChangeLog;
use limpet_core::source::rejection_log::RejectionLog;
use limpet_core::source::view::{Contents, View};
use limpet_core::source::{Decoder, Health, SourceSnapshot};
use limpet_host::clock::sleep_until_or_forever;
use limpet_model::actor::Actor;
use limpet_model::attribution::WatchSettings;
use limpet_model::directory_id::DirectoryId;
use limpet_model::manifest::Manifest;
use limpet_model::source::SourceKind;
use limpet_store::Store;
use limpet_watch::DirectoryWatch;
use limpet_watch::actors::Feed;
use scan::Scanner;
pub use scan::read_all;
use scan_result::{Finding, KnownFiles, Listing, Scan};
use watching::next_event;

/// How long a removed name may be missing before its pods are removed. It is longer than programs take that remove a
/// file before they write it: 0.3 ms for install, tar and git, 6 ms for `rm` and `cp` in a script, and 20 ms for a
/// script on a machine with three times as much work as processors.
const VANISH_DELAY: Duration = Duration::from_millis(25);

/// How often everything is rescanned without an event.
#[derive(Debug, Clone, Copy)]
struct RescanPeriods {
    /// If the kernel reports changes: a rescan finds only what it has failed to report.
    watched: Duration,
    /// Without them, or if some changes cause none.
    blind: Duration,
}

/// The second period is kubelet's `fileCheckFrequency`.
impl Default for RescanPeriods {
    fn default() -> Self {
        Self { watched: Duration::from_secs(300), blind: Duration::from_secs(20) }
    }
}

/// The file source, ready to run.
#[derive(Debug)]
pub struct FileSource {
    scanner: Arc<Scanner>,
    /// The configured path, for users and the store.
    path_key: Arc<str>,
    watch: Option<DirectoryWatch>,
    settings: WatchSettings,
    /// Delivers further feeds of change events; passed to the watch when it opens.
    feeds: Option<mpsc::Receiver<Feed>>,
    /// Why there is no watch.
    blind: Option<Arc<str>>,
    /// The file system that hides some changes, if any.
    unwatched_fs: Option<&'static str>,
    periods: RescanPeriods,
    /// The next rescan without an event.
    resync: Instant,
    view: View,
    known: KnownFiles,
    /// Names for which a thread still waits, with the subject of its call; "" is the directory.
    hung: BTreeMap<Arc<str>, PathBuf>,
    last_good: BTreeMap<Arc<str>, LastGood>,
    accepted: Option<DirectoryId>,
    /// Names whose removal is not confirmed yet, and who removed them.
    vanishing: BTreeMap<Arc<str>, Option<Arc<Actor>>>,
    /// Names whose contents were accepted and are to be saved.
    accepted_names: BTreeSet<Arc<str>>,
    /// Who changed the files of the current scan.
    actors: BTreeMap<Arc<str>, Arc<Actor>>,
    confirm_at: Option<Instant>,
    links: BTreeSet<Arc<str>>,
    /// Files that are not read for their names. Each is logged once.
    logged_skipped: BTreeSet<String>,
    rejection_log: RejectionLog,
    ledger: ChangeLog,
    ready: bool,
    health: Health,
    persister: Persister,
    pulse: Arc<Pulse>,
}

impl FileSource {
    /// A source for `path`: a directory, or one file. A path that does not exist is a file if it is named like a
    /// manifest.
    pub fn new(path: &Path, node_name: &str, store: Arc<Store>, decoder: Decoder) -> Self {
        Self::with_periods(path, node_name, store, decoder, RescanPeriods::default())
    }

    fn with_periods(path: &Path, node_name: &str, store: Arc<Store>, decoder: Decoder, periods: RescanPeriods) -> Self {
        let (scanner, path) = Scanner::at(path, node_name, decoder);
        let path_key: Arc<str> = Arc::from(path.to_string_lossy());
        let pulse = Arc::<Pulse>::default();
        Self {
            scanner: Arc::new(scanner),
            path_key: Arc::clone(&path_key),
            watch: None,
            settings: WatchSettings::default(),
            feeds: None,
            blind: None,
            unwatched_fs: None,
            periods,
            resync: Instant::now(),
            view: View::default(),
            known: KnownFiles::new(),
            hung: BTreeMap::new(),
            last_good: BTreeMap::new(),
            accepted: None,
            vanishing: BTreeMap::new(),
            accepted_names: BTreeSet::new(),
            actors: BTreeMap::new(),
            confirm_at: None,
            links: BTreeSet::new(),
            logged_skipped: BTreeSet::new(),
            rejection_log: RejectionLog::new(SourceKind::File),
            ledger: ChangeLog::new(SourceKind::File),
            ready: false,
            health: Health::Starting,
            persister: Persister::new(store, SourceKind::File, Arc::clone(&pulse)),
            pulse,
        }
    }

    /// Sets how the directory is watched; feeds may arrive later.
    #[must_use]
    pub fn watched(mut self, settings: WatchSettings, feeds: Option<mpsc::Receiver<Feed>>) -> Self {
        self.settings = settings;
        self.feeds = feeds;
        self
    }

    /// When it last succeeded, for users.
    pub fn pulse(&self) -> Arc<Pulse> {
        Arc::clone(&self.pulse)
    }

    /// Watches and publishes until `stop`. `publish` must not block.
    pub async fn run(mut self, publish: impl Fn(Arc<SourceSnapshot>), stop: CancellationToken) {
        let path = Arc::clone(&self.path_key);
        let saved = self
            .persister
            .load(move |store| Ok((store.load(SourceKind::File)?.records, store.get(SourceKind::File, &path)?)));
        (self.last_good, self.accepted) = saved.await.unwrap_or_default();
        self.ledger.expect(&self.last_good);
        self.open_watch().await;
        if self.watch.is_none() {
            self.rescan_all(&publish).await;
        }
        self.set_resync();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                event = next_event(self.watch.as_mut()) => self.handle(event, &publish).await,
                () = sleep_until_or_forever(self.confirm_at) => self.rescan_all(&publish).await,
                () = scanning::answered(&self.hung) => self.rescan_all(&publish).await,
                () = self.persister.written() => {}
                () = sleep_until(self.resync) => {
                    match &mut self.watch {
                        Some(watch) => watch.recheck().await,
                        None => self.open_watch().await,
                    }
                    self.rescan_all(&publish).await;
                    self.set_resync();
                }
            }
        }
        self.persister.flush().await;
    }

    /// Rescans `names`, and the targets of symlinks among them.
    async fn rescan(&mut self, names: BTreeSet<Arc<str>>, publish: &impl Fn(Arc<SourceSnapshot>)) {
        if names.is_empty() {
            self.actors.clear();
            return;
        }
        let named = names.clone();
        let mut scan = self.scan_names(names).await;
        self.drop_uncertain();
        if let Some(Err(reason)) = scan.listing.take() {
            self.unavailable(reason);
        }
        self.apply_scan(scan);
        // Only named symlinks are followed, so that an event costs the same however many files there are.
        if named.iter().any(|name| self.links.contains(name) || self.is_link(name)) {
            self.follow_links(true).await;
        }
        self.publish(publish).await;
    }

    async fn rescan_all(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        let confirms = self.confirm_at.take_if(|at| *at <= Instant::now()).is_some();
        let logged = self.logged_skipped.clone();
        let mut scan = self.run_scan(move |scanner, run, progress| scanner.scan_all(&logged, run, progress)).await;
        self.drop_uncertain();
        match scan.listing.take() {
            Some(Ok(listing)) => {
                self.apply_scan(scan);
                self.follow_links(true).await;
                if let Some(error) = self.watch.as_mut().and_then(DirectoryWatch::take_failure) {
                    self.lose_watch(&error);
                }
                self.apply_listing(listing, confirms);
            }
            Some(Err(reason)) => {
                self.known = scan.known;
                self.unavailable(reason);
            }
            None => self.known = scan.known,
        }
        self.publish(publish).await;
    }

    fn apply_scan(&mut self, scan: Scan) {
        self.known = scan.known;
        for (name, finding) in scan.findings {
            self.apply_finding(name, finding);
        }
    }

    fn apply_finding(&mut self, name: Arc<str>, finding: Finding) {
        match finding {
            Finding::Read(manifest) => self.accept(name, manifest),
            Finding::Absent => self.vanish(name),
            Finding::BeingWritten => self.confirm_in(stamp::WRITE_SETTLE_TIME),
        }
    }

    fn accept(&mut self, name: Arc<str>, manifest: Manifest) {
        self.vanishing.remove(&name);
        self.rejection_log.warnings(&name, &manifest.faults);
        let (scanner, last_good) = (&self.scanner, &self.last_good);
        self.view.accept(&name, manifest, || restore(scanner, &name, last_good.get(&name)));
        self.accepted_names.insert(name);
    }

    fn vanish(&mut self, name: Arc<str>) {
        if self.view.contains(&name) && !self.vanishing.contains_key(&name) {
            self.vanishing.insert(Arc::clone(&name), self.actors.get(&name).cloned());
            self.view.set_vanishing(&name, true);
            self.confirm_in(VANISH_DELAY);
        }
    }

    /// Rescans everything after at most `pause`.
    fn confirm_in(&mut self, pause: Duration) {
        let at = Instant::now() + pause;
        self.confirm_at = Some(self.confirm_at.map_or(at, |earlier| earlier.min(at)));
    }

    fn apply_listing(&mut self, listing: Listing, confirms: bool) {
        for name in listing.skipped {
            warn!(file = name, "skipped: its name is not UTF-8");
            self.logged_skipped.insert(name);
        }
        if listing.excess > 0 {
            warn!(excess = listing.excess, "more than {} manifests, the last ones are not read", scan::MAX_FILES);
        }
        if listing.names.is_empty() && self.accepted != Some(listing.id) && self.has_something_to_lose() {
            let path = self.path_key.clone();
            return self.unavailable(format!("{path} is empty, and not the directory its pods came from"));
        }
        let absent: Vec<Arc<str>> = self.view.names().filter(|name| !listing.names.contains(*name)).cloned().collect();
        for name in absent {
            if confirms && let Some(actor) = self.vanishing.remove(&name) {
                self.actors.extend(actor.map(|actor| (Arc::clone(&name), actor)));
                info!(file = %name, "manifest removed");
                self.view.remove(&name);
                self.rejection_log.forget(&name);
                self.persister.put(name, None, "");
            } else {
                self.vanish(name);
            }
        }
        if !self.vanishing.is_empty() {
            self.confirm_in(VANISH_DELAY);
        }
        // The file was removed while the agent was down, so it is neither on disk nor in the view.
        for name in std::mem::take(&mut self.last_good).into_keys() {
            if !self.view.contains(&name) {
                self.persister.put(name, None, "");
            }
        }
        if self.accepted != Some(listing.id) {
            self.accepted = Some(listing.id);
            self.persister.put_directory(Arc::clone(&self.path_key), listing.id);
        }
        if self.unwatched_fs != listing.unwatched_fs {
            self.unwatched_fs = listing.unwatched_fs;
            self.set_resync();
        }
        self.ready = true;
        self.pulse.succeeded(jiff::Timestamp::now());
        self.set_health(self.blind.clone().map_or(Health::Good, Health::Blind));
    }

    fn has_something_to_lose(&self) -> bool {
        !self.view.is_empty() || self.last_good.values().any(|saved| !saved.manifests.is_empty())
    }

    /// Handles that the files cannot be read now: the current pods stay, and missing ones are restored from the
    /// store.
    fn unavailable(&mut self, reason: String) {
        for (name, saved) in &self.last_good {
            if !self.view.contains(name) {
                let contents = Arc::new(restore(&self.scanner, name, Some(saved)));
                self.persister.hold(Arc::clone(name), Arc::clone(&contents), &saved.mark);
                self.view.restore(name, contents);
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
            Health::Blind(reason) => warn!(%reason, path = %self.path_key, "file source has no change notifications"),
            Health::Good => info!(path = %self.path_key, pods = self.view.pods(), "file source healthy"),
            Health::Starting => {}
        }
        self.health = health;
    }

    fn is_link(&self, name: &str) -> bool {
        self.known.get(name).is_some_and(|known| known.link)
    }

    /// Watches the targets of symlinked manifests, and rescans them if they were not watched when they were read.
    async fn follow_links(&mut self, links_changed: bool) {
        let links: BTreeSet<Arc<str>> =
            self.known.iter().filter(|(_, known)| known.link).map(|(name, _)| Arc::clone(name)).collect();
        let Some(watch) = self.watch.as_mut().filter(|_| links != self.links || (links_changed && !links.is_empty()))
        else {
            return;
        };
        let unseen = watch.follow(links.iter().map(|name| OsStr::new(&**name))).await;
        self.links = links;
        if unseen {
            let scan = self.scan_names(self.links.clone()).await;
            self.apply_scan(scan);
        }
    }

    async fn publish(&mut self, publish: &impl Fn(Arc<SourceSnapshot>)) {
        self.pulse.set_backend(self.backend());
        let (scanner, actors) = (&self.scanner, std::mem::take(&mut self.actors));
        let snapshot = self.view.finish_update(self.ready, self.health.clone());
        // What another file defines is not saved, so that after a restart the file that was in effect defines it
        // again.
        for name in std::mem::take(&mut self.accepted_names).into_iter().chain(self.view.take_resettled()) {
            let effective = self.view.effective(&name);
            self.persister.put(name, effective, "");
        }
        if let Some(snapshot) = snapshot {
            let restore = |name: &str, saved: &LastGood| restore(scanner, name, Some(saved));
            let snapshot = self.ledger.enter(snapshot, Timestamp::now(), restore, |origin| actors.get(origin).cloned());
            self.persister.put_history(&snapshot.changes);
            self.rejection_log.snapshot(&snapshot);
            publish(snapshot);
        }
        // Publishes before saving, because starting the write on another thread takes a while.
        tokio::task::yield_now().await;
        self.persister.write();
    }
}

/// The content of a file's last good manifests.
fn restore(scanner: &Scanner, name: &str, saved: Option<&LastGood>) -> Contents {
    let manifests = saved.map_or(&[][..], |saved| saved.manifests.as_slice());
    scanner.decoder.restore_all(manifests, name, SourceKind::File, &scanner.node_name)
}

#[cfg(test)]
mod tests;
