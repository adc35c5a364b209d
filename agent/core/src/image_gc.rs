//! Garbage collection of images: which of the node's images may be removed, and in which order, as kubelet decides
//! it.
//!
//! [`Ledger`] turns the contents of the image store into images with ages, and the functions beside it choose from
//! them. The caller measures space after every removal, because images share layers and their sizes would promise too
//! much.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use jiff::Timestamp;

use crate::byte_size;
use crate::state::Now;
use limpet_model::image::StoredImage;

/// A wall clock before this moment (2024) is not set yet, so no age is derived from it.
const EARLIEST_VALID_TIME: Timestamp = Timestamp::constant(1_704_067_200, 0);

/// kubelet's settings of image garbage collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageGcPolicy {
    /// `imageGCHighThresholdPercent`: how full a disk is when room is made on it; 100 means never.
    pub high_percent: u8,
    /// `imageGCLowThresholdPercent`: how full it may be afterwards.
    pub low_percent: u8,
    /// `imageMinimumGCAge`: younger images are not removed.
    pub min_age: Duration,
    /// `imageMaximumGCAge`: an image that was not used for longer is removed, however full the disk is; `None` if
    /// none is.
    pub max_age: Option<Duration>,
}

impl Default for ImageGcPolicy {
    fn default() -> Self {
        Self { high_percent: 85, low_percent: 80, min_age: Duration::from_secs(120), max_age: None }
    }
}

impl ImageGcPolicy {
    /// Whether images are never removed.
    pub fn is_off(&self) -> bool {
        self.high_percent >= 100 && self.max_age.is_none()
    }

    /// How many bytes must be available before no more room has to be made; `None` if there is room enough now.
    pub fn goal(&self, disk: DiskSpace) -> Option<u64> {
        if self.high_percent >= 100 || disk.used_percent() < u64::from(self.high_percent) {
            return None;
        }
        let wanted = u128::from(disk.capacity) * u128::from(100 - self.low_percent.min(100)) / 100;
        Some(u64::try_from(wanted).unwrap_or(u64::MAX))
    }
}

/// The space of the file system with the images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskSpace {
    /// All bytes.
    pub capacity: u64,
    /// Bytes that can still be written without root's reserve.
    pub available: u64,
}

impl DiskSpace {
    /// Rounds as kubelet does: a percent that is partly used counts as used.
    pub fn used_percent(self) -> u64 {
        let available = self.available.min(self.capacity);
        let share = u128::from(available) * 100 / u128::from(self.capacity.max(1));
        100 - u64::try_from(share).unwrap_or(100)
    }

    /// kubelet's message if the removed images, of so many bytes, were not enough.
    pub fn stays_short(self, freed: u64) -> String {
        format!(
            "Insufficient free disk space on the node's image filesystem ({}% of {} used). Failed to free sufficient space by \
             deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, \
             volumes, or other data.",
            self.used_percent(),
            byte_size::text(self.capacity)
        )
    }
}

/// An image, and whether it may go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// What its names resolve to.
    pub digest: Arc<str>,
    /// Its names, normalised.
    pub names: Vec<String>,
    /// Whether a known pod or a container needs it.
    pub needed: bool,
    /// Whether it is protected from removal.
    pub pinned: bool,
    /// When it was last used; the current time while it is needed.
    pub last_used: Timestamp,
    /// How long it has not been used.
    pub unused_for: Duration,
    /// How long it has been present, as far as this matters for its minimum age; the maximum if it was present before
    /// the agent started.
    pub known_for: Duration,
}

impl Image {
    /// Whether it may be removed now.
    fn is_free(&self, policy: &ImageGcPolicy) -> bool {
        !self.needed && !self.pinned && self.known_for >= policy.min_age
    }
}

/// Images that were not used for longer than `imageMaximumGCAge`, the least recently used first.
pub fn too_old<'a>(images: &'a [Image], policy: &ImageGcPolicy) -> Vec<&'a Image> {
    let Some(max_age) = policy.max_age else { return Vec::new() };
    in_order(images.iter().filter(|image| image.is_free(policy) && image.unused_for > max_age).collect())
}

/// Images that may be removed to make room, in kubelet's order: the least recently used first, and of those the
/// oldest.
pub fn to_make_room<'a>(images: &'a [Image], policy: &ImageGcPolicy) -> Vec<&'a Image> {
    in_order(images.iter().filter(|image| image.is_free(policy)).collect())
}

fn in_order(mut images: Vec<&Image>) -> Vec<&Image> {
    images.sort_by(|a, b| {
        let age = a.last_used.cmp(&b.last_used).then(b.known_for.cmp(&a.known_for));
        age.then_with(|| a.digest.cmp(&b.digest))
    });
    images
}

