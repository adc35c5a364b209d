//! A directory in which bundles appear: of this machine, or of a stick that is mounted there.
//!
//! Events of the directory and of the mount table are hints; each leads to one listing. Every new file is handed to the
//! source, the newest first, and the source alone decides: an older bundle beside the newest one changes nothing.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use limpet_host::blocking::{self, DEADLINE};
use limpet_host::inotify;
use limpet_host::path_watch::{PathWatch, after, changed};
use tokio::io::unix::AsyncFd;
use tokio::io::{Interest, Ready};
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use super::intake::{BundleIntake, Way};
use super::refusal::Refusal;

/// What the names of bundles end with.
const EXTENSION: &str = ".limpet";
/// The most files that are looked at.
const MAX_FILES: usize = 64;
/// Pauses between attempts while a bundle cannot be taken now, such as without containerd.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The interval of listing a directory that cannot be watched.
const SCAN_INTERVAL: Duration = Duration::from_secs(20);

/// The identity of a file: another size, time or inode is another bundle.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Stamp {
    modified: (i64, i64),
    size: u64,
    place: (u64, u64),
}

impl Stamp {
    fn new(metadata: &Metadata) -> Self {
        let modified = (metadata.mtime(), metadata.mtime_nsec());
        Self { modified, size: metadata.size(), place: (metadata.dev(), metadata.ino()) }
    }
}

/// A listing of the directory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Listing {
    /// Device and inode of the directory; `None`: there is none.
    place: Option<(u64, u64)>,
    /// The bundles, the newest first.
    bundles: Vec<(PathBuf, Stamp)>,
}

/// What a look at the directory has led to.
#[derive(Debug, PartialEq, Eq)]
enum Scanned {
    Done,
    /// Something is to be tried again.
    ToRetry,
    /// This bundle waits until it may take effect.
    Held(String),
}

/// Offers the bundles that appear in a directory, which may be the mount point of a stick.
#[derive(Debug)]
pub struct BundleDirectory {
    path: PathBuf,
    intake: BundleIntake,
    /// What was handed over, and why it was refused.
    tried: BTreeMap<PathBuf, (Stamp, Option<String>)>,
    place: Option<(u64, u64)>,
}

impl BundleDirectory {
    pub fn new(path: &Path, intake: BundleIntake) -> Self {
        Self { path: path.to_owned(), intake, tried: BTreeMap::new(), place: None }
    }

