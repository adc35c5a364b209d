//! The progress of a pull, reported at most once a second and without a timer: only arriving data updates it.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use limpet_model::pull_progress::PullProgress;
use tokio::sync::watch;
use tokio::time::Instant;

/// The shortest time between two reports of arriving data.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two log lines.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Sums up the progress of one pull's layers.
#[derive(Debug)]
pub(super) struct Meter {
    image: String,
    state: Mutex<MeterState>,
    out: watch::Sender<PullProgress>,
}

#[derive(Debug, Default)]
struct MeterState {
    progress: PullProgress,
    reported: Option<Instant>,
    logged: Option<Instant>,
}

impl Meter {
    pub(super) fn new(image: &str, out: watch::Sender<PullProgress>) -> Self {
        Self { image: image.to_owned(), state: Mutex::default(), out }
    }

    /// Records that the manifest was read. An attempt with other credentials begins again.
    pub(super) fn begin(&self, total: u64, layers: usize) {
        self.change(Instant::now(), true, |progress| {
            *progress = PullProgress { total, layers, ..PullProgress::default() };
        });
    }

    /// Records that a layer was downloaded.
    pub(super) fn downloaded(&self) {
        self.change(Instant::now(), true, |progress| progress.downloaded += 1);
    }

    /// Records that a layer was unpacked.
    pub(super) fn unpacked(&self) {
        self.change(Instant::now(), true, |progress| progress.unpacked += 1);
    }

    /// Changes the state, and reports it if `at` is late enough after the last report or the change is a `step`.
    fn change(&self, at: Instant, step: bool, change: impl FnOnce(&mut PullProgress)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut state.progress);
        if step || state.reported.is_none_or(|last| at.duration_since(last) >= REPORT_INTERVAL) {
            state.reported = Some(at);
            self.out.send_replace(state.progress);
        }
        // A pull shorter than the interval logs only its beginning and end.
        let logged = *state.logged.get_or_insert(at);
        if at.duration_since(logged) >= LOG_INTERVAL {
            state.logged = Some(at);
            let PullProgress { done, total, layers, downloaded, unpacked } = state.progress;
            tracing::info!(image = self.image, done, total, layers, downloaded, unpacked, "image pull in progress");
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
    /// Sets the number of downloaded bytes of the blob, which decreases when it restarts.
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

    fn progress(done: u64, downloaded: usize, unpacked: usize) -> PullProgress {
        PullProgress { done, total: 100, layers: 2, downloaded, unpacked }
    }

    #[test]
    fn progress_is_reported_once_a_second_and_summed_up() {
        let (out, mut seen) = watch::channel(PullProgress::default());
        let meter = Meter::new("demo", out);
        meter.begin(100, 2);
        assert_eq!(*seen.borrow_and_update(), progress(0, 0, 0));
        let begin = meter.state.lock().ok().and_then(|state| state.reported).unwrap_or_else(Instant::now);
        let (mut a, mut b) = (meter.blob(), meter.blob());
        a.set_at(begin, 10);
        b.set_at(begin + REPORT_INTERVAL / 2, 5);
        assert!(!seen.has_changed().unwrap_or(true));
        a.set_at(begin + REPORT_INTERVAL, 20);
        assert_eq!(seen.borrow_and_update().done, 25);
        b.set_at(begin + REPORT_INTERVAL, 0);
        meter.downloaded();
        assert_eq!(*seen.borrow_and_update(), progress(20, 1, 0), "a layer is a step");
        meter.unpacked();
        assert_eq!(*seen.borrow_and_update(), progress(20, 1, 1));
    }

    #[test]
    fn progress_reads_as_one_phrase() {
        let mib = 1 << 20;
        let table = [
            (PullProgress::default(), "reading its manifest"),
            (PullProgress { total: 100 * mib, done: mib / 2, ..progress(0, 1, 0) }, "1 of 100 MiB, 1 of 2 layers"),
            (PullProgress { total: 9 * mib, ..progress(0, 2, 1) }, "9 MiB downloaded, 1 of 2 layers unpacked"),
        ];
        for (progress, text) in table {
            assert_eq!(progress.to_string(), text);
        }
    }
}