/// After how long the images alone, without an event, may give a reason to check again: one becomes too old, or,
/// while the disk is `short` of room, old enough to be removed.
pub fn next_look(images: &[Image], policy: &ImageGcPolicy, short: bool) -> Option<Duration> {
    let unneeded = images.iter().filter(|image| !image.needed && !image.pinned);
    let looks = unneeded.filter_map(|image| {
        let grown = policy.min_age.saturating_sub(image.known_for);
        // A moment more than the age, because the limit itself is not beyond it.
        let aged = policy.max_age.map(|age| age.saturating_sub(image.unused_for).max(grown));
        // A moment more than the age, because the limit itself is not beyond it. What is already due is not waited
        // for.
        let aged = aged.filter(|wait| !wait.is_zero()).map(|wait| wait + Duration::from_millis(1));
        let room = Some(grown).filter(|grown| short && !grown.is_zero());
        aged.into_iter().chain(room).min()
    });
    looks.min()
}

/// What is remembered about the images between two checks of the store.
#[derive(Debug, Default)]
pub struct Ledger {
    images: HashMap<Arc<str>, ImageEntry>,
    began: bool,
}

#[derive(Debug)]
struct ImageEntry {
    /// `None` if it was present before the agent started.
    first_seen: Option<Instant>,
    /// `None` if it is needed.
    unused_since: Option<Unused>,
    /// When it was last taken, as known at the last check.
    taken: Option<Instant>,
}

#[derive(Debug, Clone, Copy)]
struct Unused {
    at: Timestamp,
    /// The monotonic time from which the unused time is counted, and the unused time before that.
    counted_from: Instant,
    before: Duration,
}

/// The use of the images in the store, and those whose last use must be recorded now.
#[derive(Debug)]
pub struct ImageUsage {
    /// Every image in the store.
    pub images: Vec<Image>,
    /// Images that are no longer in use since this check.
    pub fallen_out_of_use: Vec<Arc<str>>,
}

impl Ledger {
    /// Evaluates the contents of the store. `needed`: a known pod or a container needs that image.
    pub fn update(&mut self, stored: Vec<StoredImage>, needed: impl Fn(&StoredImage) -> bool, now: Now) -> ImageUsage {
        let mut look = ImageUsage { images: Vec::with_capacity(stored.len()), fallen_out_of_use: Vec::new() };
        let mut before = std::mem::take(&mut self.images);
        for image in stored {
            let needed = needed(&image);
            let known = before.remove(&image.digest);
            // What was taken since the last check was used, even if only in between.
            let was_needed = image.taken > known.as_ref().and_then(|known| known.taken)
                || known.as_ref().is_some_and(|known| known.unused_since.is_none());
            if was_needed && !needed {
                look.fallen_out_of_use.push(Arc::clone(&image.digest));
            }
            let first_seen = known.as_ref().map_or(self.began.then_some(now.mono), |known| known.first_seen);
            let unused_since = (!needed).then(|| {
                let earlier = known.and_then(|known| known.unused_since).filter(|_| !was_needed);
                earlier.unwrap_or_else(|| if was_needed { Unused::from(now) } else { Unused::as_recorded(&image, now) })
            });
            look.images.push(Image {
                needed,
                pinned: image.pinned,
                last_used: unused_since.map_or(now.wall, |unused| unused.at),
                unused_for: unused_since.map_or(Duration::ZERO, |unused| unused.duration(now)),
                known_for: [first_seen, image.taken]
                    .into_iter()
                    .flatten()
                    .map(|since| now.mono.saturating_duration_since(since))
                    .min()
                    .unwrap_or(Duration::MAX),
                digest: Arc::clone(&image.digest),
                names: image.names,
            });
            self.images.insert(image.digest, ImageEntry { first_seen, unused_since, taken: image.taken });
        }
        self.began = true;
        look
    }
}

impl Unused {
    fn from(now: Now) -> Self {
        Self { at: now.wall, counted_from: now.mono, before: Duration::ZERO }
    }

    /// For an image that this agent has not seen in use: the recorded use, or else when it was pulled.
    fn as_recorded(image: &StoredImage, now: Now) -> Self {
        let at = image.last_used.max(image.created).unwrap_or(now.wall);
        let is_set = at >= EARLIEST_VALID_TIME && now.wall >= EARLIEST_VALID_TIME;
        let before = if is_set { now.wall.duration_since(at).try_into().unwrap_or_default() } else { Duration::ZERO };
        Self { at, counted_from: now.mono, before }
    }

    fn duration(self, now: Now) -> Duration {
        self.before + now.mono.saturating_duration_since(self.counted_from)
    }
}

#[cfg(test)]
mod tests;
