//! Imports the image archives in a directory, at start and when they appear.
//!
//! Labels on the images' records in containerd show which archives were imported, so a start with unchanged archives
//! reads none of them. Events of the directory are hints; each triggers one listing.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::content::Labels;
use super::error::{CallError, ImageError};
use super::platform::ImagePlatform;
use super::{Images, document, import};
use limpet_host::blocking;
use limpet_host::path_watch::{PathWatch, after, changed};

/// Pauses between attempts while containerd is not reachable or the disk is full.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// The interval of listing a directory that cannot be watched.
const SCAN_INTERVAL: Duration = Duration::from_secs(20);
/// The label that protects an image from garbage collectors.
pub(super) const PINNED_LABEL: (&str, &str) = ("io.cri-containerd.pinned", "pinned");

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArchiveEvent {
    /// Its images were imported.
    Imported {
        /// The archive.
        path: PathBuf,
        /// The images' names, normalised.
        images: Vec<String>,
    },
    /// The import failed; it is retried when the file changes, and without a change if the failure is transient.
    Failed {
        /// The archive.
        path: PathBuf,
        error: ImageError,
    },
}

/// A file's identity: a different size or time means a different archive.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Stamp(String);

/// The result of one listing of the directory.
#[derive(Debug, Default)]
struct Scan {
    /// Whether containerd answered, or no call was needed.
    answered: bool,
    /// Whether a transient failure occurred.
    retry: bool,
}

impl Images {
    /// Waits until the archives that existed at the start have been imported, or have failed. `import_archives` must be
    /// running.
    pub async fn archives_ready(&self) {
        let mut ready = self.inner.ready.subscribe();
        // Fails only if the sender is gone, and `self` holds it.
        let _ = ready.wait_for(|ready| *ready).await;
    }

    /// The normalized names of all images imported from archives since the agent started.
    pub fn imported(&self) -> watch::Receiver<Arc<HashSet<String>>> {
        self.inner.imported.subscribe()
    }

    /// Imports the archives (`*.tar`, `*.tar.gz`, `*.tgz`, `*.tar.zst`) in the configured directory, which is created
    /// if it does not exist, and those that appear there, until `stop`. Their images are pinned.
    pub async fn import_archives(&self, stop: CancellationToken) {
        self.import_archives_with(stop, |_| {}).await;
    }

    /// The same; `report` is called for each archive.
    pub async fn import_archives_with(&self, stop: CancellationToken, report: impl Fn(ArchiveEvent)) {
        let stopped = stop.cancelled();
        tokio::select! {
            () = stopped => {}
            () = self.follow_archives(&report) => {}
        }
    }

    async fn follow_archives(&self, report: &impl Fn(ArchiveEvent)) {
        let dir = self.inner.config.archives_dir.as_path();
        let mut tried = HashMap::new();
        let mut pause = RETRY_DELAYS.0;
        let unwatched = |error: &io::Error| {
            let seconds = SCAN_INTERVAL.as_secs();
            tracing::warn!(dir = %dir.display(), %error, "the directory cannot be watched; it is scanned for image archives every {seconds} s");
        };
        let mut watch = open(dir).await.inspect_err(unwatched).ok();
        self.sweep_imports().await;
        loop {
            let scan = self.scan(dir, &mut tried, report).await;
            if scan.answered {
                self.inner.ready.send_replace(true);
            }
            let rescan = match (scan.retry, &watch) {
                (true, _) => Some(pause),
                (false, None) => Some(SCAN_INTERVAL),
                (false, Some(_)) => None,
            };
            tokio::select! {
                change = changed(watch.as_mut()) => match change {
                    Ok(()) => pause = RETRY_DELAYS.0,
                    Err(error) => {
                        unwatched(&error);
                        watch = None;
                    }
                },
                () = after(rescan) => {
                    pause = (pause * 2).min(RETRY_DELAYS.1);
                    if watch.is_none() {
                        watch = open(dir).await.ok();
                    }
                }
            }
        }
    }

    /// Deletes the leases of imports that a crash interrupted; their archives are read again.
    async fn sweep_imports(&self) {
        let store = &self.inner.store;
        for (lease, _) in store.leases(import::LEASE_PREFIX).await.unwrap_or_default() {
            if let Err(error) = store.delete_lease(&lease).await {
                tracing::warn!(lease, %error, "deleting the lease of an interrupted import failed");
            }
        }
    }

