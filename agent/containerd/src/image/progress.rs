//! How far a pull is, told at most once a second and without a timer: only bytes that arrive move it.

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

/// How much of an image is here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PullProgress {
    /// Bytes of compressed layers that containerd holds, those of earlier attempts included.
    pub done: u64,
    /// Bytes in all; 0 until the manifest is read.
    pub total: u64,
    /// All bytes are here and the layers are being unpacked.
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

/// Adds up what the layers of one pull report.
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

    /// All is here.
    pub(super) fn unpacking(&self) {
        self.change(Instant::now(), true, |progress| progress.unpacking = true);
    }

    /// Changes the state and reports it, if `at` is late enough after the last report or the change is a turn of the pull.
    fn change(&self, at: Instant, turn: bool, change: impl FnOnce(&mut PullProgress)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.progress);
        if turn || state.reported.is_none_or(|last| at.duration_since(last) >= PACE) {
            state.reported = Some(at);
            self.out.send_replace(state.progress);
        }
        // A pull shorter than the pace has its beginning and its end in the log, no more.
        let logged = *state.logged.get_or_insert(at);
        if at.duration_since(logged) >= LOG_PACE {
            state.logged = Some(at);
            let PullProgress { done, total, unpacking } = state.progress;
            tracing::info!(image = self.image, done, total, unpacking, "image pull goes on");
        }
    }

    /// The share of one blob.
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
    /// So many bytes of the blob are here; fewer than before when it begins again.
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
    fn reports_come_once_a_second_and_add_up() {
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
