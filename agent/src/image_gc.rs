//! Image garbage collection: checks the image store when something was added or released, and removes what
//! [`limpet_core::image_gc`] chooses.
//!
//! It sleeps until then: until a pull, an import, the end of a pod or of a container, or an age that an image
//! reaches. If a pod's use of the disk is measured, or the disk for eviction, it also measures the disk at that
//! moment. Each check reads the pods last, and a start that takes an image after that keeps it.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use limpet_containerd::image::{ImageError, Images};
use limpet_core::image_gc::{DiskSpace, Image, ImageGcPolicy, Ledger, next_look, to_make_room, too_old};
use limpet_core::known_pods::{KnownPods, is_named};
use limpet_host::clock::{self, sleep_until_or_forever};
use limpet_host::{blocking, file_system};
use limpet_model::image::StoredImage;
use limpet_telemetry::event::{EventType, Events};
use limpet_telemetry::metrics::{ImageRemoval, Metrics};

/// Events within this time lead to only one check: the containers of a pod that ends, or the pulls of one that
/// starts.
const COLLECTION_DELAY: Duration = Duration::from_secs(1);
/// The time of the first check if nothing happens before it, as in kubelet, and the pause after one that failed.
const COLLECTION_INTERVAL: Duration = Duration::from_secs(300);

/// The task that collects images.
#[derive(Debug)]
pub struct ImageCollector {
    pub images: Images,
    /// Which images may be removed, and when.
    pub policy: ImageGcPolicy,
    /// The pods whose images stay.
    pub pods: Arc<KnownPods>,
    pub events: Events,
    pub metrics: Metrics,
}

/// The result of making room.
enum Room {
    Enough,
    /// There was too little, and images of so many bytes were removed.
    Short {
        before: DiskSpace,
        freed: u64,
    },
}

impl ImageCollector {
    /// Collects until the agent stops; not at all if the policy lets no image be removed.
    pub async fn run(self, stop: CancellationToken) {
        if self.policy.is_off() {
            return;
        }
        let (mut ledger, mut directory) = (Ledger::default(), None);
        let mut next = Some(Instant::now() + COLLECTION_INTERVAL);
        let mut by_measurement = Instant::now();
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.images.changed() => {}
                () = self.images.measured() => {
                    // A disk that stays short is no reason for a check at every measurement.
                    let now = Instant::now();
                    if now < by_measurement || !self.is_short(&mut directory).await {
                        continue;
                    }
                    by_measurement = now + COLLECTION_INTERVAL;
                }
                () = sleep_until_or_forever(next) => {}
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(COLLECTION_DELAY) => {}
            }
            let looked = tokio::select! {
                () = stop.cancelled() => return,
                looked = self.collect(&mut ledger, &mut directory) => looked,
            };
            next = match looked {
                Ok(pause) => pause.map(|pause| Instant::now() + pause),
                Err(error) => {
                    tracing::warn!(%error, "image garbage collection failed");
                    self.events.emit(None, None, EventType::Warning, "ImageGCFailed", error.to_string());
                    Some(Instant::now() + COLLECTION_INTERVAL)
                }
            };
        }
    }

    /// Checks the store. Returns when to check again if nothing happens.
    async fn collect(
        &self,
        ledger: &mut Ledger,
        directory: &mut Option<PathBuf>,
    ) -> Result<Option<Duration>, ImageGcError> {
        let decided = Instant::now().into_std();
        let stored = self.images.stored().await?;
        let of_containers = self.images.of_containers().await?;
        let Some(of_pods) = self.pods.images() else { return Ok(Some(COLLECTION_INTERVAL)) };
        let needed = |image: &StoredImage| is_named(image, &of_pods) || is_named(image, &of_containers);
        let mut look = ledger.update(stored, needed, clock::now());
        self.record_last_uses(&look.images, &look.fallen_out_of_use).await;
        let mut gone = HashSet::new();
        for image in too_old(&look.images, &self.policy) {
            if self.remove(image, decided, ImageRemoval::Age).await? {
                gone.insert(Arc::clone(&image.digest));
            }
        }
        let directory = self.directory(directory).await?;
        look.images.retain(|image| !gone.contains(&image.digest));
        let all = self.images.ran_out_of_space();
        let room = self.make_room(&mut look.images, directory, decided, all).await?;
        if let Room::Short { before, freed } = room {
            let message = before.stays_short(freed);
            tracing::warn!(disk = %directory.display(), message, "the image file system is still above its threshold");
            self.events.emit(None, None, EventType::Warning, "FreeDiskSpaceFailed", message);
        }
        Ok(next_look(&look.images, &self.policy, matches!(room, Room::Short { .. })))
    }

    /// The directory of images, read once.
    async fn directory<'a>(&self, known: &'a mut Option<PathBuf>) -> Result<&'a Path, ImageError> {
        match known {
            Some(directory) => Ok(directory),
            None => Ok(known.insert(self.images.directory().await?)),
        }
    }

    /// Whether the disk is used above the threshold; false if it cannot be measured.
    async fn is_short(&self, directory: &mut Option<PathBuf>) -> bool {
        let Ok(directory) = self.directory(directory).await else { return false };
        space(directory).await.is_ok_and(|disk| self.policy.goal(disk).is_some())
    }

    /// Records the end of a use on the image, so that it outlives the agent. While it is in use, nothing is written.
    async fn record_last_uses(&self, images: &[Image], ended: &[Arc<str>]) {
        for image in images.iter().filter(|image| ended.contains(&image.digest)) {
            let Some(name) = image.names.first() else { continue };
            if let Err(error) = self.images.record_last_use(name, image.last_used).await {
                tracing::debug!(image = name, %error, "recording an image's last use failed");
            }
        }
    }

    /// Removes images one by one until the disk has room; `all` that may be removed if an image found no room, as in
    /// kubelet. Removed ones are taken from `images`.
    async fn make_room(
        &self,
        images: &mut Vec<Image>,
        directory: &Path,
        decided: std::time::Instant,
        all: bool,
    ) -> Result<Room, ImageGcError> {
        let before = space(directory).await?;
        if before.capacity == 0 {
            let message = format!("invalid capacity 0 on image filesystem {}", directory.display());
            self.events.emit(None, None, EventType::Warning, "InvalidDiskCapacity", message);
            return Ok(Room::Enough);
        }
        let goal = if all { Some(before.capacity) } else { self.policy.goal(before) };
        let Some(goal) = goal else { return Ok(Room::Enough) };
        let (wanted, mut available) = (goal.saturating_sub(before.available), before.available);
        tracing::info!(
            disk = %directory.display(), used_percent = before.used_percent(), high = self.policy.high_percent,
            bytes = wanted, full = all, "the image file system is above its threshold; removing unused images"
        );
        let (mut gone, mut failed) = (HashSet::new(), None);
        for image in to_make_room(images, &self.policy) {
            if available >= goal {
                break;
            }
            match self.remove(image, decided, ImageRemoval::Space).await {
                Ok(true) => {
                    gone.insert(Arc::clone(&image.digest));
                }
                Ok(false) => continue,
                // As in kubelet, the others are tried nevertheless.
                Err(error) => failed = Some(error),
            }
            available = space(directory).await?.available;
        }
        images.retain(|image| !gone.contains(&image.digest));
        match failed {
            Some(error) => Err(error),
            None if all || available >= goal => Ok(Room::Enough),
            None => Ok(Room::Short { before, freed: available.saturating_sub(before.available) }),
        }
    }

    async fn remove(
        &self,
        image: &Image,
        decided: std::time::Instant,
        why: ImageRemoval,
    ) -> Result<bool, ImageGcError> {
        let removed = self.images.remove(&image.digest, &image.names, decided).await?;
        if removed {
            let (names, digest, last_used) = (&image.names, &*image.digest, image.last_used);
            tracing::info!(?names, digest, %last_used, ?why, "image removed");
            self.metrics.image_removed(why);
        }
        Ok(removed)
    }
}

