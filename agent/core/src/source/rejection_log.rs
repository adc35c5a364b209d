//! Logs the changes, rejections and warnings of a source's manifests, each only once and not at every rescan.

use std::collections::BTreeMap;
use std::sync::Arc;

use tracing::{info, warn};

use super::{ChangeKind, ManifestChange, SourceSnapshot, delta};
use limpet_model::pod::{Fault, Severity};
use limpet_model::source::SourceKind;

/// How many faults of one file are logged; `limpet sources` lists more.
const MAX_LINES: usize = 20;
/// How many pods a line names.
const MAX_KEPT: usize = 10;

/// What one source has already logged.
#[derive(Debug)]
pub struct RejectionLog {
    source: SourceKind,
    /// The snapshot that was logged last.
    before: Arc<SourceSnapshot>,
    warned: BTreeMap<Arc<str>, Vec<Fault>>,
}

impl RejectionLog {
    /// The log of a source that has rejected nothing.
    pub fn new(source: SourceKind) -> Self {
        Self { source, before: Arc::default(), warned: BTreeMap::new() }
    }

    /// Logs a snapshot's changes with their actors, its new rejections, and rejections that have ended.
    pub fn snapshot(&mut self, snapshot: &Arc<SourceSnapshot>) {
        for change in snapshot.changes.iter().filter(|change| change.change != ChangeKind::Rejected) {
            let ManifestChange { change: kind, pod, origin, .. } = &**change;
            let pod = pod.as_deref().unwrap_or_default();
            let (by, what, effect) = (change.by(), change.what(), change.effect());
            info!(source = %self.source, pod, file = %origin, by, what, effect, "manifest {kind}");
        }
        self.rejections(snapshot);
        self.before = Arc::clone(snapshot);
    }

    fn rejections(&self, snapshot: &SourceSnapshot) {
        let source = self.source;
        for name in &delta::between(&self.before, snapshot).rejected {
            let Some(rejection) = snapshot.rejected.get(name) else {
                info!(%source, file = %name, "manifest no longer rejected");
                continue;
            };
            let by = snapshot.changes.iter().find(|change| *change.origin == **name).map(|change| change.by());
            let kept = &rejection.kept[..rejection.kept.len().min(MAX_KEPT)];
            let more_kept = Some(rejection.kept.len() - kept.len()).filter(|more| *more > 0);
            let (faults, more) = first(&rejection.faults, Severity::Error);
            for fault in faults {
                let line = fault.position.map(|(line, _)| line);
                let fault = Fault { origin: Arc::from(""), ..fault.clone() };
                warn!(%source, file = %name, line, error = %fault, ?kept, more_kept, by, "manifest rejected");
            }
            if more > 0 {
                warn!(%source, file = %name, more, "manifest rejected for more faults; limpet sources lists them");
            }
        }
    }

    /// Logs warnings, once per version of the file.
    pub fn warnings(&mut self, name: &Arc<str>, faults: &[Fault]) {
        let warnings: Vec<Fault> = faults.iter().filter(|fault| fault.severity == Severity::Warning).cloned().collect();
        if self.warned.get(name).map_or(&[][..], Vec::as_slice) == warnings {
            return;
        }
        let (first, more) = first(&warnings, Severity::Warning);
        for fault in first {
            warn!(source = %self.source, warning = %fault, "manifest warning");
        }
        if more > 0 {
            warn!(source = %self.source, file = %name, more, "manifest has more warnings; limpet validate lists them");
        }
        self.warned.insert(Arc::clone(name), warnings);
    }

    /// Forgets a file that is gone, so that a later file of that name is new.
    pub fn forget(&mut self, name: &str) {
        self.warned.remove(name);
    }
}

/// The faults of that severity that are logged, and how many more there are.
fn first(faults: &[Fault], severity: Severity) -> (Vec<&Fault>, usize) {
    let all = || faults.iter().filter(|fault| fault.severity == severity);
    let first: Vec<&Fault> = all().filter(|fault| fault.count() == 1).take(MAX_LINES).collect();
    let more = all().map(Fault::count).sum::<usize>() - first.len();
    (first, more)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_faults_are_logged_and_the_others_counted() {
        let faults: Vec<Fault> =
            (0..MAX_LINES + 5).map(|number| Fault::error(format!("x[{number}]"), "wrong")).collect();
        let (logged, more) = first(&faults, Severity::Error);
        assert_eq!((logged.len(), more), (MAX_LINES, 5));
        assert_eq!(first(&faults, Severity::Warning), (Vec::new(), 0));
    }
}
