//! Logs the changes, rejections and warnings of a source's manifests: each once, not at every rescan.

use std::collections::BTreeMap;
use std::sync::Arc;

use imbl::OrdMap;
use imbl::ordmap::DiffItem;
use tracing::{info, warn};

use super::{ChangeKind, ManifestChange, Rejection, SourceSnapshot};
use limpet_model::pod::{Fault, Severity};
use limpet_model::source::SourceKind;

/// What one source has already logged.
#[derive(Debug)]
pub struct RejectionLog {
    source: SourceKind,
    rejected: OrdMap<Arc<str>, Arc<Rejection>>,
    warned: BTreeMap<Arc<str>, Vec<Fault>>,
}

impl RejectionLog {
    /// The log of a source that has rejected nothing.
    pub fn new(source: SourceKind) -> Self {
        Self { source, rejected: OrdMap::new(), warned: BTreeMap::new() }
    }

    /// Logs a snapshot's changes with their actors, its new rejections, and rejections that are over.
    pub fn snapshot(&mut self, snapshot: &SourceSnapshot) {
        for change in snapshot.changes.iter().filter(|change| change.change != ChangeKind::Rejected) {
            let ManifestChange { change: kind, pod, origin, .. } = &**change;
            let pod = pod.as_deref().unwrap_or_default();
            let (by, what, effect) = (change.by(), change.what(), change.effect());
            info!(source = %self.source, pod, file = %origin, by, what, effect, "manifest {kind}");
        }
        self.rejections(snapshot);
    }

    fn rejections(&mut self, snapshot: &SourceSnapshot) {
        let source = self.source;
        for difference in self.rejected.diff(&snapshot.rejected) {
            let (name, rejection) = match difference {
                DiffItem::Add(name, rejection) | DiffItem::Update { new: (name, rejection), .. } => (name, rejection),
                DiffItem::Remove(name, _) => {
                    info!(%source, file = %name, "manifest no longer rejected");
                    continue;
                }
            };
            let by = snapshot.changes.iter().find(|change| *change.origin == **name).map(|change| change.by());
            for fault in rejection.faults.iter().filter(|fault| fault.severity == Severity::Error) {
                let line = fault.position.map(|(line, _)| line);
                let fault = Fault { origin: Arc::from(""), ..fault.clone() };
                warn!(%source, file = %name, line, error = %fault, kept = ?rejection.kept, by, "manifest rejected");
            }
        }
        self.rejected = snapshot.rejected.clone();
    }

    /// Logs warnings, once per version of the file.
    pub fn warnings(&mut self, name: &Arc<str>, faults: &[Fault]) {
        let warnings: Vec<Fault> = faults.iter().filter(|fault| fault.severity == Severity::Warning).cloned().collect();
        if self.warned.get(name).map_or(&[][..], Vec::as_slice) == warnings {
            return;
        }
        for fault in &warnings {
            warn!(source = %self.source, warning = %fault, "manifest warning");
        }
        self.warned.insert(Arc::clone(name), warnings);
    }

    /// The file is gone: a later file of that name is new.
    pub fn forget(&mut self, name: &str) {
        self.warned.remove(name);
    }
}