/// Removes every image that may be removed, however recent, and returns them; `None` if not every source has
/// reported.
///
/// # Errors
///
/// containerd does not answer, or refuses.
pub async fn prune(images: &Images, pods: &KnownPods) -> Result<Option<Vec<Image>>, ImageError> {
    let decided = Instant::now().into_std();
    let stored = images.stored().await?;
    let of_containers = images.of_containers().await?;
    let Some(of_pods) = pods.images() else { return Ok(None) };
    let needed = |image: &StoredImage| is_named(image, &of_pods) || is_named(image, &of_containers);
    let look = Ledger::default().update(stored, needed, clock::now());
    let policy = ImageGcPolicy { min_age: Duration::ZERO, ..ImageGcPolicy::default() };
    let mut gone = Vec::new();
    for image in to_make_room(&look.images, &policy) {
        if images.remove(&image.digest, &image.names, decided).await? {
            tracing::info!(names = ?image.names, digest = &*image.digest, "unneeded image removed");
            gone.push(image.clone());
        }
    }
    Ok(Some(gone))
}

/// Why images could not be collected.
#[derive(Debug, thiserror::Error)]
pub enum ImageGcError {
    /// containerd did not answer, or refused.
    #[error(transparent)]
    Images(#[from] ImageError),
    /// The disk cannot be measured.
    #[error("cannot measure the disk of images at {}: {source}", path.display())]
    Disk { path: PathBuf, source: std::io::Error },
}

/// The space of the disk with a directory of images.
///
/// # Errors
///
/// It does not exist, or its file system does not answer.
pub async fn space(directory: &Path) -> Result<DiskSpace, ImageGcError> {
    let path = directory.to_owned();
    let measured = blocking::run(path.clone(), blocking::DEADLINE, move |_| file_system::space(&path)).await;
    let failed = |source| ImageGcError::Disk { path: directory.to_owned(), source };
    let file_system::Space { capacity, available, .. } = measured.and_then(|measured| measured).map_err(failed)?;
    Ok(DiskSpace { capacity, available })
}
