//! Runs scans on blocking threads. A name whose file system does not answer is skipped until it does, so that it
//! delays no other manifest.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::FileSource;
use super::scan::Scanner;
use super::scan_result::Scan;
use super::scan_run::ScanRun;
use super::watching::listen;
use limpet_host::blocking::{self, DEADLINE, Progress};

/// Stands for the directory among the names that hang.
const DIRECTORY: &str = "";

impl FileSource {
    /// Scans `names`. The listing is an `Err` if the directory itself does not answer.
    pub(super) async fn scan_names(&mut self, names: BTreeSet<Arc<str>>) -> Scan {
        self.run_scan(move |scanner, run, progress| scanner.scan_names(&names, run, progress)).await
    }

    /// Runs `work` on a blocking thread, and again without the name that hangs, if any.
    pub(super) async fn run_scan(
        &mut self,
        work: impl Fn(&Scanner, &ScanRun, &Progress) + Clone + Send + 'static,
    ) -> Scan {
        let mut findings = Vec::new();
        loop {
            let (run, error) = self.run_once(work.clone()).await;
            let (mut scan, at) = run.take();
            findings.append(&mut scan.findings);
            match (error, at) {
                (None, _) => {}
                (Some(error), Some(name)) => {
                    if self.scanner.is_manifest(&name) {
                        self.scanner.mark_unreadable(Arc::clone(&name), false, &error, &mut scan);
                    }
                    findings.append(&mut scan.findings);
                    self.known = scan.known;
                    self.hung.insert(name, self.subject());
                    continue;
                }
                (Some(error), None) => {
                    let reason = format!("cannot read {}: {error}", self.scanner.directory.display());
                    scan.listing = Some(Err(reason));
                    self.hung.insert(Arc::from(DIRECTORY), self.subject());
                }
            }
            scan.findings = findings;
            return scan;
        }
    }

    async fn run_once(
        &mut self,
        work: impl FnOnce(&Scanner, &ScanRun, &Progress) + Send + 'static,
    ) -> (Arc<ScanRun>, Option<std::io::Error>) {
        let hung = self.still_hung();
        let run = Arc::new(ScanRun::new(std::mem::take(&mut self.known), hung));
        let (scanner, its_run) = (Arc::clone(&self.scanner), Arc::clone(&run));
        let call = blocking::run(self.subject(), DEADLINE, move |progress| work(&scanner, &its_run, progress));
        let mut call = std::pin::pin!(call);
        loop {
            tokio::select! {
                done = &mut call => return (run, done.err()),
                // Actors of events are read meanwhile, because their processes may exit before the next event is
                // handled.
                () = listen(self.watch.as_mut()) => {}
            }
        }
    }

    /// The subject of the next scan, which must not be one for which a thread still waits.
    fn subject(&self) -> PathBuf {
        let is_waited_on =
            |subject: &PathBuf| self.hung.iter().any(|(name, waited_on)| &**name != DIRECTORY && waited_on == subject);
        let mut subjects = (0_usize..).map(|number| self.scanner.directory.join(format!("scan {number}")));
        // There are more numbers than names, so one is free.
        subjects.find(|subject| !is_waited_on(subject)).unwrap_or_default()
    }

    /// The names that are still waited for. The others are scanned again.
    fn still_hung(&mut self) -> BTreeSet<Arc<str>> {
        self.hung.retain(|name, subject| &**name != DIRECTORY && blocking::is_busy(subject));
        self.hung.keys().cloned().collect()
    }
}

/// Resolves when a file system for which a thread has waited answers; never resolves if there is none.
pub(super) async fn answered(hung: &BTreeMap<Arc<str>, PathBuf>) {
    match hung.is_empty() {
        true => std::future::pending().await,
        false => drop(futures_util::future::select_all(hung.values().map(|subject| Box::pin(wait(subject)))).await),
    }
}

async fn wait(subject: &Path) {
    blocking::answered(subject).await;
}