    /// Offers what is there and what appears, until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow() => {}
        }
    }

    async fn follow(mut self) {
        let mounts = mount_table().inspect_err(|error| warn!(%error, "watching mount changes failed")).ok();
        let mut pause = RETRY_DELAYS.0;
        let mut watch = self.watch().await;
        loop {
            let scanned = self.scan().await;
            pause = if scanned == Scanned::ToRetry { (pause * 2).min(RETRY_DELAYS.1) } else { RETRY_DELAYS.0 };
            let next = match (&scanned, &watch) {
                (Scanned::ToRetry, _) => Some(pause),
                (_, None) => Some(SCAN_INTERVAL),
                (_, Some(_)) => None,
            };
            let is_watched = tokio::select! {
                changed = changed(watch.as_mut()) => changed.is_ok(),
                () = self.freed(&scanned) => watch.is_some(),
                () = self.moved(mounts.as_ref()) => false,
                () = after(next) => watch.is_some(),
            };
            if !is_watched {
                watch = self.watch().await;
            }
        }
    }

    async fn watch(&self) -> Option<PathWatch> {
        let watch = PathWatch::complete_files(&self.path).await;
        let seconds = SCAN_INTERVAL.as_secs();
        watch
            .inspect_err(|error| {
                warn!(directory = %self.path.display(), %error, "the directory cannot be watched; it is listed for bundles every {seconds} s");
            })
            .ok()
    }

    /// Resolves when a bundle that was held may take effect. Cancel safe.
    async fn freed(&self, scanned: &Scanned) {
        match scanned {
            Scanned::Held(bundle) => self.intake.may_apply(bundle).await,
            Scanned::Done | Scanned::ToRetry => std::future::pending().await,
        }
    }

    /// Resolves when a mount has made the path another directory. Mounts change often elsewhere, and are not looked at.
    async fn moved(&self, mounts: Option<&AsyncFd<File>>) {
        let Some(mounts) = mounts else { return std::future::pending().await };
        loop {
            match mounts.ready(Interest::PRIORITY.add(Interest::ERROR)).await {
                Ok(mut guard) => guard.clear_ready_matching(Ready::PRIORITY | Ready::ERROR),
                Err(_) => return std::future::pending().await,
            }
            let path = self.path.clone();
            let place = blocking::run(self.path.clone(), DEADLINE, move |_| place(&path)).await;
            if place.is_ok_and(|place| place != self.place) {
                return;
            }
        }
    }

    /// Offers the files that are new or have changed, and reports why others are refused.
    async fn scan(&mut self) -> Scanned {
        let path = self.path.clone();
        let listed = blocking::run(self.path.clone(), DEADLINE, move |_| list(&path)).await;
        let Listing { place, bundles } = match listed.flatten() {
            Ok(listing) => listing,
            Err(error) => {
                warn!(directory = %self.path.display(), %error, "listing bundles failed");
                return Scanned::ToRetry;
            }
        };
        self.place = place;
        self.tried.retain(|path, _| bundles.iter().any(|(known, _)| known == path));
        let mut scanned = Scanned::Done;
        for (path, stamp) in bundles {
            if self.tried.get(&path).is_some_and(|(known, _)| *known == stamp) {
                continue;
            }
            let refused = match self.intake.offer(path.clone(), path.clone(), Way::Directory).await {
                Ok(_) => None,
                Err(Refusal::Replayed { message, .. }) => {
                    debug!(path = %path.display(), message, "an older bundle is left alone");
                    None
                }
                Err(Refusal::Outside(message)) => {
                    debug!(path = %path.display(), message, "a bundle for other nodes is left alone");
                    None
                }
                // An older one must not take its place meanwhile.
                Err(Refusal::Held { bundle, .. }) => {
                    scanned = Scanned::Held(bundle);
                    break;
                }
                Err(refusal) if refusal.is_transient() => {
                    scanned = Scanned::ToRetry;
                    break;
                }
                Err(refusal) => Some(refusal.to_string()),
            };
            self.tried.insert(path, (stamp, refused));
        }
        let refused = self.tried.iter().filter_map(|(path, (_, refused))| Some((path.clone(), refused.clone()?)));
        self.intake.report(Way::Directory, refused.collect()).await;
        scanned
    }
}

fn mount_table() -> io::Result<AsyncFd<File>> {
    inotify::register(File::open("/proc/self/mountinfo")?, Interest::PRIORITY.add(Interest::ERROR))
}

fn place(directory: &Path) -> Option<(u64, u64)> {
    directory.metadata().ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// The bundles of a directory, which need not exist.
fn list(directory: &Path) -> io::Result<Listing> {
    let entries = match std::fs::read_dir(directory) {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Listing::default());
        }
        entries => entries?,
    };
    let mut bundles = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name();
        let is_bundle = name.to_str().is_some_and(|name| name.ends_with(EXTENSION) && !name.starts_with('.'));
        // One that is gone since has an event of its own.
        let Some(metadata) = is_bundle.then(|| entry.path().metadata().ok()).flatten() else { continue };
        if metadata.is_file() {
            bundles.push((entry.path(), Stamp::new(&metadata)));
        }
    }
    bundles.sort_by(|(a, newer), (b, older)| (older, b).cmp(&(newer, a)));
    bundles.truncate(MAX_FILES);
    Ok(Listing { place: place(directory), bundles })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn bundles_are_listed_the_newest_first_and_nothing_else_is() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(list(&dir.path().join("none")).unwrap(), Listing::default());
        for (name, seconds) in [("a.limpet", 10), ("b.limpet", 30), ("c.limpet", 20), (".d.limpet", 40), ("e.tar", 50)]
        {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
        }
        std::fs::create_dir(dir.path().join("f.limpet")).unwrap();
        let listing = list(dir.path()).unwrap();
        let names: Vec<_> =
            listing.bundles.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap()).collect();
        assert_eq!(names, ["b.limpet", "c.limpet", "a.limpet"]);
        assert_eq!(listing.place, place(dir.path()));
    }
}
