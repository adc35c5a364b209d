//! A scan in progress, shared by the thread that reads and the task that waits for it.
//!
//! A name may lead to a file system that does not answer. The task then takes what was found so far, records which
//! name it was, and scans again without that name. The thread that is left behind finds its scan taken and ends.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::scan_result::{KnownFile, KnownFiles, Listing, Scan};

#[derive(Debug)]
pub(super) struct ScanRun {
    /// Names for which an earlier thread still waits.
    hung: BTreeSet<Arc<str>>,
    state: Mutex<ScanState>,
}

#[derive(Debug)]
struct ScanState {
    scan: Scan,
    /// The name that is being accessed.
    at: Option<Arc<str>>,
    taken: bool,
}

impl ScanRun {
    /// A run that skips the names in `hung`.
    pub(super) fn new(known: KnownFiles, hung: BTreeSet<Arc<str>>) -> Self {
        Self { hung, state: Mutex::new(ScanState { scan: Scan::new(known), at: None, taken: false }) }
    }

    /// Records that `name` is being accessed. Returns false if it must not be accessed, or the run has ended.
    pub(super) fn enter(&self, name: &Arc<str>) -> bool {
        let mut state = self.state();
        let goes_on = !state.taken && !self.hung.contains(name);
        if goes_on {
            state.at = Some(Arc::clone(name));
        }
        goes_on
    }

    /// Records that no name is being accessed.
    pub(super) fn enter_none(&self) {
        self.state().at = None;
    }

    /// What is known of `name`.
    pub(super) fn known(&self, name: &str) -> Option<KnownFile> {
        self.state().scan.known.get(name).copied()
    }

    /// Records that `name` was scanned, with the result.
    pub(super) fn leave(&self, name: &str, part: Scan) {
        let mut state = self.state();
        if !state.taken {
            state.at = None;
            state.scan.known.remove(name);
            state.scan.known.extend(part.known);
            state.scan.findings.extend(part.findings);
        }
    }

    /// Records that everything was scanned.
    pub(super) fn finish(&self, listing: Result<Listing, String>) {
        let mut state = self.state();
        state.at = None;
        if let Ok(listing) = &listing {
            state.scan.known.retain(|name, _| listing.names.contains(name));
        }
        state.scan.listing = Some(listing);
    }

    /// Ends the run. Returns what was found, and the name that was being accessed.
    pub(super) fn take(&self) -> (Scan, Option<Arc<str>>) {
        let mut state = self.state();
        state.taken = true;
        (std::mem::replace(&mut state.scan, Scan::new(KnownFiles::new())), state.at.take())
    }

    fn state(&self) -> MutexGuard<'_, ScanState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