    /// Imports new archives; `tried` has those that were imported or have failed permanently.
    async fn scan(&self, dir: &Path, tried: &mut HashMap<PathBuf, Stamp>, report: &impl Fn(ArchiveEvent)) -> Scan {
        let directory = dir.to_owned();
        let listed = blocking::run(dir.to_owned(), blocking::DEADLINE, move |_| archives(&directory)).await;
        let listed = match listed.flatten() {
            Ok(listed) => listed,
            Err(error) => {
                tracing::warn!(dir = %dir.display(), %error, "listing image archives failed");
                return Scan { answered: true, retry: true };
            }
        };
        tried.retain(|path, _| listed.iter().any(|(known, _)| known == path));
        let mut scan = Scan { answered: true, retry: false };
        for (path, stamp) in listed {
            if tried.get(&path) == Some(&stamp) {
                continue;
            }
            let result = match self.imported_before(&path, &stamp).await {
                Ok(true) => {
                    tried.insert(path, stamp);
                    continue;
                }
                Ok(false) => self.import(&path, &stamp).await,
                Err(error) => {
                    tracing::debug!(%error, "importing image archives waits for containerd");
                    return Scan { answered: false, retry: true };
                }
            };
            let retry = result.as_ref().is_err_and(ImageError::is_transient);
            scan.retry |= retry;
            if !retry {
                tried.insert(path.clone(), stamp);
            }
            report(archive_event(path, result));
        }
        scan
    }

    /// Whether all images of this file exist.
    async fn imported_before(&self, path: &Path, stamp: &Stamp) -> Result<bool, CallError> {
        let key = label_key(path);
        let records = self.inner.store.list_images(&format!("labels.\"{key}\"")).await?;
        let mut missing = None;
        for record in records {
            let Some((known, count)) = record.labels.get(&key).and_then(|value| value.rsplit_once('/')) else {
                continue;
            };
            if known == stamp.0 && self.find(&record.name, ImagePlatform::Any).await.is_ok_and(|image| image.is_some())
            {
                missing = Some(missing.unwrap_or(count.parse().unwrap_or(usize::MAX)).saturating_sub(1));
            }
        }
        Ok(missing == Some(0))
    }

    /// Imports one archive, from any directory. Its images are not pinned. Returns their names.
    ///
    /// # Errors
    /// `Archive`: it cannot be read; `Runtime`, `DiskFull`.
    pub async fn import_archive(&self, path: &Path) -> Result<Vec<String>, ImageError> {
        self.import_with(path, |_| Labels::new()).await
    }

    async fn import(&self, path: &Path, stamp: &Stamp) -> Result<Vec<String>, ImageError> {
        let labels = |count: usize| {
            Labels::from([
                (PINNED_LABEL.0.to_owned(), PINNED_LABEL.1.to_owned()),
                (label_key(path), format!("{}/{count}", stamp.0)),
            ])
        };
        self.import_with(path, labels).await
    }

    async fn import_with(&self, path: &Path, labels: impl Fn(usize) -> Labels) -> Result<Vec<String>, ImageError> {
        let imported = import::import(&self.inner.store, path, labels).await;
        let images = imported.inspect_err(|error| self.inner.note_failure(error))?;
        let names: Vec<_> =
            images.into_iter().map(|image| self.inner.remember(image, ImagePlatform::Any).name.to_string()).collect();
        self.inner.note_change();
        self.inner.imported.send_modify(|known| Arc::make_mut(known).extend(names.iter().cloned()));
        Ok(names)
    }
}

fn archive_event(path: PathBuf, result: Result<Vec<String>, ImageError>) -> ArchiveEvent {
    match result {
        Ok(images) => {
            tracing::info!(archive = %path.display(), ?images, "image archive imported and pinned");
            ArchiveEvent::Imported { path, images }
        }
        Err(error) => {
            tracing::warn!(archive = %path.display(), %error, "importing the image archive failed");
            ArchiveEvent::Failed { path, error }
        }
    }
}

/// The label on an image's record that names the archive it was imported from.
fn label_key(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let digest = document::sha256(name.as_bytes());
    format!("limpet.io/archive.{}", digest.get(7..23).unwrap_or_default())
}

/// Creates the directory and watches it.
async fn open(dir: &Path) -> io::Result<PathWatch> {
    let directory = dir.to_owned();
    blocking::run(dir.to_owned(), blocking::DEADLINE, move |_| std::fs::create_dir_all(directory)).await??;
    PathWatch::complete_files(dir).await
}

/// The archives of a directory in the order of their names.
fn archives(dir: &Path) -> io::Result<Vec<(PathBuf, Stamp)>> {
    let mut archives = Vec::new();
    let entries = match std::fs::read_dir(dir) {
        // The directory was removed. Its parent is watched, and it is listed again once it exists.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(archives),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // The file was removed since the listing.
        let Ok(metadata) = std::fs::metadata(entry.path()) else { continue };
        if metadata.is_file() && is_archive(&entry.file_name().to_string_lossy()) {
            let stamp = format!("{}-{}.{:09}", metadata.size(), metadata.mtime(), metadata.mtime_nsec());
            archives.push((entry.path(), Stamp(stamp)));
        }
    }
    archives.sort_by(|(a, _), (b, _)| a.cmp(b));
    Ok(archives)
}

fn is_archive(name: &str) -> bool {
    !name.starts_with('.') && [".tar", ".tar.gz", ".tgz", ".tar.zst"].iter().any(|end| name.ends_with(end))
}
