//! The progress of a pull, reported at most once a second and without a timer: only arriving bytes update it.

use std::fmt;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// The least time between two reports.
const PACE: Duration = Duration::from_secs(1);
/// The least time between two lines in the log.
const LOG_PACE: Duration = Duration::from_secs(10);

/// How much of an image was downloaded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Bytes of compressed layers in containerd, those of earlier attempts included.
    pub done: u64,
    /// Bytes in all; 0 until the manifest is read.
    pub total: u64,
    /// All bytes were downloaded and the layers are being unpacked.
    pub unpacking: bool,
}

impl fmt::Display for PullProgress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        match (self.unpacking, self.total) {
            (true, total) => write!(f, "unpacking {} MiB", mib(total)),
            (false, 0) => f.write_str("reading its manifest"),
            (false, total) => write!(f, "{} of {} MiB", mib(self.done), mib(total)),
        }
    }
}

/// Sums up the progress of one pull's layers.
#[derive(Debug)]
pub(super) struct Meter {
    image: String,
    state: Mutex<State>,
    out: watch::Sender<PullProgress>,
}

#[derive(Debug, Default)]
struct State {
    progress: PullProgress,
    reported: Option<Instant>,
    logged: Option<Instant>,
}

impl Meter {
    pub(super) fn new(image: &str, out: watch::Sender<PullProgress>) -> Self {
        Self { image: image.to_owned(), state: Mutex::default(), out }
    }

    /// The manifest is read.
    pub(super) fn begin(&self, total: u64) {
        self.change(Instant::now(), true, |progress| progress.total = total);
    }

    /// All layers are downloaded.
    pub(super) fn unpacking(&self) {
        self.change(Instant::now(), true, |progress| progress.unpacking = true);
    }

    /// Changes the state and reports it, if `at` is late enough after the last report or the change is a new phase.
    fn change(&self, at: Instant, new_phase: bool, change: impl FnOnce(&mut PullProgress)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.progress);
        if new_phase || state.reported.is_none_or(|last| at.duration_since(last) >= PACE) {
            state.reported = Some(at);
            self.out.send_replace(state.progress);
        }
        // Only the beginning and the end of a pull shorter than the interval are logged.
        let logged = *state.logged.get_or_insert(at);
        if at.duration_since(logged) >= LOG_PACE {
            state.logged = Some(at);
            let PullProgress { done, total, unpacking } = state.progress;
            tracing::info!(image = self.image, done, total, unpacking, "image pull in progress");
        }
    }

    /// A meter for one blob.
    pub(super) fn blob(&self) -> BlobMeter<'_> {
        BlobMeter { meter: self, counted: 0 }
    }
}

/// One blob's share of a meter.
#[derive(Debug)]
pub(super) struct BlobMeter<'a> {
    meter: &'a Meter,
    counted: u64,
}

impl BlobMeter<'_> {
    /// Sets the bytes of the blob that were downloaded; fewer than before when it starts again.
    pub(super) fn set(&mut self, bytes: u64) {
        self.set_at(Instant::now(), bytes);
    }

    fn set_at(&mut self, at: Instant, bytes: u64) {
        let before = std::mem::replace(&mut self.counted, bytes);
        self.meter.change(at, false, |progress| progress.done = (progress.done + bytes).saturating_sub(before));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_reported_once_a_second_and_summed_up() {
        let (out, mut seen) = watch::channel(PullProgress::default());
        let meter = Meter::new("demo", out);
        meter.begin(100);
        assert_eq!(*seen.borrow_and_update(), PullProgress { done: 0, total: 100, unpacking: false });
        let begin = meter.state.lock().ok().and_then(|state| state.reported).unwrap_or_else(Instant::now);
        let (mut a, mut b) = (meter.blob(), meter.blob());
        a.set_at(begin, 10);
        b.set_at(begin + PACE / 2, 5);
        assert!(!seen.has_changed().unwrap_or(true));
        a.set_at(begin + PACE, 20);
        assert_eq!(seen.borrow_and_update().done, 25);
        b.set_at(begin + PACE, 0);
        meter.unpacking();
        assert_eq!(*seen.borrow_and_update(), PullProgress { done: 20, total: 100, unpacking: true });
    }
}
